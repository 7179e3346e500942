"""Random operations on a small tree against a model of a page: what every client got, message by message.

The model knows no hops, caches or tables: who provides what, who waits for whom, who listened to what. Inboxes are
compared whole, so nothing may be lost, doubled, reordered, or delivered to somebody who is gone.
"""

import errno
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from broker.wire.message import DELIMITER, EVENT, NORESPONSE, REQUEST, STREAMING, encode_part
from tests.unit.routing.sim import OWNER, Tree

NAMES = ("red", "blue", "green")
PREFIXES = ("", "n", "new", "news.1")
FLAGS = (0, 0, STREAMING, NORESPONSE)
FRONTS = (DELIMITER, DELIMITER, encode_part(b"web-1") + DELIMITER, encode_part(b"web-2") + DELIMITER)
SIZE = 3
CLIENTS_MAX = 8

OPERATIONS = st.tuples(
    st.sampled_from(
        (
            *("attach", "detach", "add", "add", "remove", "ask", "ask", "ask", "ask", "answer", "answer"),
            *("answer", "end", "subscribe", "unsubscribe", "publish", "busy", "bye"),
        )
    ),
    st.integers(0, 7),
    st.integers(0, 11),
    st.integers(0, 3),
)


@dataclass(eq=False)
class Known:
    """What the model knows of one client."""

    real: object
    rank: int
    live: bool = True
    busy: bool = False
    services: set = field(default_factory=set)
    prefixes: list = field(default_factory=list)
    owed: dict = field(default_factory=dict)
    expected: list = field(default_factory=list)


@dataclass
class Open:
    origin: Known
    target: Known
    tag: int
    name: str
    front: bytes
    streaming: bool


