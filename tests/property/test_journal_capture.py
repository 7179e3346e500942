"""Random traffic on a small tree, and witnesses at both ends of every link: the records say what they saw.

The witness stands around each router and each port: it keeps what is handed to the router, by which port, and what
each port is sent. It knows nothing of decisions, marks or frames that are kept.
"""

from dataclasses import dataclass

from hypothesis import example, given
from hypothesis import strategies as st

from broker.journal import layout
from broker.journal.tap import Tap
from broker.routing.departure import depart
from broker.routing.port import OWN, PARENT
from broker.wire.decoding import decode
from broker.wire.message import EVENT, NORESPONSE, REQUEST, RESPONSE, Message
from broker.wire.parts import split_parts
from tests.live.chunks import DENIED, IN, OUT, Shelf
from tests.property.test_routing import OPERATIONS, World

REFUSALS = {11, 38, 113}
"""EAGAIN, ENOSYS, EHOSTUNREACH: what this traffic meets."""


@dataclass
class Sight:
    """One message seen at one port: entering the router (``inward``) or leaving it."""

    inward: bool
    port: object
    message: Message
    claimed: int


class Witness:
    """Stands in for a router, and passes everything on."""

    def __init__(self, router, capture):
        self.router = router
        self.shelf = Shelf.of(capture)
        self.tap = Tap(self.shelf)
        self.sights: list[Sight] = []
        self.known = list(router.ports)
        for port in self.known:
            self._watch(port)
        router.recording = self.tap

    def __getattr__(self, name):
        if name == "events":
            return self
        return getattr(self.router, name)

    def _watch(self, port):
        port.peer = self.tap.peer(port.name, layout.INPROC, "any")
        send = port.send

        def sent(message):
            self.sights.append(Sight(False, port, message.copy(), 0))
            send(message)

        port.send = sent

    def _entered(self, port, message):
        if port.kind != OWN and port.live:
            self.sights.append(Sight(True, port, message.copy(), message.userid))

    def attach(self, port):
        self.known.append(port)
        self.router.attach(port)
        self._watch(port)

    def request(self, port, message):
        self._entered(port, message)
        self.router.request(port, message)

    def response(self, port, message):
        self._entered(port, message)
        self.router.response(port, message)

    # -- what is reached through ``events`` --

    def receive(self, port, message):
        self._entered(port, message)
        self.router.events.receive(port, message)

    def subscribe(self, port, prefix):
        return self.router.events.subscribe(port, prefix)

    def unsubscribe(self, port, prefix):
        return self.router.events.unsubscribe(port, prefix)


class Recorded(World):
    def __init__(self, captures):
        super().__init__()
        self.witnesses = []
        for rank, capture in zip(self.tree.ranks, captures, strict=True):
            rank.router = Witness(rank.router, capture)
            self.witnesses.append(rank.router)

    def attach(self, rank):
        super().attach(rank)
        known = self.clients[-1]
        client, router = known.real, self.witnesses[known.rank].router
        client.leave = lambda: depart(router, client.port)

    def do(self, *operation):
        super().do(*operation)
        for witness in self.witnesses:
            witness.tap.end_batch()


def stamped_as_by(port, message):
    """The message with the credentials that the port's policy gives it."""
    copy = message.copy()
    copy.head = copy.head[:5] + port.policy.stamp(copy.head[5:13]) + copy.head[13:]
    return copy


def check_deliveries(witness, records):
    """``both``: OUT is what the ports were sent, in order, byte for byte; an event once for all who got it."""
    left = [s for s in witness.sights if not s.inward]
    single = [(s.port.peer, s.message.framed()) for s in left if s.message.type != EVENT]
    out = [r for r in records if r.direction == OUT]
    assert [(r.peer, r.frame) for r in out if r.message.type != EVENT] == single
    events: list[list] = []
    for sight in (s for s in left if s.message.type == EVENT):
        frame, up = sight.message.framed(), sight.port.kind == PARENT
        if events and not up and events[-1][:2] == [0, frame]:
            events[-1][2] += 1
        else:
            events.append([sight.port.peer if up else 0, frame, 1])
    assert [[r.peer, r.frame, r.via] for r in out if r.message.type == EVENT and r.via] == events


