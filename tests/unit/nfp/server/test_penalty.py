"""Invalid messages count, are forgiven slowly, and cost the connection."""

from broker.nfp.server.penalty import FORGIVE_S, Offences, Penalty


def test_a_flood_is_cut():
    offences, penalty = Offences(3), Penalty()
    assert [offences.add(penalty, "header", 1.0) for _ in range(4)] == [False, False, False, True]
    assert (offences.total, offences.cut, offences.by_kind["header"]) == (4, 1, 4)


def test_a_rare_flaw_is_not():
    offences, penalty = Offences(1), Penalty()
    assert not any(offences.add(penalty, "uuid", FORGIVE_S * turn) for turn in range(1, 1000))


def test_connections_do_not_share_their_account():
    offences, one, other = Offences(1), Penalty(), Penalty()
    assert not offences.add(one, "short", 0.0)
    assert not offences.add(other, "short", 0.0)
    assert offences.add(one, "short", 0.0)
