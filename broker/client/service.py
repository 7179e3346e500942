"""Methods that others call: register a name, answer requests (RFC 6; deployed ``service.add``).

The broker delivers requests for a registered name on this link; how handlers run and end: ``broker.serving.runner``.
``Services`` are all of one handle: they deliver each request to its service, and register the names again over another
link.

Answers wait for their link: while the broker reads slowly, a task that is done and a stream with a next item
wait for their turn, in order, and requests for plain functions wait as those beyond ``tasks_max`` do. What a
handler sends by ``respond`` goes at once: a handler that sends much so awaits the handle's ``writable()``.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from broker.client.calls import Response
from broker.errors import HeadgateError, ProtocolError, RpcError
from broker.identity import Role
from broker.safe_text import text
from broker.serving.request import Handler, Request
from broker.serving.runner import YIELD_EVERY, Method, Runner
from broker.wire.message import NORESPONSE, Message, request, response
from broker.wire.parts import encode_part, part_data
from broker.wire.payload import decode_json, encode_json, encode_text
from broker.wire.topic import encode_topic, method_of, service_of

if TYPE_CHECKING:
    from types import TracebackType

    from broker.client.connection import Connection

log = logging.getLogger(__name__)

LEAVE_S: Final = 2.0
"""How long a service that leaves waits for its cancelled handlers, in seconds."""
NOTICES: Final = ("cancel", "disconnect")
"""Last words of topics that end requests (RFC 6)."""

H = TypeVar("H", bound=Handler)
F = TypeVar("F", bound=Callable[..., Any])
TAKEN_S: Final = 1.0
TAKEN_TRIES: Final = 60
"""A name that is taken when a link comes back is asked for again after so many seconds, so many times: the far end may
still believe in the link before."""


class Service(Runner):
    """A registered name, for the time of a block: ``async with h.service("calc") as calc:``.

    ::

        @calc.method("add")                         # OWNER may call calc.add
        async def add(request):
            numbers = request.json()
            return {"sum": numbers["a"] + numbers["b"]}

        @calc.method("count", allow=Role.USER)      # and here every user
        async def count(request):
            for n in range(request.json()["to"]):
                yield {"n": n}

    What a handler raises answers its request: RpcError and other HeadgateErrors with their errno and text,
    OSError likewise, everything else as EIO with a log line here. Methods decorated before the block's
    first ``await`` miss no request. Leaving the block removes the name and answers what still runs with
    ECANCELED.

    Attributes:
        name: the service's name, a topic's first word.
        refused: requests answered EAGAIN because too many waited.
        registered: whether the broker knows the name: it is told again over another link.
    """

    def __init__(self, name: str, link: Connection, tasks_max: int, waiting_max: int) -> None:
        if not name or b"." in encode_topic(name):
            raise ProtocolError(f"service name {name!r}: one word without periods", errno.EINVAL)
        super().__init__(name, tasks_max, waiting_max)
        self.link = link
        self.registered = False
        self._methods: dict[bytes, Method] = {}
        self._notices: dict[bytes, Method] = {}
        self._otherwise: Method | None = None
        self._held: list[Message] | None = []
        self._postponed: deque[tuple[Request, Method]] = deque()
        self._catching_up: asyncio.Task[None] | None = None

    # -- methods -------------------------------------------------------------------------------

    def method(self, name: str, *, allow: int = Role.OWNER) -> Callable[[H], H]:
        """Decorate the handler of ``SERVICE.name``; ``allow`` is a mask of roles, OWNER always included."""

        def decorate(handler: H) -> H:
            self.add(name, handler, allow=allow)
            return handler

        return decorate

    def add(self, name: str, handler: Handler, *, allow: int = Role.OWNER) -> None:
        """Let ``handler`` answer ``SERVICE.name``; replaces an earlier one.

        A method called ``cancel`` or ``disconnect`` runs after this class has ended the sender's requests.
        """
        table = self._notices if name.rpartition(".")[2] in NOTICES else self._methods
        table[encode_part(encode_topic(f"{self.name}.{name}"))] = Method(handler, allow)

    def otherwise(self, handler: Handler, *, allow: int = Role.OWNER) -> None:
        """Let ``handler`` answer every request that no method answers, for names that are not known beforehand.

        It sees the topic in ``request.topic``. Topics that end in ``cancel`` or ``disconnect`` stay notices (RFC 6),
        unless they are methods.
        """
        self._otherwise = Method(handler, allow)

    # -- life ----------------------------------------------------------------------------------

    async def open(self) -> Service:
        """Register the name (``service.add``).

        Raises:
            RpcError: EEXIST 17 taken, EPERM 1 a guest's name lacks its ``UID-`` prefix. LinkError: the link
            ended.
        """
        self.link.attach(self)
        try:
            answer = await self.link.request(request("service.add", encode_json({"service": self.name})))
            if answer.errnum:
                raise Response(answer).error()
        except BaseException:
            self.link.detach(self)
            raise
        self.registered = True
        # by call_soon: requests of the same read wait until the block has decorated its methods
        asyncio.get_running_loop().call_soon(self._release)
        return self

    async def close(self) -> None:
        """Remove the name; answer what runs or waits with ECANCELED; wait at most LEAVE_S for the handlers."""
        self.link.detach(self)
        try:
            self.link.request(request("service.remove", encode_json({"service": self.name})))
        except HeadgateError:
            pass  # the broker removed the name when the link ended, or does when it does
        self._forget_waiting()
        for asked in self.open_requests():
            asked.cancel(errno.ECANCELED, f"service {self.name} is leaving")
        # a handler may close its own service, and cannot wait for its own end
        tasks = self._tasks - {asyncio.current_task()}
        if tasks:
            _ended, stuck = await asyncio.wait(tasks, timeout=LEAVE_S)
            if stuck:
                log.warning(
                    "service %s leaves %d handlers that do not end when cancelled", self.name, len(stuck)
                )

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def link_ended(self) -> None:
        """The link is gone: nobody can be answered."""
        self._forget_waiting()
        for asked in self.open_requests():
            asked.drop()
        self._senders.clear()

    # -- requests ------------------------------------------------------------------------------

    def requested(self, message: Message) -> None:
        """A request for this service came."""
        if self._held is not None:
            self._held.append(message)
            return
        method = self._methods.get(message.topic_part)
        if method is not None:
            self.run(method, message)
        else:
            self._notice(message)

    def _notice(self, message: Message) -> None:
        """A cancel, a disconnect, or a method nobody has."""
        method = self._notices.get(message.topic_part)
        word = (message.topic or "").rpartition(".")[2]
        if word == "disconnect":
            self.disconnect(message.front)
        elif word == "cancel":
            self._cancel(message)
        else:
            method = self._otherwise
            if method is None:
                error = RpcError(errno.ENOSYS, f"Unknown service method '{message.topic}'")
                self.fail(Request(message, self.respond), error)
        if method is not None:
            self.run(method, message)

    def _cancel(self, message: Message) -> None:
        try:
            matchtag = decode_json(message.payload).get("matchtag")
        except ProtocolError:
            return  # RFC 6, "Cancellation": a cancel is never answered
        self.cancel(message.front, matchtag)

    def _release(self) -> None:
        held, self._held = self._held, None
        for message in held or ():
            self.requested(message)

    # -- answers -------------------------------------------------------------------------------

    def respond(self, message: Message, payload: bytes | None, errnum: int) -> None:
        """Send a response over the link; it is stamped there."""
        if not message.head[4] & NORESPONSE:
            self.link.send(response(message, payload, errnum=errnum))

    def failure(self, request: Request, error: Exception) -> tuple[int, str]:
        """Its own errno and text where it has them, else EIO and a log line here."""
        if isinstance(error, HeadgateError):
            return error.errno, text(error)
        if isinstance(error, OSError) and isinstance(error.errno, int) and error.errno:
            return error.errno, text(error.strerror or os.strerror(error.errno))
        log.error("handler of %s failed", request.topic, exc_info=error)
        return errno.EIO, f"the handler of {request.topic} failed"

    async def writable(self) -> None:
        """Wait until the link takes an answer."""
        await self.link.writable()

    def answer(self, request: Request, method: Method) -> None:
        """Run a plain function, once the link takes its answer and nobody is in front of it."""
        if (self.link.is_writable and not self._postponed) or request.message.head[4] & NORESPONSE:
            super().answer(request, method)
        elif len(self._postponed) >= self._waiting_max:
            self.refuse(request, f"{len(self._postponed)} requests wait")
        else:
            self.keep(request)
            self._postponed.append((request, method))
            if self._catching_up is None:
                self._catching_up = self.spawn(f"service {self.name}", self._catch_up())

    async def _catch_up(self) -> None:
        try:
            while self._postponed:
                for _ in range(YIELD_EVERY):
                    await self.link.writable()
                    if not self._postponed:
                        return
                    asked, method = self._postponed.popleft()
                    self.forget(asked)
                    if not asked.done:
                        super().answer(asked, method)
                await asyncio.sleep(0)
        finally:
            # ``_forget_waiting`` may have begun another one
            if self._catching_up is asyncio.current_task():
                self._catching_up = None

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._postponed.clear()
        if self._catching_up is not None:
            self._catching_up.cancel()
            self._catching_up = None  # not by itself: it may not have begun


def table(methods: Mapping[str, F | tuple[F, int]]) -> list[tuple[str, F, int]]:
    """The (name, handler, allow) of each method of a mapping name -> handler or (handler, allow)."""
    return [
        (name, *entry) if isinstance(entry, tuple) else (name, entry, int(Role.OWNER))
        for name, entry in methods.items()
    ]


class Services:
    """The services of one link, by name."""

    __slots__ = ("_by_name", "_link", "_losses")

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._by_name: dict[bytes, Service] = {}
        self._losses = 0

    def attach(self, service: Service) -> None:
        """Deliver requests for ``service.name`` to it.

        Raises:
            ProtocolError: EEXIST, this handle serves the name already.
        """
        name = service.name.encode("utf-8", "surrogateescape")
        if name in self._by_name:
            raise ProtocolError(f"service {service.name} is registered by this handle already", errno.EEXIST)
        self._by_name[name] = service

    def detach(self, service: Service) -> None:
        """Deliver no more to it."""
        self._by_name.pop(service.name.encode("utf-8", "surrogateescape"), None)

    def requested(self, message: Message) -> None:
        """A request came from the link."""
        service = self._by_name.get(service_of(bytes(part_data(message.topic_part) or b"")))
        if service is not None:
            service.requested(message)
        elif not message.flags & NORESPONSE:
            topic = message.topic or ""
            text = encode_text(f"Unknown service method '{topic}'") if method_of(topic) else None
            self._link.send(response(message, text, errnum=errno.ENOSYS))

    def restore(self) -> None:
        """There is another link: register every name again."""
        for service in self._by_name.values():
            if service.registered:
                self._register(service, TAKEN_TRIES, self._losses)

    def _register(self, service: Service, tries: int, losses: int) -> None:
        def answered(answer: asyncio.Future[Message]) -> None:
            if answer.cancelled() or answer.exception() is not None:
                return  # the link is lost again
            errnum = answer.result().errnum
            if errnum == errno.EEXIST and tries > 1:  # by ourselves, over the link before
                asyncio.get_running_loop().call_later(TAKEN_S, self._register, service, tries - 1, losses)
            elif errnum:
                log.error(
                    "service %s cannot be registered again: %s",
                    service.name,
                    Response(answer.result()).error(),
                )
                self.detach(service)

        name = service.name.encode("utf-8", "surrogateescape")
        if self._by_name.get(name) is service and losses == self._losses and not self._link.ended:
            asked = self._link.request(request("service.add", encode_json({"service": service.name})))
            asked.add_done_callback(answered)

    def forget(self, name: str) -> None:
        """The far end has taken a name back."""
        self._by_name.pop(name.encode("utf-8", "surrogateescape"), None)

    def link_ended(self) -> None:
        """The link is gone: stop every handler."""
        self._losses += 1
        for service in self._by_name.values():
            service.link_ended()

    async def close(self) -> None:
        """Close every service."""
        for service in list(self._by_name.values()):
            await service.close()
