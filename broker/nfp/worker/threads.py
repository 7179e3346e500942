"""Threads for ordinary functions: daemons, so that one that hangs does not keep a drained worker from its end."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

_Work = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Threads:
    """At most ``most`` threads, made when they are needed, for one loop.

    Args:
        name: how they are called in a debugger.
    """

    def __init__(self, name: str, most: int, loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._most = most
        self._loop = loop
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._count = 0
        self._busy = 0

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call ``function`` in a thread; the future gets what it returns or raises. Cancelling does not stop it."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._busy += 1
        if self._busy > self._count < self._most:
            self._count += 1
            threading.Thread(target=self._serve, name=f"{self._name}-{self._count}", daemon=True).start()
        self._work.put((function, future))
        return future

    def close(self) -> None:
        """Idle threads end now, busy ones after their function."""
        for _ in range(self._count):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            function, future = work
            value: Any = None
            error: BaseException | None = None
            try:
                value = function()
            except Exception as raised:
                error = raised
            except BaseException as raised:  # SystemExit ends a task, not its worker
                error = RuntimeError(f"the task raised {type(raised).__name__}: {raised}")
            try:
                self._loop.call_soon_threadsafe(self._settle, future, value, error)
            except RuntimeError:  # the loop is closed: the worker has left without us
                return
            del work, function, future, value, error  # nothing is kept alive while waiting

    def _settle(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(value)
        elif isinstance(error, StopIteration):  # a future cannot carry it
            future.set_exception(RuntimeError(f"the task raised StopIteration: {error}"))
        else:
            future.set_exception(error)
