"""Invalid messages count, are forgiven slowly, and cost the connection."""

from broker.nfp.server.invalid_messages import FORGIVE_S, InvalidCount, InvalidMessages


def test_a_flood_is_cut():
    invalid_messages, invalid = InvalidMessages(3), InvalidCount()
    assert [invalid_messages.add(invalid, "header", 1.0) for _ in range(4)] == [False, False, False, True]
    assert (invalid_messages.total, invalid_messages.cut, invalid_messages.by_kind["header"]) == (4, 1, 4)


def test_a_rare_flaw_is_not():
    invalid_messages, invalid = InvalidMessages(1), InvalidCount()
    assert not any(invalid_messages.add(invalid, "uuid", FORGIVE_S * turn) for turn in range(1, 1000))


def test_connections_do_not_share_their_account():
    invalid_messages, one, other = InvalidMessages(1), InvalidCount(), InvalidCount()
    assert not invalid_messages.add(one, "short", 0.0)
    assert not invalid_messages.add(other, "short", 0.0)
    assert invalid_messages.add(one, "short", 0.0)
