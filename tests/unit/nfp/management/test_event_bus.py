"""Subscriptions: who gets what, what is lost and how it is told."""

import msgspec
import pytest

from broker.identity import USERID_UNKNOWN
from broker.nfp.contract import EventFilter
from broker.nfp.frames import decode, encode
from broker.nfp.management.event_bus import BODY_MAX_BYTES, SUBSCRIPTIONS_PER_HOLDER, EventBus, Gap
from broker.nfp.names import Dialect
from broker.nfp.principal import Principal, Standing
from tests.tables import for_each
from tests.unit.nfp.management.fakes import ANNA, BERT, OWNER, FakePeer, event

ALL = EventFilter()


def uuids(told):
    return [body["uuid"] for _, body in told]


def numbers(told):
    return [number for number, _ in told]


def test_a_subscriber_gets_what_it_wants_in_order_with_numbers():
    bus, peer = EventBus("e1", wall=lambda: 12.5), FakePeer()
    bus.subscribe(peer, EventFilter(service="dummy", kinds=frozenset({"progress", "finished"})), "s1")
    bus.publish(event("submitted"))
    bus.publish(event("progress", worker="w1", attempt=1, body=b'{"message":"half"}'))
    bus.publish(event("progress", service="other"))
    bus.publish(event("finished", status=200, body=b"x" * 9))
    (first, said), (second, ended) = peer.take()
    assert (first, second) == (2, 4)
    assert said["event"] == {"message": "half"}
    assert (said["kind"], said["uuid"], said["worker"], said["attempt"]) == ("progress", "j1", "w1", 1)
    assert (said["sequence"], said["epoch"], said["time"]) == (2, "e1", 12.5)
    assert ended["event"] is None
    assert ended["size"] == 9  # results are fetched, not announced


def test_an_event_packet_has_the_eighth_frame_in_both_dialects():
    for dialect in Dialect:
        bus, peer = EventBus("e1"), FakePeer(dialect=dialect, features={"push"})
        bus.subscribe(peer, ALL, "s1")
        bus.publish(event())
        frames = encode(peer.sent[0])
        assert len(frames) == 8
        again = decode(frames)
        assert (again.sequence, again.uuid, again.service, again.status) == (1, "j1", "dummy", 200)


def test_subscribers_share_one_encoded_body():
    bus, peers = EventBus("e1"), [FakePeer(), FakePeer()]
    for peer in peers:
        bus.subscribe(peer, ALL, "s1")
    bus.publish(event())
    assert peers[0].sent[0].body is peers[1].sent[0].body


def test_nobody_sees_the_jobs_of_others_but_owners():
    bus = EventBus("e1")
    anna, bert, owner = FakePeer(principal=ANNA), FakePeer(principal=BERT), FakePeer(principal=OWNER)
    for peer in (anna, bert, owner):
        bus.subscribe(peer, ALL, "s1")
    bus.publish(event(uuid="a"))
    bus.publish(event(uuid="b", holder=BERT.holder))
    assert uuids(anna.take()) == ["a"]
    assert uuids(bert.take()) == ["b"]
    assert uuids(owner.take()) == ["a", "b"]
    anna.principal = BERT  # whoever speaks there now
    bus.publish(event(uuid="c"))
    assert anna.take() == []


def read(bus, since, epoch="", *, limit=100, peer=None, event_filter=ALL):
    events, at, gap = bus.read(peer or FakePeer(), event_filter, limit, since=since, epoch=epoch)
    return [one["sequence"] for one in events], at, gap


def test_what_has_happened_is_read_page_by_page():
    bus = EventBus("e1")
    for number in range(1, 8):
        bus.publish(event(uuid=f"j{number % 2}"))
    assert read(bus, 3, "e1") == ([4, 5, 6, 7], 7, None)
    assert read(bus, 1, limit=2) == ([2, 3], 3, None)
    assert read(bus, 1, limit=2, event_filter=EventFilter(uuid="j0")) == ([2, 4], 4, None)
    assert read(bus, 7) == ([], 7, None)
    assert read(bus, 0, peer=FakePeer(principal=BERT)) == ([], 7, None)


