"""Who may answer, and how long."""

from types import SimpleNamespace

from broker.oslo.frames import ID_BYTES
from broker.oslo.proxy.pending import GRACE_S, GivenCall, PendingReplies
from tests.unit.routing.operations import bytecodes


def link(rid=b"a", origin="localhost:1:1:1"):
    return SimpleNamespace(rid=rid, origin=origin)


def key(route, number=0):
    return route + number.to_bytes(ID_BYTES)


K = key(b"\0k")


def test_only_the_link_that_was_asked_may_answer():
    pending, asked = PendingReplies(10), link()
    pending.put(K, GivenCall(asked, 5.0))
    assert pending.fits(K, asked) is pending.calls[K]
    assert pending.fits(K, link(b"b")) is None
    assert pending.fits(K, link(origin="localhost:1:1:2")) is None
    assert pending.fits(key(b"other"), asked) is None


def test_a_link_that_was_forgotten_meanwhile_may_still_answer():
    pending = PendingReplies(10)
    pending.put(K, GivenCall(link(), 5.0))
    assert pending.fits(K, link()) is not None


def test_entries_end_a_grace_after_their_time():
    pending = PendingReplies(10)
    pending.put(K, GivenCall(link(), 5.0))
    assert not pending.stale(K, 5.0)
    assert pending.stale(K, 5.1)
    assert pending.stale(key(b"unknown"), 0.0)
    assert pending.expire(5.0 + GRACE_S) == []
    assert [key for key, _call in pending.expire(5.1 + GRACE_S)] == [K]
    assert len(pending) == 0


def test_what_a_link_was_to_answer_is_forgotten_with_it():
    pending, one, two = PendingReplies(10), link(), link(b"b")
    for number, asked in enumerate((one, two, one)):
        pending.put(key(b"c", number), GivenCall(asked, 5.0))
    assert pending.forget(one) == 2
    assert list(pending.calls) == [key(b"c", 1)]
    assert pending.held == {b"c": {key(b"c", 1)}}


def test_a_link_that_ends_costs_what_it_was_to_answer():
    costs = []
    for count in (10, 5000):
        pending, one, many = PendingReplies(10_000), link(), link(b"b")
        pending.put(key(b"c"), GivenCall(many, 5.0))
        pending.put(key(b"c"), GivenCall(one, 5.0))
        for number in range(1, count):
            pending.put(key(b"c", number), GivenCall(many, 5.0))
        costs.append(bytecodes(lambda: pending.forget(one)))  # noqa: B023 - called at once
        assert len(pending) == count - 1
        assert pending.forget_client(b"c") == count - 1
        assert not pending.owed
    assert costs[1] <= costs[0] + 20


def fill(pending, route, due_s=5.0):
    """How many find room."""
    count = 0
    while pending.has_room(route):
        pending.put(key(route, count), GivenCall(link(), due_s))
        count += 1
    return count


def test_nobody_has_more_than_is_left_for_others():
    pending = PendingReplies(1000)
    assert [fill(pending, b"%d" % client) for client in range(4)] == [500, 250, 125, 63]
    assert pending.has_room(b"new")
    assert pending.end(key(b"0", 7)) is not None
    assert pending.end(key(b"0", 7)) is None
    assert not pending.has_room(b"0")
    for number in range(500):
        pending.end(key(b"0", number))
    assert fill(pending, b"new") > 250
    assert b"0" not in pending.held


def test_one_place_is_one_place():
    pending = PendingReplies(1)
    assert fill(pending, b"a") == 1
    assert not pending.has_room(b"b")


def test_clients_that_are_gone_leave_nothing():
    pending = PendingReplies(100)
    pending.put(key(b"a", 1), GivenCall(link(), 5.0))
    pending.put(key(b"a", 2), GivenCall(link(), 500.0))
    pending.put(key(b"b", 1), GivenCall(link(), 5.0))
    assert pending.lasting(5.0) == [b"a"]
    assert pending.forget_client(b"a") == 2
    assert pending.forget_client(b"a") == 0
    assert (len(pending), list(pending.held)) == (1, [b"b"])
    pending.expire(5.1 + GRACE_S)
    assert (len(pending), pending.held) == (0, {})
