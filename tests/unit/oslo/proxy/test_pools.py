"""Pools of listeners: one delivery for each pool and message, within credit, bounded, in order, all losses counted."""

import pytest

from broker.oslo.proxy import pools as module
from broker.oslo.proxy.listeners import CREDIT_MAX, WaitingMessage
from broker.oslo.proxy.pools import HANDED_SPARE
from tests.unit.oslo.proxy.pooling import Given, Hand

KEY = ("openstack", "events.info")
OTHER = ("openstack", "events.error")
ME, YOU = object(), object()


def message(name: str, key: tuple[str, str] = KEY, size: int = 10, stamp: bytes = b"stamp") -> WaitingMessage:
    return WaitingMessage(b"head", name.encode(), size, key, name.encode(), stamp)


def bodies(given: Given | None) -> list[tuple[str, str]]:
    assert given is not None
    return [(listener, message.body.decode()) for listener, message in given]


def made(
    *listeners: str, credit: int = 10, msgs: int = 100, size: int = 10_000, pool: str | None = None
) -> Hand:
    hand = Hand(msgs, size)
    for listener in listeners:
        join(hand, listener, pool=pool, credit=credit)
    return hand


def join(
    hand: Hand,
    listener: str,
    pool: str | None = None,
    credit: int = 10,
    keys: tuple[tuple[str, str], ...] = (KEY,),
) -> None:
    assert hand.open(listener, pool, keys, credit, ME) == []


def test_the_chosen_listener_gets_it() -> None:
    hand = made("a", "b")
    assert bodies(hand.take(message("1"), ["b"])) == [("b", "1")]
    assert bodies(hand.take(message("2"), ["a"])) == [("a", "2")]
    assert hand.pools.counts["handed"] == 2
    assert hand.pools.counts["rechosen"] == 0


def test_every_pool_gets_its_copy_and_only_one() -> None:
    hand = made("a", "b")
    join(hand, "c", pool="billing")
    assert bodies(hand.take(message("1"), ["a", "b", "c", "a"])) == [("a", "1"), ("c", "1")]
    assert hand.pools.counts["doubled"] == 2


def test_who_listens_where() -> None:
    hand = made("a")
    join(hand, "b", pool="billing", keys=(KEY, OTHER, KEY))
    pools = hand.pools
    assert pools.topics() == {"openstack/events.info": 2, "openstack/events.error": 1}
    hand.close("b")
    assert pools.listened(KEY)
    assert not pools.listened(OTHER)
    assert (pools.is_here(KEY, None), pools.is_here(KEY, "billing")) == (True, False)
    assert hand.close("b") == [], "harmless twice"


def test_what_is_beyond_credit_waits_and_credit_hands_it_out_in_order() -> None:
    hand = made("a", credit=1)
    assert bodies(hand.take(message("1"), ["a"])) == [("a", "1")]
    for name in "234":
        assert hand.take(message(name), ["a"]) == []
    assert hand.pools.waiting() == 3
    assert bodies(hand.credit("a", 2)) == [("a", "2"), ("a", "3")]
    assert bodies(hand.credit("a", 5)) == [("a", "4")]
    assert bodies(hand.take(message("5"), ["a"])) == [("a", "5")]


def test_credit_is_limited_and_for_nobody_is_nothing() -> None:
    hand = made("a", credit=1 << 30)
    member = hand.listener("a")
    assert member.credit == CREDIT_MAX
    hand.credit("a", 1 << 31)
    assert member.credit == CREDIT_MAX


def test_what_its_process_does_not_take_now_waits_until_it_does() -> None:
    hand = made("a", "b")
    hand.takes = {"a": 0, "b": 0}
    for name in "12":
        assert hand.take(message(name), ["a"]) == []
    assert hand.take(message("3"), ["b"]) == hand.credit("a", 1) == []
    assert bodies(hand.resume("a")) == [("a", "1"), ("a", "2")]
    assert hand.pools.blocked, "the other one is tried in its turn"
    assert bodies(hand.resume("b")) == [("b", "3")]
    assert not hand.pools.blocked
    assert hand.listener("a").credit == 9


