"""What one user may publish while events have to wait: a share, which grows again."""

from broker.wire.message import event
from broker.wire.shares import EVENT_BYTES, SHARE_BYTES, Shares, cost


def test_an_event_counts_for_its_bytes_and_for_its_handling():
    assert cost(event("abc", b"x" * 1000)) == EVENT_BYTES + 4 + 5 + 1000
    assert cost(event("abc")) == EVENT_BYTES + 4


def test_each_user_has_a_share_and_what_is_refused_is_not_counted():
    shares = Shares()
    assert not shares
    assert shares.take(1, SHARE_BYTES - 10)
    assert not shares.take(1, 11)
    assert shares.take(1, 10)
    assert not shares.take(1, 1)
    assert shares.take(2, SHARE_BYTES)
    assert shares


def test_shares_grow_with_time_and_no_further_than_whole():
    shares = Shares()
    assert shares.take(1, SHARE_BYTES)
    shares.grow(0.25)
    assert not shares.take(1, SHARE_BYTES // 4 + 1)
    assert shares.take(1, SHARE_BYTES // 4)
    shares.grow(10.0)
    assert not shares
    assert not shares.take(1, SHARE_BYTES + 1)
    assert shares.take(1, SHARE_BYTES)