def test_what_is_no_longer_held_is_told():
    bus = EventBus("e1", held_max=3)
    for _ in range(10):
        bus.publish(event())
    assert read(bus, 2) == ([8, 9, 10], 10, Gap("no longer held", 3, 7))
    assert read(bus, 7) == ([8, 9, 10], 10, None)
    assert read(bus, None) == ([8, 9, 10], 10, None), "nothing in particular was asked for"


def test_numbers_of_another_epoch_are_a_gap_and_all_is_read():
    bus = EventBus("e2")
    bus.publish(event())
    found, at, gap = read(bus, 500, "e1")
    assert (found, at) == ([1], 1)
    assert (gap.first, gap.last) == (0, 0)


@for_each("since", [-1, 1, 2**40])
def test_a_number_that_was_not_given_yet_is_refused(since):
    with pytest.raises(ValueError, match="since"):
        read(EventBus("e1"), since)


def test_a_peer_without_room_misses_events_and_is_told_which_once_there_is():
    bus, slow, quick = EventBus("e1"), FakePeer("slow", room=1), FakePeer("quick")
    for peer in (slow, quick):
        bus.subscribe(peer, EventFilter(service="dummy"), "s1")
    for number in range(1, 11):
        bus.publish(event(uuid=f"j{number}", service="dummy" if number % 2 else "other"))
    assert numbers(quick.take()) == [1, 3, 5, 7, 9]
    assert numbers(slow.take()) == [1]
    bus.has_room(slow)
    assert slow.sent == []
    slow.room = 100
    bus.has_room(slow)
    ((gap, notice),) = slow.take()
    assert notice == {
        "kind": "gap", "subscription": "s1", "lost": 4, "first": 3, "last": 9, "sequence": 9, "epoch": "e1",
    }  # fmt: skip
    assert gap == 9
    assert (bus.dropped, bus.subscriptions(slow)[0].dropped) == (4, 4)
    bus.has_room(slow)
    bus.publish(event(uuid="j11"))
    assert numbers(slow.take()) == [11]  # told once


def test_a_gap_stands_in_front_of_the_next_event():
    bus, peer = EventBus("e1"), FakePeer(room=0)
    bus.subscribe(peer, ALL, "s1")
    bus.publish(event())
    peer.room = 1
    bus.publish(event())
    (first,) = peer.take()
    assert (first[1]["kind"], first[1]["first"], first[1]["last"]) == ("gap", 1, 1)
    peer.room = 2
    bus.publish(event())
    assert [(body["kind"], number) for number, body in peer.take()] == [("gap", 2), ("progress", 3)]


def test_what_waits_for_a_peer_that_is_gone_is_dropped():
    bus, peer = EventBus("e1"), FakePeer()
    bus.subscribe(peer, ALL, "s1")
    peer.alive = False
    bus.publish(event())
    assert bus.subscriptions() == []
    again = FakePeer()
    bus.subscribe(again, ALL, "s1")
    bus.unsubscribe(again)
    bus.publish(event())
    assert again.sent == []


def test_subscriptions_of_the_gone_take_no_room_even_when_nothing_matches(monkeypatch):
    monkeypatch.setattr("broker.nfp.management.event_bus.SUBSCRIPTIONS_MAX", 3)
    bus = EventBus("e1")
    for _ in range(10):
        peer = FakePeer()
        bus.subscribe(peer, EventFilter(uuid="never"), "s1")
        peer.alive = False
    living = [FakePeer() for _ in range(3)]
    for peer in living:
        bus.subscribe(peer, ALL, "s1")
    with pytest.raises(ValueError, match="in all"):
        bus.subscribe(FakePeer(), ALL, "s1")


def test_subscriptions_are_bounded_and_replaced_by_name():
    bus, peer = EventBus("e1"), FakePeer()
    for number in range(SUBSCRIPTIONS_PER_HOLDER):
        bus.subscribe(peer, ALL, f"s{number}")
    with pytest.raises(ValueError, match="at most"):
        bus.subscribe(peer, ALL, "one more")
    bus.subscribe(peer, EventFilter(uuid="other"), "s0")
    bus.publish(event())
    assert len(peer.sent) == SUBSCRIPTIONS_PER_HOLDER - 1
    assert bus.unsubscribe(peer, "s1") == 1
    assert bus.unsubscribe(peer) == SUBSCRIPTIONS_PER_HOLDER - 1
    assert bus.subscriptions(peer) == []