def test_what_could_not_be_sent_waits_and_goes_to_others() -> None:
    hand = made("a", "b", credit=2)
    hand.takes["a"] = -1
    for name in "1234":
        assert hand.take(message(name), ["a"]) == hand.credit("a", 1) == [], "it is gone"
    assert (hand.pools.counts["handed"], hand.pools.waiting()) == (0, 4)
    assert bodies(hand.close("a")) == [("b", "1"), ("b", "2")]
    assert bodies(hand.credit("b", 2)) == [("b", "3"), ("b", "4")]
    assert hand.pools.counts["unconfirmed"] == 0


def test_unconfirmed_bytes_are_limited_but_one_message_always_fits() -> None:
    hand = made("a", credit=10, size=100)
    assert bodies(hand.take(message("huge", size=500), ["a"])) == [("a", "huge")]
    assert hand.take(message("1", size=60), ["a"]) == []
    assert bodies(hand.credit("a", 1)) == [("a", "1")]
    assert bodies(hand.take(message("2", size=40), ["a"])) == [("a", "2")]
    assert hand.take(message("3", size=1), ["a"]) == []


def test_a_full_queue_gives_to_another_of_the_pool_then_drops_counted() -> None:
    hand = made("a", "b", credit=0, msgs=2)
    join(hand, "c", pool="billing", credit=0)
    for name in "1234":
        assert hand.take(message(name), ["a"]) == []
    assert hand.pools.counts["rechosen"] == 2
    assert hand.take(message("5"), ["a"]) == []
    assert hand.pools.counts["lost_full"] == 1
    assert bodies(hand.credit("a", 9)) == [("a", "1"), ("a", "2")]
    assert bodies(hand.credit("b", 9)) == [("b", "3"), ("b", "4")]


def test_a_queue_is_bounded_in_bytes() -> None:
    hand = made("a", credit=0, size=100)
    for _ in range(4):
        hand.take(message("x", size=60), ["a"])
    assert hand.pools.waiting() == 2, "the one that makes it full still fits"
    assert hand.pools.counts["lost_full"] == 2
    member = hand.listener("a")
    assert member.filled == 1.2
    assert hand.pools.asking == {member}


def test_a_choice_that_left_is_made_anew_in_its_pool_in_turn() -> None:
    hand = made("a", "b", "c")
    join(hand, "z", pool="billing")
    hand.close("a")
    got = [bodies(hand.take(message(str(number)), ["a"])) for number in range(4)]
    assert got == [[("b", "0")], [("c", "1")], [("b", "2")], [("c", "3")]]
    assert hand.pools.counts["rechosen"] == 4


def test_a_choice_nobody_knows_is_lost_counted() -> None:
    hand = made("a")
    assert hand.take(message("1"), ["x"]) == []
    assert hand.pools.counts["lost_unknown"] == 1
    hand.close("a")
    assert hand.take(message("2"), ["a"]) == []
    assert hand.pools.counts["lost_pool"] == 1


def test_a_chosen_listener_of_another_topic_is_replaced_by_one_of_this_topic() -> None:
    hand = made("a")
    join(hand, "b", keys=(OTHER,))
    assert bodies(hand.take(message("1", OTHER), ["a"])) == [("b", "1")]
    join(hand, "c", pool="billing")
    assert hand.take(message("2", OTHER), ["c"]) == []
    assert hand.pools.counts["lost_pool"] == 1


def test_what_waits_for_one_that_ends_goes_to_others_in_front_in_order() -> None:
    hand = made("a", "b", credit=0)
    for name in "123":
        hand.take(message(name), ["a"])
    hand.take(message("old"), ["b"])
    assert hand.close("a") == []
    assert hand.pools.counts["moved"] == 3
    assert bodies(hand.credit("b", 9)) == [("b", "1"), ("b", "2"), ("b", "3"), ("b", "old")]


def test_what_waits_for_one_that_ends_is_handed_out_at_once_where_there_is_credit() -> None:
    hand = made("b", "c")
    join(hand, "a", credit=0)
    for name in "1234":
        hand.take(message(name), ["a"])
    got = bodies(hand.close("a"))
    assert sorted(name for _listener, name in got) == ["1", "2", "3", "4"]
    for listener in "bc":
        own = [name for each, name in got if each == listener]
        assert own == sorted(own)
        assert len(own) == 2


