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
        bus.subscribe(peer, ALL, "s1", since=0)
    bus.publish(event(uuid="a"))
    bus.publish(event(uuid="b", holder=BERT.holder))
    bus.pump()
    assert uuids(anna.take()) == ["a"]
    assert uuids(bert.take()) == ["b"]
    assert uuids(owner.take()) == ["a", "b"]
    anna.principal = BERT  # whoever speaks there now
    bus.publish(event(uuid="c"))
    assert anna.take() == []


def test_a_replay_begins_behind_the_number_given():
    bus, peer = EventBus("e1"), FakePeer()
    for number in range(1, 6):
        bus.publish(event(uuid=f"j{number}"))
    begun = bus.subscribe(peer, ALL, "s1", since=3, epoch="e1")
    assert (begun.since, begun.gap) == (3, None)
    assert peer.sent == []  # the answer goes first
    bus.pump()
    assert numbers(peer.take()) == [4, 5]
    bus.publish(event())
    assert numbers(peer.take()) == [6]


def test_what_is_no_longer_held_is_told():
    bus, peer = EventBus("e1", held_max=3), FakePeer()
    for _ in range(10):
        bus.publish(event())
    begun = bus.subscribe(peer, ALL, "s1", since=2)
    assert begun.gap == Gap("no longer held", 3, 7)
    bus.pump()
    assert numbers(peer.take()) == [8, 9, 10]


def test_numbers_of_another_epoch_are_a_gap_and_all_is_replayed():
    bus, peer = EventBus("e2"), FakePeer()
    bus.publish(event())
    begun = bus.subscribe(peer, ALL, "s1", since=500, epoch="e1")
    assert begun.gap is not None
    assert (begun.gap.first, begun.gap.last) == (0, 0)
    bus.pump()
    assert numbers(peer.take()) == [1]


@for_each("since", [-1, 1, 2**40])
def test_a_number_that_was_not_given_yet_is_refused(since):
    with pytest.raises(ValueError, match="since"):
        EventBus("e1").subscribe(FakePeer(), ALL, "s1", since=since)


def test_a_slow_peer_loses_only_what_the_ring_forgets_and_is_told_how_much():
    bus, slow, quick = EventBus("e1", held_max=4), FakePeer("slow", room=1), FakePeer("quick")
    for peer in (slow, quick):
        bus.subscribe(peer, EventFilter(service="dummy"), "s1")
    for number in range(1, 11):
        bus.publish(event(uuid=f"j{number}", service="dummy" if number % 2 else "other"))
    assert numbers(quick.take()) == [1, 3, 5, 7, 9]
    assert numbers(slow.take()) == [1]
    slow.room = 100
    bus.pump()
    (gap, notice), *rest = slow.take()
    assert notice == {
        "kind": "gap", "subscription": "s1", "lost": 2, "first": 3, "last": 5, "sequence": 5, "epoch": "e1",
    }  # fmt: skip
    assert gap == 5
    assert numbers(rest) == [7, 9]
    assert bus.dropped == 2
    bus.publish(event(uuid="j11"))
    assert numbers(slow.take()) == [11]  # told once


def test_a_long_backlog_holds_events_back_before_the_peer_refuses():
    waiting = {"c1": 5}
    bus, peer = EventBus("e1", backlog=lambda peer: waiting[peer.name], backlog_max=5), FakePeer("c1")
    bus.subscribe(peer, ALL, "s1")
    bus.publish(event())
    assert peer.sent == []
    waiting["c1"] = 4
    bus.pump()
    assert numbers(peer.take()) == [1]


def test_a_long_replay_goes_in_turns_that_schedule_themselves():
    due = []
    bus, peer = EventBus("e1", later=lambda delay, call: due.append((delay, call))), FakePeer()
    for _ in range(600):
        bus.publish(event())
    bus.subscribe(peer, ALL, "s1", since=0)
    turns = 0
    while due:
        delay, call = due.pop(0)
        assert delay == 0.0
        assert not due
        call()
        turns += 1
    assert numbers(peer.take()) == list(range(1, 601))
    assert turns == 3


def test_a_slow_peer_is_tried_again_later():
    due = []
    bus = EventBus("e1", later=lambda delay, call: due.append((delay, call)))
    peer = FakePeer(room=0)
    bus.subscribe(peer, ALL, "s1")
    due.pop()[1]()
    assert not due  # nothing waits
    bus.publish(event())
    delay, call = due.pop()
    assert delay > 0
    peer.room = 1
    call()
    assert numbers(peer.take()) == [1]
    assert not due


def test_what_waits_for_a_peer_that_is_gone_is_dropped():
    bus, peer = EventBus("e1"), FakePeer()
    bus.subscribe(peer, ALL, "s1")
    peer.alive = False
    bus.publish(event())
    assert bus.subscriptions() == []
    again = FakePeer()
    bus.subscribe(again, ALL, "s1")
    bus.gone(again)
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
    bus.gone(peers[0])
    bus.subscribe(FakePeer("one more"), ALL, "s1")


def test_a_subscription_for_one_job_is_asked_about_no_other(monkeypatch):
    bus, one, wide = EventBus("e1"), FakePeer("one"), FakePeer("wide")
    bus.subscribe(one, EventFilter(uuid="j1"), "s1")
    bus.subscribe(wide, ALL, "s1")
    bus.pump()
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
    bus.gone(one)
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
    bus.pump()
    for body in (b'{"level":3}', b"plain", b"\xff"):
        bus.publish(event("published", uuid="alarms", holder="", body=body))
    bus.publish(event("published", uuid="others", holder=""))
    said = [body["event"] for _, body in named.take()]
    assert said == [{"level": 3}, "plain", {"base64": "/w=="}]
    assert (wide.take(), low.take()) == ([], [])


def test_a_subscription_for_one_job_that_fell_behind_catches_up_in_order():
    bus, peer = EventBus("e1"), FakePeer(room=1)
    bus.subscribe(peer, EventFilter(uuid="j1"), "s1")
    bus.pump()
    for number in range(6):
        bus.publish(event(uuid=f"j{number % 2}"))
    assert numbers(peer.take()) == [2]
    peer.room = None
    bus.pump()
    bus.publish(event(uuid="j1"))
    assert numbers(peer.take()) == [4, 6, 7]


def test_the_ring_is_bounded_in_bytes_and_leaves_long_bodies_out():
    bus = EventBus("e1", held_max_bytes=8192)
    body = msgspec.json.encode({"message": "x" * 1000})
    for _ in range(50):
        bus.publish(event(body=body))
    assert bus.buffer.entries.bytes <= 8192
    assert 1 <= len(bus.buffer) <= 8
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
    end = bus.listen(lambda event, sequence: heard.append((sequence, event.body)))
    bus.publish(event("finished", body=b"result"))
    end()
    bus.publish(event())
    assert heard == [(1, b"result")]


def test_who_has_no_userid_is_told_without_one():
    bus, peer = EventBus("e"), FakePeer(principal=OWNER)
    bus.subscribe(peer, ALL, "s1")
    bus.publish(event(userid=USERID_UNKNOWN))
    bus.publish(event(userid=7))
    assert [body["userid"] for _, body in peer.take()] == [None, 7]
