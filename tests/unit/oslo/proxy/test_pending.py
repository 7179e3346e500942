"""Who may answer, and how long."""

from types import SimpleNamespace

from broker.oslo.frames import Kind
from broker.oslo.proxy.pending import GRACE_S, Call, Pending


def link(rid=b"a", origin="localhost:1:1:1"):
    return SimpleNamespace(rid=rid, origin=origin)


def test_only_the_link_that_was_asked_may_answer():
    pending, asked = Pending(10), link()
    pending.calls[b"k"] = Call(asked, 5.0, Kind.CALL)
    assert pending.fits(b"k", asked) is pending.calls[b"k"]
    assert pending.fits(b"k", link(b"b")) is None
    assert pending.fits(b"k", link(origin="localhost:1:1:2")) is None
    assert pending.fits(b"other", asked) is None


def test_a_link_that_was_forgotten_meanwhile_may_still_answer():
    pending = Pending(10)
    pending.calls[b"k"] = Call(link(), 5.0, Kind.CALL)
    assert pending.fits(b"k", link()) is not None


def test_entries_end_a_grace_after_their_time():
    pending = Pending(10)
    pending.calls[b"k"] = Call(link(), 5.0, Kind.CALL)
    assert not pending.stale(b"k", 5.0)
    assert pending.stale(b"k", 5.1)
    assert pending.stale(b"unknown", 0.0)
    assert pending.expire(5.0 + GRACE_S) == []
    assert [key for key, _call in pending.expire(5.1 + GRACE_S)] == [b"k"]
    assert len(pending) == 0


def test_what_a_link_was_to_answer_is_forgotten_with_it():
    pending, one, two = Pending(10), link(), link(b"b")
    pending.calls.update({b"1": Call(one, 5.0, 1), b"2": Call(two, 5.0, 1), b"3": Call(one, 5.0, 1)})
    assert pending.forget(one) == 2
    assert list(pending.calls) == [b"2"]
