"""A userid for each person of a provider, and never the same for two."""

import asyncio

import pytest

from gateway.identity.store import Store
from gateway.identity.users import Userids
from tests.tables import for_each

BOUNDS = (2**31, 2**31 + 3)
"""So few that people meet."""
WIDE = (2**31, 2**32 - 3)


class Elsewhere:
    """Other gateways: what Redis says."""

    def __init__(self):
        self.held = {}
        self.away = False

    async def take_userid(self, userid, who):
        return None if self.away else self.held.setdefault(userid, who) == who


@pytest.fixture
def stores(tmp_path):
    made = [Store(tmp_path / name) for name in "ab"]
    yield made
    for store in made:
        store.close()


def given(store, who, wanted=None, elsewhere=None, bounds=BOUNDS):
    return asyncio.run(Userids(store, bounds).give(who, wanted, elsewhere))


def test_it_is_the_same_for_good_and_in_a_new_store_too(stores):
    said = given(stores[0], "oidc:corp corp:alice", bounds=WIDE)
    assert said == given(stores[0], "oidc:corp corp:alice", bounds=WIDE) == 4090580080
    assert given(stores[1], "oidc:corp corp:alice", bounds=WIDE) == said
    assert given(stores[0], "oidc:lab corp:alice", bounds=WIDE) != said


def test_two_people_never_have_the_same_one(stores):
    people = [f"oidc:corp corp:{name}" for name in "abcd"]
    assert sorted(given(stores[0], each) for each in people) == list(range(BOUNDS[0], BOUNDS[1] + 1))
    assert given(stores[0], "oidc:corp corp:e") is None
    assert given(stores[0], people[3]) is not None


def test_nor_at_several_gateways(stores):
    elsewhere = Elsewhere()
    found = [given(stores[at % 2], f"oidc:corp corp:{at}", elsewhere=elsewhere) for at in range(4)]
    assert len({*found}) == 4
    assert [
        given(stores[1 - at % 2], f"oidc:corp corp:{at}", elsewhere=elsewhere) for at in range(4)
    ] == found


def test_while_redis_is_away_who_has_none_gets_none(stores):
    elsewhere = Elsewhere()
    mine = given(stores[0], "oidc:corp corp:a", elsewhere=elsewhere)
    elsewhere.away = True
    assert given(stores[0], "oidc:corp corp:a", elsewhere=elsewhere) == mine
    assert given(stores[0], "oidc:corp corp:b", elsewhere=elsewhere) is None


@for_each("elsewhere", [False, True])
def test_what_a_claim_says_is_given_once(stores, elsewhere):
    others = Elsewhere() if elsewhere else None
    assert given(stores[0], "oidc:corp corp:a", 1001, others) == 1001
    other = given(stores[elsewhere], "oidc:corp corp:b", 1001, others)
    assert BOUNDS[0] <= other <= BOUNDS[1]
    assert given(stores[0], "oidc:corp corp:a", 1001, others) == 1001
    own = given(stores[0], "oidc:corp corp:a", None, others)
    assert own not in (1001, other), "the claim counts no more"
