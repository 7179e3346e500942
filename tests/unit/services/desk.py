"""The core of a broker in this process with its services, peers without a wire, and a clock that tests move by hand.

Corridor, router, lifecycle and context are the real ones; the tree alone is what a test says of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from broker import settings
from broker.identity import Credentials, Role
from broker.node.attributes import initial
from broker.node.broker import Broker
from broker.node.context import NodeContext
from broker.node.lifecycle import Lifecycle
from broker.node.metrics import Metrics
from broker.routing.port import CHILD, CLIENT, PARENT
from broker.routing.topology import Topology
from broker.services.dispatch import Dispatcher
from broker.services.service import Service, Services, built_in
from broker.transport.budget import Budget
from broker.transport.outbox import OutboxLimits
from broker.wire.message import NODEID_ANY, REQUEST, RESPONSE, STREAMING, Message, request, response
from tests.unit.node.desk import Peer

OWNER = Credentials(0, Role.OWNER | Role.LOCAL)
REMOTE_OWNER = Credentials(0, Role.OWNER)
GUEST = Credentials(1234, Role.USER)
NOBODY = Credentials(1234, 16)
"""Holds a role that no method asks for."""
UUID = "0a1b2c3d-0000-4000-8000-000000000000"
TEXT = """
[access]
allow_guest_user = true
[broker]
rundir = "/nowhere"
log_level = "error"
"""


@cache
def settings_of(rank: int, size: int, text: str) -> settings.Settings:
    hosts = "".join(
        f'[[hosts]]\nrank = {each}\nhostname = "node{each}"\naddress = "inproc://node{each}"\n'
        for each in range(size)
    )
    return settings.loads(TEXT + text + hosts).at_rank(rank)


class HandLoop(asyncio.BaseEventLoop):
    """An event loop without input and output whose time stands still until ``advance``."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self._selector = self
        self._timers: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now

    def select(self, _timeout: float | None) -> list[Any]:
        return []

    def _process_events(self, _events: list[Any]) -> None:
        pass

    def __del__(self) -> None:
        """It holds nothing that has to be closed."""

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        timer = super().call_at(when, callback, *args, context=context)
        self._timers.append(timer)
        return timer

    @property
    def timers(self) -> list[asyncio.TimerHandle]:
        """Those that are due later, the next one first."""
        self._timers = [each for each in self._timers if not each.cancelled() and each.when() > self.now]
        return sorted(self._timers, key=asyncio.TimerHandle.when)

    def run(self, act: Callable[..., Any], *args: Any) -> Any:
        """Call ``act`` on this loop, and let happen what follows from it."""

        async def turn() -> Any:
            return act(*args)

        found = self.run_until_complete(turn())
        self.settle()
        return found

    def settle(self) -> None:
        """Let everything happen that is due."""
        while True:
            self.call_soon(self.stop)
            self.run_forever()
            if not self._ready:
                return

    def advance(self, seconds: float) -> None:
        """Move the clock; timers fire in the order they are due."""
        end = self.now + seconds
        while self.timers and self.timers[0].when() <= end:
            self.now = self.timers[0].when()
            self.settle()
        self.now = end
        self.settle()


class PaperTree:
    """An overlay as far as services see it."""

    def __init__(self, children: Iterable[int]) -> None:
        self.status = "full"
        self.health: list[dict[str, Any]] = [
            {"rank": child, "status": "full", "duration": 3.5, "torpid": False} for child in children
        ]
        self.refuses = self.event_gaps = self.events_missed = 0
        self.torpid_s: list[float] = []

    def subtree_status(self) -> str:
        return self.status

    def status_since(self) -> float:
        return 12.5

    def child_health(self) -> list[dict[str, Any]]:
        return self.health

    def disconnect_child(self, rank: int, reason: str) -> int:
        if not self.refuses:
            self.set(rank, "lost", error=reason)
        return self.refuses

    def set(self, rank: int, status: str, **more: Any) -> None:
        for child in self.health:
            if child["rank"] == rank:
                child.update(status=status, **more)

    def set_torpid_min(self, seconds: float) -> None:
        self.torpid_s.append(seconds)

    set_torpid_max = set_torpid_min


