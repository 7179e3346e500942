"""The thread that runs the event loop of a blocking facade; a leaf that every room may use.

Any thread may hand it a coroutine and wait for the result; an interrupt (Ctrl-C) in the waiting thread
cancels the coroutine, so that nothing is left running for a caller who has gone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import threading
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from broker.errors import LinkClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
P = ParamSpec("P")
_numbers = itertools.count(1)
_JOIN_S: Final = 5.0
"""How long ``stop`` waits for the thread; it is a daemon, so a stuck one does not keep the process."""


class LoopThread:
    """One daemon thread with one event loop; running once the constructor returns."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: asyncio.Event | None = None
        self._ready = threading.Event()
        name = f"headgate client {next(_numbers)}"
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    def _main(self) -> None:
        # the runner cancels what is still there and awaits it when the block is left
        with asyncio.Runner() as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        self._leave = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._leave.wait()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin to run ``coroutine`` there.

        Raises:
            LinkClosed: the thread was stopped. RuntimeError: called on that very thread, which would wait
            for itself.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a blocking call on the handle's own thread would wait for itself for ever")
        if self._loop is None or self._loop.is_closed() or not self._thread.is_alive():
            coroutine.close()
            raise LinkClosed("the handle was closed")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` there, wait, and return what it returns or raise what it raises; else as
        ``start``.
        """
        future = self.start(coroutine)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise LinkClosed("the handle was closed") from None
        finally:
            future.cancel()  # does nothing to a finished one

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As ``run``, for a plain function."""

        async def called() -> T:
            return function(*args, **kwargs)

        return self.run(called())

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Have ``function`` called there and do not wait; from any thread, in order. Dropped once stopped."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(function, *args)

    def stop(self) -> None:
        """Cancel what runs there and end the thread; harmless twice."""
        loop, leave = self._loop, self._leave
        if loop is not None and leave is not None and not loop.is_closed():
            loop.call_soon_threadsafe(leave.set)
        self._thread.join(_JOIN_S)
