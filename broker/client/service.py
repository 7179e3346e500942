"""Methods that others call: register a name, answer requests (RFC 6; deployed ``service.add``).

Theory of operation. The broker delivers requests for a registered name on this link. A plain function runs
at once, inside the link's read, and must not block; an ``async def`` runs as a task; an async generator as
a task that streams. Tasks are bounded: beyond ``max_tasks`` requests wait in order, beyond ``max_waiting``
they are answered EAGAIN.

Answers wait for their link: while the broker reads slowly, a task that is done and a stream with a next item
wait for their turn, in order, and requests for plain functions wait as those beyond ``max_tasks`` do. What a
handler sends by ``respond`` goes at once: who sends much so awaits the handle's ``writable()``.

Who a request belongs to is its full route stack, compared byte for byte: ``NAME.cancel`` and
``NAME.disconnect`` (RFC 6) end what the same sender started and nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

from broker.client.method import YIELD_EVERY, Job, Method
from broker.client.received import Response
from broker.client.request import Handler, Request
from broker.errors import HeadgateError, LinkError, ProtocolError
from broker.identity import Role
from broker.wire.message import Message, request
from broker.wire.parts import encode_part
from broker.wire.payload import decode_json, encode_json

if TYPE_CHECKING:
    from types import TracebackType

log = logging.getLogger(__name__)

LEAVE_S: Final = 2.0
"""How long a service that leaves waits for its cancelled handlers, in seconds."""

H = TypeVar("H", bound=Handler)
F = TypeVar("F", bound=Callable[..., Any])


class Provider(Protocol):
    """The Handle, as a service sees it."""

    def send(self, message: Message) -> None:
        """Queue ``message`` on the link."""

    def request(self, message: Message) -> asyncio.Future[Message]:
        """Send a request and get a future of its response."""

    @property
    def ended(self) -> LinkError | None:
        """None while requests can be made."""

    @property
    def roomy(self) -> bool:
        """Whether ``writable`` would not wait."""

    async def writable(self) -> None:
        """Wait while the link's outbox is above high water."""

    def attach(self, service: Service) -> None:
        """Deliver requests for ``service.name`` to it."""

    def detach(self, service: Service) -> None:
        """Deliver no more."""