class World:
    """The tree and its model side by side."""

    def __init__(self):
        self.tree = Tree(SIZE)
        self.clients: list[Known] = []
        self.open: list[Open] = []
        self.tag = self.sequence = 0

    def do(self, name, who, what, how):
        if name == "attach":
            self.attach(who % SIZE)
        elif self.live:
            getattr(self, name)(self.live[who % len(self.live)], what, how)
        self.tree.settle()
        self.check()

    @property
    def live(self):
        return [client for client in self.clients if client.live]

    def provider(self, rank, name):
        """The nearest one towards the root."""
        for client in self.live:
            if name in client.services and client.rank == rank:
                return client
        return self.provider(0, name) if rank else None

    # -- operations --------------------------------------------------------------------------------

    def attach(self, rank):
        if len(self.live) < CLIENTS_MAX:
            self.clients.append(Known(self.tree.client(rank, OWNER), rank))

    def detach(self, client, _what, _how):
        client.real.leave()
        client.live = False
        client.services.clear()
        for call in [call for call in self.open if call.target is client]:
            if call.origin.live:
                call.origin.expected.append(("response", call.tag, errno.EHOSTUNREACH, call.front))
        self.open = [call for call in self.open if client not in (call.origin, call.target)]
        for name, front in client.owed:
            self.notice(client, name, front)

    def notice(self, client, name, front):
        target = self.provider(client.rank, name)
        if target is not None:
            target.expected.append(("request", f"{name}.disconnect", client.owed[name, front]))

    def add(self, client, what, _how):
        name = NAMES[what % 3]
        services = client.real.router.services
        if services.add(name.encode(), client.real.port) == 0:
            client.services.add(name)
        client.real.router.invalidate()

    def remove(self, client, what, _how):
        name = NAMES[what % 3]
        gone = client.real.router.services.remove(name.encode(), client.real.port) == 0
        assert gone is (name in client.services)
        client.services.discard(name)
        client.real.router.invalidate()

    def ask(self, client, what, how):
        self.tag += 1
        name, flags, front = NAMES[what % 3], FLAGS[how], FRONTS[what // 3]
        target = self.provider(client.rank, name)
        client.real.ask(f"{name}.x", tag=self.tag, flags=flags, front=front)
        refusal = self.refusal(client, target)
        passed_on = target is not None and (refusal != errno.EAGAIN or target.rank != client.rank)
        if not flags & NORESPONSE:
            if passed_on or (target is None and client.rank):
                client.owed.setdefault((name, front), self.tag)
            if refusal:
                client.expected.append(("response", self.tag, refusal, front))
        if refusal:
            return
        target.expected.append(("request", f"{name}.x", self.tag))
        if not flags & NORESPONSE:
            self.open.append(Open(client, target, self.tag, name, front, bool(flags & STREAMING)))

    def refusal(self, client, target):
        if target is None:
            return errno.ENOSYS
        if not target.busy or target is client:
            return 0
        return errno.EAGAIN if client.rank != target.rank or client.services else 0

    def answer(self, client, what, _how, errnum=0):
        requests = [m for m in client.real.requests if m.topic.endswith(".x")]
        if not requests:
            return
        asked = requests[what % len(requests)]
        client.real.answer(asked, errnum=errnum)
        for call in [c for c in self.open if c.target is client and c.tag == asked.matchtag]:
            call.origin.expected.append(("response", call.tag, errnum, call.front))
            if errnum or not call.streaming:
                self.open.remove(call)

    def end(self, client, what, how):
        self.answer(client, what, how, errno.ENODATA)

    def bye(self, client, what, how):
        """The client says itself that a sender of its own is gone."""
        name, front = NAMES[what % 3], FRONTS[what // 3]
        target = self.provider(client.rank, name)
        if target is None or target.busy:
            return
        self.tag += 1
        client.real.ask(f"{name}.disconnect", tag=self.tag, flags=NORESPONSE, front=front)
        target.expected.append(("request", f"{name}.disconnect", self.tag))
        if client.owed.pop((name, front), None) is not None:
            ended = (client, name, front)
            self.open = [call for call in self.open if (call.origin, call.name, call.front) != ended]

    def subscribe(self, client, _what, how):
        client.real.router.events.subscribe(client.real.port, PREFIXES[how].encode())
        client.prefixes.append(PREFIXES[how])

    def unsubscribe(self, client, _what, how):
        errnum = client.real.router.events.unsubscribe(client.real.port, PREFIXES[how].encode())
        assert (errnum == 0) is (PREFIXES[how] in client.prefixes)
        if errnum == 0:
            client.prefixes.remove(PREFIXES[how])

    def publish(self, client, what, _how):
        self.sequence += 1
        topic = f"news.{what}"
        client.real.publish(topic)
        for ear in self.live:
            if any(topic.startswith(prefix) for prefix in ear.prefixes):
                ear.expected.append(("event", topic, self.sequence))

    def busy(self, client, _what, how):
        client.busy = bool(how % 2)
        client.real.router.set_busy(client.real.port, client.busy)

    # -- comparison --------------------------------------------------------------------------------

    def check(self):
        self.tree.check_open_calls()
        for client in self.clients:
            assert [seen(message) for message in client.real.inbox] == client.expected
        for client in self.live:
            waiting = sorted(call.tag for call in self.open if call.origin is client)
            tags = sorted(int.from_bytes(key[-4:], "big") for key in client.real.port.pending)
            assert tags == waiting, "open is what is neither answered nor given up"


def seen(message):
    if message.type == REQUEST:
        return ("request", message.topic, message.matchtag)
    if message.type == EVENT:
        return ("event", message.topic, message.sequence)
    return ("response", message.matchtag, message.errnum, message.front)


@given(st.lists(OPERATIONS, max_size=60))
def test_every_client_gets_what_the_model_says(operations):
    world = World()
    for rank in (0, 1, 1):
        world.attach(rank)
    for operation in operations:
        world.do(*operation)
    for client in world.live:
        client.real.leave()
    world.tree.settle()
    ports = [port for rank in world.tree.ranks for port in rank.router.ports]
    left = [key for port in ports for key in port.pending]
    assert not left, "when all are gone nothing is open anywhere"
