"""Pools of listeners: one delivery for each pool and message, within credit, bounded, in order, all losses counted."""

import pytest

from broker.oslo.proxy import pools as module
from broker.oslo.proxy.credited_queue import CREDIT_MAX
from broker.oslo.proxy.pool_member import HANDED_SPARE, Handout, Notification
from broker.oslo.proxy.pools import Pools

KEY = ("openstack", "events.info")
OTHER = ("openstack", "events.error")
ME, YOU = object(), object()


def message(name: str, key: tuple[str, str] = KEY, size: int = 10, stamp: bytes = b"stamp") -> Notification:
    return Notification(key, name.encode(), stamp, (b"head", name.encode()), size)


def bodies(handouts: list[Handout] | None) -> list[tuple[str, str]]:
    assert handouts is not None
    return [(member.id, message.frames[1].decode()) for member, message, _kept in handouts]


def made(
    *listeners: str, credit: int = 10, msgs: int = 100, size: int = 10_000, pool: str | None = None
) -> Pools:
    pools = Pools(msgs, size)
    for listener in listeners:
        join(pools, listener, pool=pool, credit=credit)
    return pools


def join(
    pools: Pools,
    listener: str,
    pool: str | None = None,
    credit: int = 10,
    keys: tuple[tuple[str, str], ...] = (KEY,),
) -> None:
    pools.open(listener, pool, keys, credit, ME)
    assert pools.attach(listener) == []


def test_the_chosen_listener_gets_it() -> None:
    pools = made("a", "b")
    assert bodies(pools.take(message("1"), ["b"])) == [("b", "1")]
    assert bodies(pools.take(message("2"), ["a"])) == [("a", "2")]
    assert pools.counts["handed"] == 2
    assert pools.counts["rechosen"] == 0


def test_every_pool_gets_its_copy_and_only_one() -> None:
    pools = made("a", "b")
    join(pools, "c", pool="billing")
    assert bodies(pools.take(message("1"), ["a", "b", "c", "a"])) == [("a", "1"), ("c", "1")]
    assert pools.counts["doubled"] == 2


def test_first_and_last_of_a_key() -> None:
    pools = Pools(10, 1000)
    assert pools.open("a", None, [KEY, OTHER, KEY], 1, ME) == [KEY, OTHER]
    assert pools.open("b", "billing", [KEY], 1, ME) == []
    assert dict(pools.topics()) == {KEY: 2, OTHER: 1}
    assert pools.close("a") == ([], [OTHER])
    assert pools.listened(KEY)
    assert not pools.listened(OTHER)
    assert pools.close("b") == ([], [KEY])
    assert pools.close("b") == ([], [])


def test_one_id_is_open_once() -> None:
    pools = made("a")
    with pytest.raises(ValueError, match="open already"):
        pools.open("a", None, [KEY], 1, ME)


def test_what_is_beyond_credit_waits_and_credit_hands_it_out_in_order() -> None:
    pools = made("a", credit=1)
    assert bodies(pools.take(message("1"), ["a"])) == [("a", "1")]
    for name in "234":
        assert pools.take(message(name), ["a"]) == []
    assert pools.waiting() == 3
    assert bodies(pools.credit("a", 2)) == [("a", "2"), ("a", "3")]
    assert bodies(pools.credit("a", 5)) == [("a", "4")]
    assert bodies(pools.take(message("5"), ["a"])) == [("a", "5")]


def test_credit_is_limited_and_for_nobody_is_nothing() -> None:
    pools = made("a", credit=1 << 30)
    member = pools.member("a")
    assert member is not None
    assert member.credit == CREDIT_MAX
    pools.credit("a", 1 << 31)
    assert member.credit == CREDIT_MAX
    assert pools.credit("x", 5) == []


def test_nothing_is_handed_out_before_the_listener_can_be_reached() -> None:
    pools = Pools(10, 1000)
    pools.open("a", None, [KEY], 5, ME)
    assert pools.take(message("1"), ["a"]) == []
    assert bodies(pools.attach("a")) == [("a", "1")]
    assert pools.attach("x") == []


