"""Services whose methods are ordinary functions: each request runs in a thread of the service's pool.

A generator function streams. A thread cannot be interrupted: when the caller cancels or goes away, the
answer is dropped, a generator gets ``close()`` at its next step, and a long function may look at
``request.done``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from broker.client.service import table
from broker.errors import LinkClosed
from broker.identity import Role
from broker.serving.request import RequestMessage
from broker.wire.payload import Payload, encode

if TYPE_CHECKING:
    from types import TracebackType

    from broker.client.service import Service as AsyncService
    from broker.loopthread import LoopThread
    from broker.serving.request import Handler, Result
    from broker.serving.request import Request as AsyncRequest

THREADS: Final = 8
"""Requests of one service that run at a time; the others wait, and so does a stream's next step."""
_END: Final = object()


class Request(RequestMessage):
    """One request for a method of ours, for use in the handler's thread; see
    ``broker.serving.request.Request``.
    """

    __slots__ = ("_asked", "_loop", "_writable")

    def __init__(
        self, asked: AsyncRequest, loop: LoopThread, writable: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(asked.message)
        self._asked = asked
        self._loop = loop
        self._writable = writable

    @property
    def done(self) -> bool:
        """True once the last response was given, or the caller is gone or cancelled."""
        return self._asked.done

    def respond(self, payload: Payload = None) -> None:
        """Send a response, the last one unless ``streaming``; waits while the broker reads slowly."""
        with contextlib.suppress(LinkClosed):  # the handle has been closed meanwhile: nobody can be answered
            self._loop.run(self._respond(encode(payload)))

    async def _respond(self, data: bytes | None) -> None:
        await self._writable()
        self._asked.respond(data)

    def respond_error(self, errnum: int, text: str = "") -> None:
        """Send the last response: POSIX ``errnum``, not 0, and a short text."""
        if errnum == 0:
            raise ValueError("errnum 0 is success: use respond()")
        self._loop.post(self._asked.respond_error, errnum, text)


ThreadHandler: TypeAlias = Callable[[Request], "Result | Iterator[Payload]"]
"""A function or generator function of one Request."""


class _Steps:
    """A generator that several threads step in turn."""

    def __init__(self, items: Any) -> None:
        self._items = items
        self._lock = threading.Lock()

    def step(self) -> Any:
        with self._lock:
            return next(self._items, _END)

    def close(self) -> None:
        with self._lock:
            self._items.close()


class Service:
    """A registered name: ``with h.service("calc", {"add": add}):`` or ``calc = h.serve("calc", {...})``.

    ::

        def add(request):
            numbers = request.json()
            return {"sum": numbers["a"] + numbers["b"]}

    Methods decorated inside the block may miss requests that came before: name them in the mapping, or
    decorate before entering.
    """

    def __init__(
        self,
        service: AsyncService,
        loop: LoopThread,
        methods: Mapping[str, ThreadHandler | tuple[ThreadHandler, int]],
        threads: int = THREADS,
    ) -> None:
        self._service = service
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"service {service.name}")
        for name, handler, allow in table(methods):
            self.add(name, handler, allow=allow)

    @property
    def name(self) -> str:
        """The service's name, a topic's first word."""
        return self._service.name

    def method(self, name: str, *, allow: int = Role.OWNER) -> Callable[[ThreadHandler], ThreadHandler]:
        """Decorate the handler of ``SERVICE.name``; ``allow`` is a mask of roles, OWNER always included."""

        def decorate(handler: ThreadHandler) -> ThreadHandler:
            self.add(name, handler, allow=allow)
            return handler

        return decorate

    def add(self, name: str, handler: ThreadHandler, *, allow: int = Role.OWNER) -> None:
        """Let ``handler`` answer ``SERVICE.name``; replaces an earlier one."""
        wrapped = self._streaming(handler) if inspect.isgeneratorfunction(handler) else self._single(handler)
        self._loop.call(self._service.add, name, wrapped, allow=allow)

    def _single(self, handler: Any) -> Handler:
        async def answer(asked: AsyncRequest) -> Result:
            loop = asyncio.get_running_loop()
            result: Result = await loop.run_in_executor(self._pool, handler, self._request(asked))
            return result

        return answer

    def _streaming(self, handler: Any) -> Handler:
        async def answers(asked: AsyncRequest) -> AsyncIterator[Payload]:
            loop = asyncio.get_running_loop()
            steps = _Steps(handler(self._request(asked)))
            try:
                while (item := await loop.run_in_executor(self._pool, steps.step)) is not _END:
                    yield item
            finally:
                self._pool.submit(steps.close)

        return answers

    def _request(self, asked: AsyncRequest) -> Request:
        return Request(asked, self._loop, self._service.link.writable)

    def open(self) -> Self:
        """Register the name.

        Raises:
            RpcError: EEXIST 17 taken, EPERM 1 a guest's name lacks its ``UID-`` prefix. LinkError: the link
            ended.
        """
        try:
            self._loop.run(self._service.open())
        except BaseException:
            self._pool.shutdown(wait=False, cancel_futures=True)
            raise
        return self

    def close(self) -> None:
        """Remove the name; callers in flight are answered ECANCELED; threads that run are not waited for."""
        try:
            self._loop.run(self._service.close())
        finally:
            self._pool.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