def test_what_was_handed_out_is_not_handed_out_again() -> None:
    hand = made("a", "b")
    hand.take(message("1"), ["a"])
    hand.take(message("2"), ["a"])
    hand.credit("a", 1)
    assert hand.close("a") == []
    assert hand.pools.counts["unconfirmed"] == 1


def test_what_waits_for_the_last_of_a_pool_is_lost_counted() -> None:
    hand = made("a", credit=0)
    join(hand, "c", pool="billing")
    hand.take(message("1"), ["a"])
    assert hand.close("a") == []
    assert hand.pools.counts["lost_pool"] == 1


def test_requeue_goes_to_the_end_of_the_next_of_the_pool() -> None:
    hand = made("a", "b", credit=1)
    join(hand, "c", pool="billing")
    assert bodies(hand.take(message("1"), ["a"])) == [("a", "1")]
    assert bodies(hand.take(message("2"), ["b"])) == [("b", "2")]
    hand.take(message("3"), ["a"])
    assert hand.requeue("a", message("1"), ME) == []
    assert hand.pools.counts["requeued"] == 1
    assert bodies(hand.credit("a", 9)) == [("a", "3"), ("a", "1")]


def test_requeue_by_one_alone_comes_back_to_it() -> None:
    hand = made("a", credit=2)
    hand.take(message("1"), ["a"])
    assert bodies(hand.requeue("a", message("1"), ME)) == [("a", "1")]


def test_requeue_after_the_end_goes_to_the_pool_that_it_was_in() -> None:
    hand = made("a", "b")
    hand.take(message("1"), ["a"])
    hand.close("a")
    assert bodies(hand.requeue("a", message("1"), ME)) == [("b", "1")]
    hand.close("b")
    assert hand.requeue("a", message("2"), ME) == []
    assert hand.pools.counts["lost_pool"] == 1


def test_nobody_requeues_for_others() -> None:
    hand = made("a")
    assert hand.requeue("a", message("1"), YOU) is None
    assert hand.requeue("x", message("1"), ME) is None
    hand.close("a")
    assert hand.requeue("a", message("1"), YOU) is None


def test_nobody_requeues_where_it_does_not_listen() -> None:
    hand = made("a")
    join(hand, "b", keys=(OTHER,))
    assert hand.requeue("a", message("1", OTHER), ME) is None
    hand.close("a")
    assert hand.requeue("a", message("1", OTHER), ME) is None
    known = hand.pools.known_of("a", ME, KEY)
    assert known is not None
    assert (known.pool, known.keys) == (None, (KEY,))
    assert hand.pools.known_of("a", YOU, KEY) is None
    assert hand.pools.counts["requeued"] == 0


def test_the_stamp_of_what_was_handed_out_is_remembered_once() -> None:
    hand = made("a")
    hand.take(message("1", stamp=b"who"), ["a"])
    assert hand.pools.stamp_of("a", b"1", YOU) is None
    assert hand.pools.stamp_of("a", b"1", ME) == b"who"
    assert hand.pools.stamp_of("a", b"1", ME) is None
    assert hand.pools.stamp_of("x", b"1", ME) is None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = made("a", credit=1)
    for number in range(HANDED_SPARE + 50):
        hand.take(message(str(number)), ["a"])
        hand.credit("a", 1)
    member = hand.listener("a")
    assert len(member.handed) == HANDED_SPARE + 1
    monkeypatch.setattr(module, "ENDED_MAX", 2)
    for name in "bcde":
        join(hand, name)
        hand.close(name)
    assert hand.take(message("x"), ["b"]) == []
    assert hand.pools.counts["lost_unknown"] == 1
    assert bodies(hand.take(message("x"), ["e"])) == [("a", "x")]


def test_told_and_drop_all() -> None:
    hand = made("a", credit=1)
    for name in "123":
        hand.take(message(name), ["a"])
    assert hand.pools.status() == [
        {
            "listener": "a",
            "pool": None,
            "attached": True,
            "credit": 0,
            "waiting": 2,
            "unconfirmed": 1,
        }
    ]
    assert hand.pools.drop_all() == 2
    assert hand.pools.waiting() == 0
    assert len(hand.pools) == 1
    assert "a" in hand.pools