def test_what_could_not_be_sent_waits_as_before_and_goes_to_others() -> None:
    pools = made("a", "b", credit=2)
    kept = pools.take(message("1"), ["a"])
    for name in "23":
        kept += pools.take(message(name), ["a"])
    assert bodies(kept) == [("a", "1"), ("a", "2")]
    pools.undo(kept)
    assert (pools.counts["handed"], pools.waiting()) == (0, 3)
    assert pools.take(message("4"), ["a"]) == pools.credit("a", 1) == [], "it is gone"
    handouts, _last = pools.close("a")
    assert bodies(handouts) == [("b", "1"), ("b", "2")]
    assert bodies(pools.credit("b", 2)) == [("b", "3"), ("b", "4")]
    assert pools.counts["unconfirmed"] == 0


def test_unconfirmed_bytes_are_limited_but_one_message_always_fits() -> None:
    pools = made("a", credit=10, size=100)
    assert bodies(pools.take(message("huge", size=500), ["a"])) == [("a", "huge")]
    assert pools.take(message("1", size=60), ["a"]) == []
    assert bodies(pools.credit("a", 1)) == [("a", "1")]
    assert bodies(pools.take(message("2", size=40), ["a"])) == [("a", "2")]
    assert pools.take(message("3", size=1), ["a"]) == []


def test_a_full_queue_gives_to_another_of_the_pool_then_drops_counted() -> None:
    pools = made("a", "b", credit=0, msgs=2)
    join(pools, "c", pool="billing", credit=0)
    for name in "1234":
        assert pools.take(message(name), ["a"]) == []
    assert pools.counts["rechosen"] == 2
    assert pools.take(message("5"), ["a"]) == []
    assert pools.counts["lost_full"] == 1
    assert bodies(pools.credit("a", 9)) == [("a", "1"), ("a", "2")]
    assert bodies(pools.credit("b", 9)) == [("b", "3"), ("b", "4")]


def test_a_queue_is_bounded_in_bytes() -> None:
    pools = made("a", credit=0, size=100)
    for _ in range(4):
        pools.take(message("x", size=60), ["a"])
    assert pools.waiting() == 2, "the one that makes it full still fits"
    assert pools.counts["lost_full"] == 2
    member = pools.member("a")
    assert member is not None
    assert member.filled == 1.2
    assert pools.waited == {member}


def test_a_choice_that_left_is_made_anew_in_its_pool_in_turn() -> None:
    pools = made("a", "b", "c")
    join(pools, "z", pool="billing")
    pools.close("a")
    got = [bodies(pools.take(message(str(number)), ["a"])) for number in range(4)]
    assert got == [[("b", "0")], [("c", "1")], [("b", "2")], [("c", "3")]]
    assert pools.counts["rechosen"] == 4


def test_a_choice_nobody_knows_is_lost_counted() -> None:
    pools = made("a")
    assert pools.take(message("1"), ["x"]) == []
    assert pools.counts["lost_unknown"] == 1
    pools.close("a")
    assert pools.take(message("2"), ["a"]) == []
    assert pools.counts["lost_pool"] == 1


def test_a_chosen_listener_of_another_topic_is_replaced_by_one_of_this_topic() -> None:
    pools = made("a")
    join(pools, "b", keys=(OTHER,))
    assert bodies(pools.take(message("1", OTHER), ["a"])) == [("b", "1")]
    join(pools, "c", pool="billing")
    assert pools.take(message("2", OTHER), ["c"]) == []
    assert pools.counts["lost_pool"] == 1


def test_what_waits_for_one_that_ends_goes_to_others_in_front_in_order() -> None:
    pools = made("a", "b", credit=0)
    for name in "123":
        pools.take(message(name), ["a"])
    pools.take(message("old"), ["b"])
    assert pools.close("a") == ([], [])
    assert pools.counts["moved"] == 3
    assert bodies(pools.credit("b", 9)) == [("b", "1"), ("b", "2"), ("b", "3"), ("b", "old")]


def test_what_waits_for_one_that_ends_is_handed_out_at_once_where_there_is_credit() -> None:
    pools = made("b", "c")
    join(pools, "a", credit=0)
    for name in "1234":
        pools.take(message(name), ["a"])
    handouts, last = pools.close("a")
    assert last == []
    got = bodies(handouts)
    assert sorted(name for _listener, name in got) == ["1", "2", "3", "4"]
    for listener in "bc":
        own = [name for each, name in got if each == listener]
        assert own == sorted(own)
        assert len(own) == 2


