"""Stamps for any credentials: what no policy may ever let through."""

from hypothesis import given
from hypothesis import strategies as st

from broker.identity import USERID_UNKNOWN, Credentials, Role
from broker.ingress.stamping import StampPolicy

U32 = st.integers(0, 0xFFFFFFFF)
CREDENTIALS = st.builds(Credentials, U32 | st.just(USERID_UNKNOWN), U32 | st.integers(0, 15))
GUESTS = st.builds(Credentials, st.integers(0, USERID_UNKNOWN - 1), st.sampled_from((2, 8, 10)))


def stamped(policy, received):
    got = policy.stamp(received.encode())
    return Credentials(int.from_bytes(got[:4], "big"), int.from_bytes(got[4:], "big"))


@given(GUESTS, st.booleans(), CREDENTIALS)
def test_a_guest_is_what_it_is_whatever_it_says(cred, local, received):
    policy = StampPolicy(cred, pass_through=False, local=local)
    assert stamped(policy, received) == (cred.userid, cred.rolemask | (Role.LOCAL if local else 0))


@given(st.integers(0, USERID_UNKNOWN - 1), st.booleans(), CREDENTIALS)
def test_an_owner_keeps_what_is_valid_and_gets_what_is_missing(uid, local, received):
    got = stamped(StampPolicy(Credentials(uid, Role.OWNER), pass_through=True, local=local), received)
    assert got.userid == (uid if received.userid == USERID_UNKNOWN else received.userid)
    kept = received.rolemask if local else received.rolemask & ~Role.LOCAL  # which no one has who is not here
    assert got.rolemask == (kept if received.rolemask else (5 if local else 1))


@given(U32, CREDENTIALS)
def test_a_tree_hop_takes_local_and_nothing_else(owner, received):
    assert stamped(StampPolicy.tree(owner), received) == (received.userid, received.rolemask & ~Role.LOCAL)


@given(CREDENTIALS, st.booleans(), st.booleans(), st.booleans(), CREDENTIALS)
def test_a_stamp_is_stable(cred, pass_through, local, hop, received):
    """What was stamped once is stamped the same again: disconnect notices pass twice."""
    cred = Credentials(cred.userid, cred.rolemask & ~Role.LOCAL)
    policy = StampPolicy(cred, pass_through=pass_through, local=local, tree_hop=hop)
    once = stamped(policy, received)
    if once.rolemask and once.userid != USERID_UNKNOWN:
        assert stamped(policy, once) == once
