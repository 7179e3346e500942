"""The event bus against a list that keeps everything: nothing twice or out of order, what is missed told and read."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from broker.nfp.contract import EventFilter
from broker.nfp.management.event_bus import EventBus
from broker.nfp.names import Dialect
from broker.nfp.principal import Principal, Standing
from tests.unit.nfp.management.fakes import FakePeer, event

HOLDERS = ("uid:1", "uid:2")
KINDS = ("submitted", "progress", "finished")
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("events"),
            st.lists(st.tuples(st.sampled_from(HOLDERS), st.sampled_from(KINDS)), min_size=1, max_size=12),
            st.none(),
        ),
        st.tuples(st.just("room"), st.integers(0, 1), st.integers(0, 6)),
        st.tuples(st.just("read"), st.integers(0, 1), st.integers(0, 40)),
        st.tuples(st.just("subscribe"), st.integers(0, 1), st.none()),
        st.tuples(st.just("unsubscribe"), st.integers(0, 1), st.none()),
    ),
    min_size=8,
    max_size=60,
)


class Reader:
    """A subscriber, and what it knows to have missed or got since it began."""

    def __init__(self, principal, event_filter):
        self.peer = FakePeer(principal=principal, dialect=Dialect.NORFAB, room=0)
        self.event_filter = event_filter
        self.subscribed = False
        self.begin = 0

    def wants(self, one):
        fits = self.event_filter.wants(one.uuid, one.service, one.kind)
        return fits and self.peer.principal.may_see(one.holder)

    def account(self, everything):
        """Check the whole stream since the beginning against ``everything`` (number -> event)."""
        got = [(packet.sequence, msgspec.json.decode(packet.body)) for packet in self.peer.sent]
        numbers = [number for number, _ in got]
        plain = [number for number, body in got if body["kind"] != "gap"]
        assert numbers == sorted(numbers)
        assert len(set(plain)) == len(plain)
        assert all(number > self.begin and self.wants(everything[number]) for number in plain)
        missed = set()
        for _, body in got:
            if body["kind"] == "gap":
                lost = {
                    number
                    for number in range(body["first"], body["last"] + 1)
                    if self.wants(everything[number]) and number not in plain
                }
                assert len(lost) == body["lost"]
                missed |= lost
        return set(plain) | missed


def read(bus, reader, since, everything):
    """All pages behind ``since`` are all that is held and wanted, and the gap is what is not held."""
    held_from, at, found, gaps = len(everything) - len(bus.held) + 1, since, [], []
    while True:
        events, next_at, gap = bus.read(reader.peer, reader.event_filter, 3, since=at)
        found += [one["sequence"] for one in events]
        gaps += [gap] if gap else []
        if next_at == len(everything):
            break
        assert next_at > at
        at = next_at
    assert found == [
        number
        for number in range(max(since + 1, held_from), len(everything) + 1)
        if reader.wants(everything[number])
    ]
    assert [(gap.first, gap.last) for gap in gaps] == (
        [(since + 1, held_from - 1)] if since + 1 < held_from else []
    )


@given(STEPS, st.integers(1, 8))
def test_every_event_is_delivered_once_or_told_as_lost_and_held_ones_are_read(steps, held_max):
    bus = EventBus("e1", held_max=held_max)
    readers = [
        Reader(Principal("uid:1", Standing.USER), EventFilter(kinds=frozenset({"progress", "finished"}))),
        Reader(Principal("boss", Standing.OWNER), EventFilter()),
    ]
    everything = {}
    for step, first, second in steps:
        if step == "events":
            for holder, kind in first:
                one = event(kind, holder=holder)
                everything[len(everything) + 1] = one
                bus.publish(one)
        elif step == "room":
            readers[first].peer.room = second
            if second:
                bus.has_room(readers[first].peer)
        elif step == "read":
            read(bus, readers[first], min(second, len(everything)), everything)
        elif step == "unsubscribe":
            bus.unsubscribe(readers[first].peer)
            readers[first].subscribed = False
        else:
            reader = readers[first]
            bus.subscribe(reader.peer, reader.event_filter, "s")
            reader.peer.sent.clear()
            reader.begin, reader.subscribed = len(everything), True
        assert len(bus.held) <= held_max
        for reader in readers:
            if reader.subscribed:
                reader.account(everything)
    for reader in readers:
        if reader.subscribed:
            reader.peer.room = 10**6
            bus.has_room(reader.peer)
            wanted = {
                number for number, one in everything.items() if number > reader.begin and reader.wants(one)
            }
            assert reader.account(everything) == wanted
