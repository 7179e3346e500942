"""The thread that runs the event loop of a blocking facade; a leaf that every room may use.

Any thread may hand it a coroutine and wait for the result; an interrupt (Ctrl-C) in the waiting thread
cancels the coroutine, so that nothing is left running for a caller who has gone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import itertools
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar

from broker.errors import LinkClosed
from broker.tasks import within

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

T = TypeVar("T")
S = TypeVar("S")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
_FETCH: Final = 256
"""Items taken over per visit to the loop's thread."""
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


class Mirror(Generic[S]):
    """Stands for ``source``, which lives in ``loop``'s thread; None: it is not open yet, or not any more."""

    def __init__(self, source: S, loop: LoopThread | None) -> None:
        self._source = source
        self._thread = loop

    @property
    def _loop(self) -> LoopThread:
        if self._thread is None:
            raise RuntimeError(f"the client is not open: use `with {type(self).__name__}(...)`")
        return self._thread


def waits(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Mirror[S], P], T]:
    """The same method for other threads: a call waits for what it brings."""

    @functools.wraps(method)
    def call(mirror: Mirror[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop = mirror._loop
        return loop.run(method(mirror._source, *args, **kwargs))

    return call


def calls(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[Mirror[S], P], T]:
    """The same plain method for other threads: it is called in the loop's."""

    @functools.wraps(method)
    def call(mirror: Mirror[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop = mirror._loop
        return loop.call(method, mirror._source, *args, **kwargs)

    return call


class Source(Protocol[T_co]):
    """What an asynchronous client gives items from."""

    @property
    def ready(self) -> int:
        """Items that can be had without waiting."""

    async def __anext__(self) -> T_co: ...


class OpenSource(Source[T_co], Protocol[T_co]):
    """One that gives them for the time of a block."""

    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Items(Generic[T_co]):
    """What comes from ``source``, which lives in ``loop``: ``for item in items``."""

    def __init__(self, source: Source[T_co], loop: LoopThread) -> None:
        self._source = source
        self._loop = loop
        self._fetched: deque[T_co] = deque()
        self._error: Exception | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T_co:
        return self.next()

    def next(self, timeout_s: float | None = None) -> T_co:
        """The next item; waits ``timeout_s`` seconds for it, None: until the end.

        Raises:
            StopIteration: the normal end. TimeoutError: nothing came; call again to wait on. Else as the asynchronous
            iteration.
        """
        if not self._fetched:
            error, self._error = self._error, None
            if error is not None:
                raise error
            try:
                self._fetched, self._error = self._loop.run(_fetch(self._source, timeout_s))
            except StopAsyncIteration:
                raise StopIteration from None
        return self._fetched.popleft()


class OpenItems(Items[T_co]):
    """The same for the time of a block: ``with ... as items: for item in items``."""

    def __init__(self, source: OpenSource[T_co], loop: LoopThread) -> None:
        super().__init__(source, loop)
        self._open = source

    def __enter__(self) -> Self:
        self._loop.run(self._open.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._open.__aexit__(kind, error, trace))


async def _fetch(source: Source[T_co], timeout_s: float | None) -> tuple[deque[T_co], Exception | None]:
    """Wait for one item, take along what is there already; an error behind those is returned with them."""
    items: deque[T_co] = deque()
    try:
        async with within(timeout_s):
            items.append(await source.__anext__())
    except TimeoutError as error:
        raise TimeoutError(f"nothing came within {timeout_s:g} s") from error
    try:
        while source.ready and len(items) < _FETCH:
            items.append(await source.__anext__())
    except Exception as error:
        return items, error
    return items, None
