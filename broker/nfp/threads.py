"""Functions that may take long, in threads that are daemons: one that hangs keeps nobody from their end."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from broker.safe_text import about

Done = Callable[[Any, BaseException | None], None]
"""Gets what a function returned, or what it raised, in the loop's thread."""


class Threads:
    """At most ``most`` threads, made when they are needed, for one loop.

    Args:
        name: how they are called in a debugger. ended: called in each of them at its end, also when the loop is closed.
    """

    def __init__(
        self,
        name: str,
        most: int,
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[], None] | None = None,
    ) -> None:
        self._name = name
        self._most = most
        self._loop = loop
        self._ended = ended
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Done] | None] = queue.SimpleQueue()
        self._count = 0
        self._busy = 0

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call ``function`` in a thread; the future gets what it returns or raises. Cancelling does not stop it."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.call(function, partial(_settle, future))
        return future

    def call(self, function: Callable[[], Any], done: Done) -> None:
        """The same for who needs no future."""
        self._busy += 1
        if self._busy > self._count < self._most:
            self._count += 1
            threading.Thread(target=self._serve, name=f"{self._name}-{self._count}", daemon=True).start()
        self._work.put((function, done))

    def close(self) -> None:
        """Idle threads end now, busy ones after what they were given."""
        for _ in range(self._count):
            self._work.put(None)

    def _serve(self) -> None:
        try:
            self._serve_all()
        finally:
            if self._ended is not None:
                self._ended()

    def _serve_all(self) -> None:
        while (work := self._work.get()) is not None:
            function, done = work
            value: Any = None
            error: BaseException | None = None
            try:
                value = function()
            except Exception as raised:
                error = raised
            except BaseException as raised:  # SystemExit ends a task, not its worker
                error = RuntimeError(f"the task raised {about(raised)}")
            try:
                self._loop.call_soon_threadsafe(self._done, done, value, error)
            except RuntimeError:  # the loop is closed: nobody is left to be told
                return
            del work, function, done, value, error  # nothing is kept alive while waiting

    def _done(self, done: Done, value: Any, error: BaseException | None) -> None:
        self._busy -= 1
        done(value, error)


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(value)
    elif issubclass(type(error), StopIteration):  # a future cannot carry it; its class is not asked of itself
        future.set_exception(RuntimeError(f"the task raised {about(error)}"))
    else:
        future.set_exception(error)
