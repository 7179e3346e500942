"""One method of a service, and the runner of all handlers of one service, which ends what its callers no longer want
(RFC 6).

A plain function runs at once, inside the link's read, and must not block; an ``async def`` runs as a task; an async
generator as a task that answers once per ``yield`` and ends its stream with ENODATA. Tasks are bounded: beyond
``tasks_max`` requests wait in order, beyond ``waiting_max`` they are answered EAGAIN.

A request belongs to its full route stack, compared byte for byte: ``cancel`` and ``disconnect`` end what the same
sender started and nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Final

from broker.errors import ProtocolError, RpcError
from broker.identity import Role
from broker.serving.request import LATER, Request
from broker.wire.message import Message
from broker.wire.payload import Payload

log = logging.getLogger(__name__)

OWNER_TEXT: Final = "Request requires owner credentials"
DENIED_TEXT: Final = "Request rejected due to insufficient privilege"
YIELD_EVERY: Final = 64
"""Items a generator may produce, or answers that waited may leave, before other tasks get a turn."""


class Method:
    """One method of a service.

    Args:
        handler: a plain function, ``async def`` or an async generator function of one Request.
        allow: role bits that may call it besides OWNER, who always may; 0 is owner only.
        streaming: a request without flag STREAMING is refused; always so for a generator.

    Attributes:
        asynchronous: runs as a task. generates: an async generator, so each item is a response.
    """

    __slots__ = ("allow", "asynchronous", "generates", "handler", "streaming")

    def __init__(self, handler: Callable[..., Any], allow: int, *, streaming: bool = False) -> None:
        self.handler = handler
        self.allow = int(allow | Role.OWNER)  # a plain int: IntFlag arithmetic costs 2 µs a request
        self.generates = inspect.isasyncgenfunction(handler)
        self.streaming = streaming or self.generates
        self.asynchronous = (
            self.generates
            or inspect.iscoroutinefunction(handler)
            or inspect.iscoroutinefunction(type(handler).__call__)  # an object that is called
        )


class Runner(ABC):
    """Runs the handlers of one service. Subclasses say what their kind of service does differently.

    Args:
        name: the service's name, a topic's first word.
        tasks_max: asynchronous handlers that run at once.
        waiting_max: requests that may wait for one of them to end.

    Attributes:
        refused: requests answered EAGAIN because too many waited.
    """

    ends_streams: bool = True
    """Whether what a function returns to a request for a stream is followed by ENODATA, the stream's good end."""

    def __init__(self, name: str, tasks_max: int, waiting_max: int) -> None:
        self.name = name
        self.refused = 0
        self._tasks_max = tasks_max
        self._waiting_max = waiting_max
        self._senders: dict[bytes, set[Request]] = {}
        self._waiting: deque[tuple[Request, Method]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- what differs --------------------------------------------------------------------------

    @abstractmethod
    def respond(self, message: Message, payload: bytes | None, errnum: int) -> None:
        """Send a response to the request ``message``, unless it wants none."""

    @abstractmethod
    def failure(self, request: Request, error: Exception) -> tuple[int, str]:
        """The errnum and text that answer a request whose handler raised ``error``."""

    def denied(self, request: Request) -> None:  # noqa: B027 - a hook that may do nothing
        """The sender of ``request`` may not call its method; it is answered EPERM."""

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` as a task."""
        return asyncio.get_running_loop().create_task(work, name=name)

    async def writable(self) -> None:  # noqa: B027 - a hook that may do nothing
        """Wait until an answer may leave."""

    # -- requests ------------------------------------------------------------------------------

    def run(self, method: Method, message: Message) -> None:
        """A request for ``method`` came."""
        request = Request(message, self.respond)
        if not message.rolemask & method.allow:  # RFC 12, "Service Security Policy": never in silence
            self.denied(request)
            self.fail(
                request, RpcError(errno.EPERM, OWNER_TEXT if method.allow == Role.OWNER else DENIED_TEXT)
            )
        elif method.streaming and not request.streaming:  # RFC 6, "Streaming Responses": rejected immediately
            text = f"{request.topic} answers with a stream: flag STREAMING is missing"
            self.fail(request, ProtocolError(text))
        elif method.asynchronous:
            self._start(request, method)
        else:
            self.answer(request, method)

    def answer(self, request: Request, method: Method) -> None:
        """Run a plain function and answer with what it returns."""
        try:
            self._finish(request, method.handler(request))
        except Exception as error:
            self.fail(request, error)

    def fail(self, request: Request, error: Exception) -> None:
        """Answer with an error: what the handler raised, whose number may be none."""
        errnum: Any
        errnum, text = self.failure(request, error)
        request.respond_error(errnum if isinstance(errnum, int) and errnum else errno.EIO, text)

    def _finish(self, request: Request, result: Any) -> None:
        if result is LATER or request.done:
            return
        ends = self.ends_streams and request.streaming
        if result is not None or not ends:
            request.respond(result)
        if ends:
            request.respond_error(errno.ENODATA)

    # -- tasks ---------------------------------------------------------------------------------

    def _start(self, request: Request, method: Method) -> None:
        """Run an asynchronous handler, now or when another one ends."""
        if len(self._tasks) < self._tasks_max:
            self.keep(request)
            self._launch(request, method)
        elif len(self._waiting) < self._waiting_max:
            self.keep(request)
            self._waiting.append((request, method))
        elif self._waiting_max:
            self.refuse(request, f"{len(self._waiting)} requests wait")
        else:
            self.refuse(request, f"{len(self._tasks)} requests run")

    def refuse(self, request: Request, why: str) -> None:
        """There are as many as may be: answer EAGAIN."""
        self.refused += 1
        self.fail(request, RpcError(errno.EAGAIN, f"service {self.name} is busy: {why}"))

    def _launch(self, request: Request, method: Method) -> None:
        task = request.task = self.spawn(f"service {request.topic}", self._work(request, method))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, request))

    async def _work(self, request: Request, method: Method) -> None:
        try:
            if method.generates:
                await self._stream(request, method.handler(request))
                return
            result = await method.handler(request)
            await self.writable()
            self._finish(request, result)
        except Exception as error:
            self.fail(request, error)

    async def _stream(self, request: Request, source: AsyncGenerator[Payload, None]) -> None:
        async with aclosing(source) as items:
            count = 0
            async for item in items:
                await self.writable()
                request.respond(item)
                count += 1
                if count % YIELD_EVERY == 0:  # a generator that never waits must not keep the loop
                    await asyncio.sleep(0)
        request.respond_error(errno.ENODATA)

    def _ended(self, task: asyncio.Task[None], request: Request) -> None:
        self._tasks.discard(task)
        self.forget(request)
        while self._waiting and len(self._tasks) < self._tasks_max:
            following, method = self._waiting.popleft()
            # cancelled, or its sender gone, while it waited
            if following.done:
                self.forget(following)
            else:
                self._launch(following, method)
        # by ``Request.cancel``, which has answered (then this says nothing), or because the broker leaves
        if task.cancelled():
            request.respond_error(errno.ECANCELED)
        elif (error := task.exception()) is not None:
            log.error("task of %s ended", request.topic, exc_info=error)

    # -- how requests end early ----------------------------------------------------------------

    def keep(self, request: Request) -> None:
        """``request`` is open: its sender may cancel it."""
        self._senders.setdefault(request.sender, set()).add(request)

    def forget(self, request: Request) -> None:
        """``request`` is no longer open."""
        mine = self._senders.get(request.sender)
        if mine is not None:
            mine.discard(request)
            if not mine:
                del self._senders[request.sender]

    def open_requests(self) -> list[Request]:
        """All requests that are open."""
        return [request for mine in self._senders.values() for request in mine]

    def disconnect(self, sender: bytes) -> None:
        """The sender with this route stack is gone: end its requests without a word."""
        for request in list(self._senders.get(sender, ())):
            request.drop()

    def cancel(self, sender: bytes, matchtag: object) -> None:
        """The sender wants no more responses to its request with ``matchtag``."""
        for request in list(self._senders.get(sender, ())):
            if request.matchtag == matchtag:
                # RFC 6 asks for ECANCELED; deployed services end a cancelled stream with ENODATA
                request.cancel(errno.ENODATA if request.streaming else errno.ECANCELED)