class Service:
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
        methods: by encoded topic part.
        refused: requests answered EAGAIN because too many waited.
        registered: whether the broker knows the name: it is told again over another link.
    """

    def __init__(self, name: str, link: Provider, max_tasks: int, max_waiting: int) -> None:
        if not name or "." in name:
            raise ProtocolError(f"service name {name!r}: one word without periods", errno.EINVAL)
        self.name = name
        self.link = link
        self.refused = 0
        self.registered = False
        self._max_tasks = max_tasks
        self._max_waiting = max_waiting
        self.methods: dict[bytes, Method] = {}
        self._otherwise: Method | None = None
        self._held: list[Message] | None = []
        self._senders: dict[bytes, set[Request]] = {}
        self._waiting: deque[tuple[Request, Job]] = deque()
        self._postponed: deque[tuple[Request, Method]] = deque()
        self._catching_up: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

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
        topic_part = encode_part(f"{self.name}.{name}".encode("utf-8", "surrogateescape"))
        self.methods[topic_part] = Method(self, name, handler, allow)

    def otherwise(self, handler: Handler, *, allow: int = Role.OWNER) -> None:
        """Let ``handler`` answer every request that no method answers, for names that are not known beforehand.

        It sees the topic in ``request.topic``. Topics that end in ``cancel`` or ``disconnect`` stay notices (RFC 6),
        unless they are methods.
        """
        self._otherwise = Method(self, "", handler, allow)

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
        for asked in [asked for mine in self._senders.values() for asked in mine]:
            asked.cancel(errno.ECANCELED, f"service {self.name} is leaving")
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
        for asked in [asked for mine in self._senders.values() for asked in mine]:
            asked.drop()
        self._senders.clear()

    # -- requests ------------------------------------------------------------------------------

    def requested(self, message: Message) -> None:
        """A request for this service came."""
        if self._held is not None:
            self._held.append(message)
            return
        method = self.methods.get(message.topic_part)
        if method is not None and not method.ends_requests:
            method.requested(message)
        else:
            self._end_requests(message, method)

    def _end_requests(self, message: Message, method: Method | None) -> None:
        """A cancel, a disconnect, or a method nobody has."""
        word = (message.topic or "").rpartition(".")[2]
        if word == "disconnect":
            self._end_sender(message.front)
        elif word == "cancel":
            self._cancel(message)
        elif method is None and self._otherwise is not None:
            self._otherwise.requested(message)
        elif method is None:
            text = f"Unknown service method '{message.topic}'"
            Request(message, self.link.send).respond_error(errno.ENOSYS, text)
        if method is not None:
            method.requested(message)

    def _release(self) -> None:
        held, self._held = self._held, None
        for message in held or ():
            self.requested(message)

    def start(self, asked: Request, job: Job) -> None:
        """Run ``job`` for ``asked`` as a task, now or when one ends."""
        if len(self._tasks) < self._max_tasks:
            self._senders.setdefault(asked.message.front, set()).add(asked)
            self._launch(asked, job)
        elif len(self._waiting) < self._max_waiting:
            self._senders.setdefault(asked.message.front, set()).add(asked)
            self._waiting.append((asked, job))
        else:
            self._refuse(asked, len(self._waiting))

    @property
    def roomy(self) -> bool:
        """Whether a plain function may run at once: its answer will leave, and nobody is in front of it."""
        return self.link.roomy and not self._postponed

    def postpone(self, asked: Request, method: Method) -> None:
        """Run a plain function when the link takes answers again, after those that wait already."""
        if len(self._postponed) >= self._max_waiting:
            self._refuse(asked, len(self._postponed))
            return
        self._senders.setdefault(asked.message.front, set()).add(asked)
        self._postponed.append((asked, method))
        if self._catching_up is None:
            self._catching_up = asyncio.get_running_loop().create_task(
                self._catch_up(), name=f"service {self.name}"
            )

    async def _catch_up(self) -> None:
        try:
            while self._postponed:
                for _ in range(YIELD_EVERY):
                    await self.link.writable()
                    if not self._postponed:
                        return
                    asked, method = self._postponed.popleft()
                    self._forget(asked)
                    if not asked.done:
                        method.answer_at_once(asked)
                await asyncio.sleep(0)
        finally:
            if self._catching_up is asyncio.current_task():
                self._catching_up = None

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._postponed.clear()
        if self._catching_up is not None:
            self._catching_up.cancel()
            self._catching_up = None  # not by itself: it may not have begun

    def _refuse(self, asked: Request, waiting: int) -> None:
        self.refused += 1
        asked.respond_error(errno.EAGAIN, f"service {self.name} is busy: {waiting} requests wait")

    def _launch(self, asked: Request, job: Job) -> None:
        task = asyncio.get_running_loop().create_task(job(asked), name=f"service {asked.topic}")
        asked.task = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, asked))

    def _ended(self, task: asyncio.Task[None], asked: Request) -> None:
        self._tasks.discard(task)
        self._forget(asked)
        while self._waiting and len(self._tasks) < self._max_tasks:
            following, job = self._waiting.popleft()
            if following.done:
                self._forget(following)
            else:
                self._launch(following, job)
        if task.cancelled():
            asked.respond_error(errno.ECANCELED)
        elif (error := task.exception()) is not None:
            log.error("task of %s ended", asked.topic, exc_info=error)

    def _forget(self, asked: Request) -> None:
        mine = self._senders.get(asked.message.front)
        if mine is not None:
            mine.discard(asked)
            if not mine:
                del self._senders[asked.message.front]

    def _end_sender(self, front: bytes) -> None:
        for asked in list(self._senders.get(front, ())):
            asked.drop()

    def _cancel(self, message: Message) -> None:
        try:
            matchtag = decode_json(message.payload).get("matchtag")
        except ProtocolError:
            return  # RFC 6, "Cancellation": a cancel is never answered
        for asked in list(self._senders.get(message.front, ())):
            if asked.matchtag == matchtag:
                # RFC 6 asks for ECANCELED; deployed services end a cancelled stream with ENODATA
                asked.cancel(errno.ENODATA if asked.streaming else errno.ECANCELED)


def table(methods: Mapping[str, F | tuple[F, int]]) -> list[tuple[str, F, int]]:
    """The (name, handler, allow) of each method of a mapping name -> handler or (handler, allow)."""
    return [
        (name, *entry) if isinstance(entry, tuple) else (name, entry, int(Role.OWNER))
        for name, entry in methods.items()
    ]