class PaperTracing:
    """Notes who looks on."""

    def __init__(self) -> None:
        self.watchers: dict[str, Any] = {"links": None, "services": None}
        self.watches_clients = False

    def watch_links(self, watcher: Any, clients: bool) -> None:
        self.watchers["links"], self.watches_clients = watcher, clients

    def watch_services(self, watcher: Any) -> None:
        self.watchers["services"] = watcher


class DeskContext(NodeContext):
    """The real one; what the journal is told of refusals is noted."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.tracing = PaperTracing()
        self.refusals: list[tuple[str | None, int]] = []

    def record_refusal(self, request: Message, errnum: int) -> None:
        self.refusals.append((request.topic, errnum))


class Client(Peer):
    """A peer of one desk: asks its services, and reads what comes to it alone."""

    def __init__(self, desk: Desk, cred: Credentials, kind: int, rank: int) -> None:
        super().__init__(desk, cred, kind=kind, rank=rank)
        self.cred = cred
        self.uuid = self.port.uuid
        self._tag = 0

    def say(self, *messages: Message) -> None:
        """One read of the broker's finds all of these."""
        self.desk.run(self.link.receiver.received, self.link, list(messages))

    def request(
        self,
        topic: str,
        data: Any = None,
        *,
        flags: int = 0,
        tag: int | None = None,
        cred: Credentials | None = None,
        nodeid: int = NODEID_ANY,
        below: bytes = b"",
    ) -> Message:
        """One request, not sent yet. ``below``: a route under the link's hop."""
        self._tag += 1
        tag = self._tag if tag is None else tag
        payload = json.dumps(data).encode() + b"\0" if isinstance(data, dict) else data
        who = cred or self.cred
        message = request(
            topic,
            payload,
            nodeid=nodeid,
            matchtag=tag,
            flags=flags,
            userid=who.userid,
            rolemask=int(who.rolemask),
        )
        if below:
            message.push_route(below)
        if self.port.kind == PARENT:
            message.push_route(self.uuid.encode())
        return message

    def send(self, topic: str, data: Any = None, **how: Any) -> int:
        """Send one request; returns its matchtag."""
        message = self.request(topic, data, **how)
        self.say(message)
        return message.matchtag

    def _take(self, wanted: Callable[[Message], bool]) -> list[Message]:
        found = [message for message in self.link.flushed if wanted(message)]
        self.link.flushed = [message for message in self.link.flushed if not wanted(message)]
        return found

    def take(self, tag: int) -> list[Message]:
        """All answers to this peer with ``tag``, taken out."""
        return self._take(lambda message: message.type == RESPONSE and message.matchtag == tag)

    def take_requests(self) -> list[Message]:
        """What this peer is asked, taken out."""
        return self._take(lambda message: message.type == REQUEST)

    def answer(self, asked: Message, payload: bytes | None = None, errnum: int = 0) -> None:
        """Respond to something that this peer is asked."""
        self.say(response(asked, payload, errnum=errnum))

    def ask(self, topic: str, data: Any = None, **how: Any) -> Message:
        """One request, exactly one answer."""
        answers = self.take(self.send(topic, data, **how))
        assert len(answers) == 1, f"{topic}: {answers}"
        return answers[0]

    def silent(self, topic: str, data: Any = None, **how: Any) -> None:
        """One request that must not be answered."""
        assert self.take(self.send(topic, data, **how)) == []

    def refused(self, topic: str, data: Any = None, **how: Any) -> tuple[int, str]:
        """One request, one error answer: (errnum, text)."""
        answer = self.ask(topic, data, **how)
        assert answer.errnum, f"{topic} was not refused: {answer}"
        return answer.errnum, text(answer)

    def stream(self, topic: str, data: Any = None, **how: Any) -> Stream:
        """Open a stream; read it with ``news``."""
        flags = how.pop("flags", 0) | STREAMING
        return Stream(self, self.send(topic, data, flags=flags, **how))


class Stream:
    def __init__(self, client: Client, tag: int) -> None:
        self.client, self.tag = client, tag

    def news(self) -> list[Any]:
        """What came since last time: the JSON objects, and at an end the errnum."""
        return [message.errnum or value(message) for message in self.client.take(self.tag)]