def test_what_was_handed_out_is_not_handed_out_again() -> None:
    pools = made("a", "b")
    pools.take(message("1"), ["a"])
    pools.take(message("2"), ["a"])
    pools.credit("a", 1)
    assert pools.close("a") == ([], [])
    assert pools.counts["unconfirmed"] == 1


def test_what_waits_for_the_last_of_a_pool_is_lost_counted() -> None:
    pools = made("a", credit=0)
    join(pools, "c", pool="billing")
    pools.take(message("1"), ["a"])
    assert pools.close("a") == ([], [])
    assert pools.counts["lost_pool"] == 1


def test_requeue_goes_to_the_end_of_the_next_of_the_pool() -> None:
    pools = made("a", "b", credit=1)
    join(pools, "c", pool="billing")
    assert bodies(pools.take(message("1"), ["a"])) == [("a", "1")]
    assert bodies(pools.take(message("2"), ["b"])) == [("b", "2")]
    pools.take(message("3"), ["a"])
    assert pools.requeue("a", message("1"), ME) == []
    assert pools.counts["requeued"] == 1
    assert bodies(pools.credit("a", 9)) == [("a", "3"), ("a", "1")]


def test_requeue_by_one_alone_comes_back_to_it() -> None:
    pools = made("a", credit=2)
    pools.take(message("1"), ["a"])
    assert bodies(pools.requeue("a", message("1"), ME)) == [("a", "1")]


def test_requeue_after_the_end_goes_to_the_pool_that_it_was_in() -> None:
    pools = made("a", "b")
    pools.take(message("1"), ["a"])
    pools.close("a")
    assert bodies(pools.requeue("a", message("1"), ME)) == [("b", "1")]
    pools.close("b")
    assert pools.requeue("a", message("2"), ME) == []
    assert pools.counts["lost_pool"] == 1


def test_nobody_requeues_for_others() -> None:
    pools = made("a")
    assert pools.requeue("a", message("1"), YOU) is None
    assert pools.requeue("x", message("1"), ME) is None
    pools.close("a")
    assert pools.requeue("a", message("1"), YOU) is None


def test_nobody_requeues_where_it_does_not_listen() -> None:
    pools = made("a")
    join(pools, "b", keys=(OTHER,))
    assert pools.requeue("a", message("1", OTHER), ME) is None
    pools.close("a")
    assert pools.requeue("a", message("1", OTHER), ME) is None
    known = pools.known_of("a", ME)
    assert known is not None
    assert (known.pool, known.keys) == (None, (KEY,))
    assert pools.known_of("a", YOU) is None
    assert pools.counts["requeued"] == 0


def test_the_stamp_of_what_was_handed_out_is_remembered_once() -> None:
    pools = made("a")
    pools.take(message("1", stamp=b"who"), ["a"])
    assert pools.stamp_of("a", b"1", YOU) is None
    assert pools.stamp_of("a", b"1", ME) == b"who"
    assert pools.stamp_of("a", b"1", ME) is None
    assert pools.stamp_of("x", b"1", ME) is None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = made("a", credit=1)
    for number in range(HANDED_SPARE + 50):
        pools.take(message(str(number)), ["a"])
        pools.credit("a", 1)
    member = pools.member("a")
    assert member is not None
    assert len(member.handed) == HANDED_SPARE + 1
    monkeypatch.setattr(module, "ENDED_MAX", 2)
    for name in "bcde":
        join(pools, name)
        pools.close(name)
    assert pools.take(message("x"), ["b"]) == []
    assert pools.counts["lost_unknown"] == 1
    assert bodies(pools.take(message("x"), ["e"])) == [("a", "x")]


def test_told_and_drop_all() -> None:
    pools = made("a", credit=1)
    for name in "123":
        pools.take(message(name), ["a"])
    assert pools.status() == [
        {
            "listener": "a",
            "pool": None,
            "topics": [list(KEY)],
            "attached": True,
            "credit": 0,
            "waiting": 2,
            "waiting_bytes": 20,
            "unconfirmed": 1,
        }
    ]
    assert pools.drop_all() == 2
    assert pools.waiting() == 0
    assert len(pools) == 1
    assert "a" in pools