def test_subscriptions_are_counted_by_holder_on_all_connections():
    bus = EventBus("e1")
    peers = [FakePeer(f"c{number}") for number in range(SUBSCRIPTIONS_PER_HOLDER)]
    for peer in peers:
        bus.subscribe(peer, ALL, "s1")
    with pytest.raises(ValueError, match="uid:1000 has 16"):
        bus.subscribe(FakePeer("one more"), ALL, "s1")
    bus.subscribe(FakePeer(principal=BERT), ALL, "s1")
    bus.unsubscribe(peers[0])
    bus.subscribe(FakePeer("one more"), ALL, "s1")


def test_a_subscription_for_one_job_is_asked_about_no_other(monkeypatch):
    bus, one, wide = EventBus("e1"), FakePeer("one"), FakePeer("wide")
    bus.subscribe(one, EventFilter(uuid="j1"), "s1")
    bus.subscribe(wide, ALL, "s1")
    asked, matches = [], EventBus.may_follow

    def noted(self, peer, event_filter, event):
        asked.append((peer.name, event.uuid))
        return matches(self, peer, event_filter, event)

    monkeypatch.setattr(EventBus, "may_follow", noted)
    for uuid in ("j2", "j1", "j2"):
        bus.publish(event(uuid=uuid))
    assert {uuid for name, uuid in asked if name == "one"} == {"j1"}
    assert numbers(one.take()) == [2]
    assert numbers(wide.take()) == [1, 2, 3]
    bus.unsubscribe(one)
    bus.publish(event(uuid="j1"))
    assert one.take() == []


def test_what_a_worker_published_is_for_who_names_its_topic_and_may_call_its_service():
    guest = Principal("uid:9", Standing.GUEST, 9)
    bus = EventBus("e1")
    named, wide, low = FakePeer("named"), FakePeer("wide"), FakePeer("low", principal=guest)
    for peer, event_filter in (
        (named, EventFilter(uuid="alarms")),
        (wide, ALL),
        (low, EventFilter(uuid="alarms")),
    ):
        bus.subscribe(peer, event_filter, "s1")
    for body in (b'{"level":3}', b"plain", b"\xff"):
        bus.publish(event("published", uuid="alarms", holder="", body=body))
    bus.publish(event("published", uuid="others", holder=""))
    said = [body["event"] for _, body in named.take()]
    assert said == [{"level": 3}, "plain", {"base64": "/w=="}]
    assert (wide.take(), low.take()) == ([], [])


def test_the_ring_is_bounded_in_bytes_and_leaves_long_bodies_out():
    bus = EventBus("e1", held_max_bytes=8192)
    body = msgspec.json.encode({"message": "x" * 1000})
    for _ in range(50):
        bus.publish(event(body=body))
    assert bus.held.bytes <= 8192
    assert 1 <= len(bus.held) <= 8
    peer = FakePeer()
    bus.subscribe(peer, ALL, "s1")
    bus.publish(event(body=b'"' + b"y" * BODY_MAX_BYTES + b'"'))
    ((_, told),) = peer.take()
    assert told["event"] is None
    assert told["size"] == BODY_MAX_BYTES + 2
    bus.publish(event(body=b"\xff\x00 no JSON"))
    bus.publish(event(body=b"[" * 15_000))
    assert [body["event"] for _, body in peer.take()] == [None, None]


def test_listeners_in_this_process_get_everything_until_they_end():
    bus, heard = EventBus("e1"), []
    end = bus.listen(lambda event, entry: heard.append((entry.sequence, event.body, entry.event.body)))
    bus.publish(event("finished", body=b"result"))
    end()
    bus.publish(event())
    assert heard == [(1, b"result", b"")]


def test_who_has_no_userid_is_told_without_one():
    bus, peer = EventBus("e"), FakePeer(principal=OWNER)
    bus.subscribe(peer, ALL, "s1")
    bus.publish(event(userid=USERID_UNKNOWN))
    bus.publish(event(userid=7))
    assert [body["userid"] for _, body in peer.take()] == [None, 7]