class Desk:
    """The core of one broker in a tree kary:2, its services started.

    Args:
        rank, size: its place in the tree; below rank 0 there is a ``parent``.
        kinds: classes of services; all that are built in, unless given.
        state: of the lifecycle. text: more of the settings ``[broker]``.
        leaves: the process can be left; it notes why in ``left``.
        journal, reload, tasks_max: as of ``NodeContext`` and ``Dispatcher``.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 4,
        kinds: Iterable[type[Service]] | None = None,
        *,
        state: str = "run",
        text: str = "",
        leaves: bool = True,
        tasks_max: int = 256,
        **context: Any,
    ) -> None:
        self.loop = HandLoop()
        self.settings = settings_of(rank, size, text)
        self.budget, self.limits = Budget(), OutboxLimits()
        self.left: list[tuple[str, int]] = []
        self.events: list[Message] = []
        self.clients: list[Client] = []
        self.parent: Client | None = None
        if leaves:
            context["leave"] = lambda reason, code: self.left.append((reason, code))
        self.run(self._make, rank, Topology(size), state, context)
        if rank:
            self.parent = self.client(REMOTE_OWNER, PARENT)
        self.services = Services(self.context, built_in() if kinds is None else kinds)
        self.dispatcher = Dispatcher(self.context, self.services, tasks_max)
        for service in self.services:
            self.broker.router.services.add(service.name.encode(), self.broker.own)
        self.broker.deliver = self.dispatcher.deliver
        self.run(self.dispatcher.start)

    def _make(self, rank: int, topology: Topology, state: str, context: dict[str, Any]) -> None:
        self.broker = Broker(rank, topology, UUID, f"own-{UUID[4:]}", 0)
        self.tree = PaperTree(topology.children(rank))
        self.lifecycle = Lifecycle(self.loop.time)
        self.lifecycle.enter(state)
        publish = self.broker.publish

        def publish_and_note(message: Message) -> int:
            sequence = publish(message)
            self.events.append(message)
            return sequence

        self.broker.publish = publish_and_note
        self.context = DeskContext(
            self.broker,
            self.tree,
            self.lifecycle,
            Metrics(self.broker.router, self.tree, self.lifecycle, None),
            settings=self.settings,
            attributes=initial(self.settings, topology, lambda: self.broker.router.uuid, 0, lambda: None),
            **{"journal": None} | context,
        )

    def run(self, act: Callable[..., Any], *args: Any) -> Any:
        """Call ``act`` on the loop of this broker, and let happen what follows from it."""
        return self.loop.run(act, *args)

    def advance(self, seconds: float) -> None:
        """Move the clock; timers fire in the order they are due."""
        self.loop.advance(seconds)

    def client(self, cred: Credentials = OWNER, kind: int = CLIENT, rank: int | None = None) -> Client:
        """A new peer; ``rank``: of a broker, unless it is the parent or the first child."""
        topology, own = self.broker.router.topology, self.broker.router.rank
        if rank is None:
            rank = {CHILD: 2 * own + 1, PARENT: topology.parent(own)}.get(kind, -1)
        self.clients.append(self.run(Client, self, cred, kind, rank))
        return self.clients[-1]

    def service(self, kind: type[Service]) -> Any:
        return self.services.find(kind)

    def enter(self, state: str) -> None:
        """The lifecycle moves on."""
        self.run(self.lifecycle.enter, state)

    def set_child(self, rank: int, status: str, **more: Any) -> None:
        """Something is new of a child."""
        self.tree.set(rank, status, **more)
        self.run(self.context.tree_changed)

    @property
    def answers(self) -> list[Message]:
        """All answers that nobody took."""
        return [message for client in self.clients for message in client.responses]

    def provider(self, name: str) -> Client | None:
        """Whose service this is; None: nobody's, or the broker's own."""
        port = self.broker.router.services.find(name.encode())
        return next((client for client in self.clients if client.port is port), None)


def value(message: Message) -> Any:
    """The payload: a JSON object, a string, or None."""
    payload = message.payload
    if payload is None:
        return None
    assert payload.endswith(b"\0"), payload
    return json.loads(payload[:-1]) if payload.startswith(b"{") else payload[:-1].decode()


def text(message: Message) -> str:
    return value(message) or ""


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def assert_no_lines() -> Iterator[None]:
    """Nothing is logged that would be a fault."""
    handler, log = Lines(), logging.getLogger("headgate")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
    assert handler.lines == []