def check_entries(witness, records):
    """IN and DENIED are what the ports handed in, in order, each once, but for strays and events that cannot wait."""
    came = iter([r for r in records if r.direction in (IN, DENIED)])
    strays = homeless = 0
    got = {(s.port.peer, s.message.framed()) for s in witness.sights if not s.inward}
    numbers = {port.peer: port for port in witness.known}
    record = next(came, None)
    for sight in (s for s in witness.sights if s.inward):
        if record is None or not same(sight, record):
            strays += sight.message.type == RESPONSE
            homeless += sight.message.type == EVENT
            assert sight.message.type != REQUEST, "every request is accepted or denied"
            continue
        assert (record.peer, record.claimed) == (sight.port.peer, sight.claimed)
        assert record.transport == layout.INPROC
        check_one(sight, record, got, numbers)
        record = next(came, None)
    assert record is None, "a record of a message that nobody sent"
    counters = witness.counters
    assert (strays, homeless) == (
        counters.stray_responses,
        counters.drops.get("event beyond what waits for a parent", 0),
    )


def same(sight, record):
    """The record is of this message: what no router changes is equal."""
    mine, theirs = sight.message, record.message
    return (
        record.peer == sight.port.peer
        and (mine.type, mine.topic_part, bytes(mine.payload_part), mine.tag)
        == (theirs.type, theirs.topic_part, bytes(theirs.payload_part), theirs.tag)
        and (mine.type != RESPONSE or (mine.front, mine.errnum) == (theirs.front, theirs.errnum))
    )


def check_one(sight, record, got, numbers):
    message, port = record.message, sight.port
    expected = stamped_as_by(port, sight.message)
    assert (message.userid, message.rolemask) == (expected.userid, expected.rolemask)
    if record.direction == DENIED:
        assert record.reason in REFUSALS
        assert record.frame == expected.framed(), "as it came, but stamped"
    elif message.type == REQUEST:
        assert (record.via, record.frame) in got, "whom it was for got exactly this"
        assert message.front.endswith(sight.message.front)
        if port.kind != PARENT:
            assert port.hop[1:] in split_parts(message.front)
    elif message.type == RESPONSE:
        assert record.frame == expected.framed(), "with the stack it came with"
        popped = [
            peer for peer, frame in got if peer == record.via and expected.front.endswith(_front(frame))
        ]
        assert popped, "whom it was for got it with a hop less"
        assert record.via in numbers
    else:
        assert record.via == 0


def _front(frame):
    return decode(frame, 8, len(frame)).front


ORPHANED = [("add", 1, 0, 0), ("ask", 2, 0, 0), ("ask", 0, 0, 0), ("detach", 1, 0, 0)]
"""A provider goes while others wait for it."""
STREAMED = [("add", 1, 0, 0), ("ask", 2, 0, 2), ("answer", 1, 0, 0), ("answer", 1, 0, 0), ("end", 1, 0, 0)]


@example(ORPHANED, ("both", "both", "both"))
@example(STREAMED, ("both", "in", "both"))
@given(st.lists(OPERATIONS, max_size=40), st.tuples(*[st.sampled_from(["in", "both"])] * 3))
def test_the_records_are_what_both_ends_saw(operations, captures):
    world = Recorded(captures)
    for rank in (0, 1, 1):
        world.attach(rank)
    for operation in operations:
        world.do(*operation)
    for client in world.live:
        client.real.leave()
    world.tree.settle()
    for witness, capture in zip(world.witnesses, captures, strict=True):
        witness.tap.flush()
        records = witness.shelf.flux
        assert all(record.ns for record in records), "every record has its time"
        check_entries(witness, records)
        if capture == "both":
            check_deliveries(witness, records)
        else:
            assert not [r for r in records if r.direction == OUT]


@given(st.lists(OPERATIONS, max_size=40))
def test_recording_changes_nothing_that_anybody_gets(operations):
    plain, recorded = World(), Recorded(("both", "in", "both"))
    for world in (plain, recorded):
        for rank in (0, 1, 1):
            world.attach(rank)
        for operation in operations:
            world.do(*operation)
    assert [facts(c) for c in plain.clients] == [facts(c) for c in recorded.clients]


def facts(client):
    """What a client got, but for the hops, which are new names in every world."""
    return [
        (
            m.type,
            m.flags & ~NORESPONSE,
            m.topic,
            m.payload,
            m.userid,
            m.rolemask,
            m.aux1,
            m.aux2,
            len(m.routes),
        )
        for m in client.real.inbox
    ]
