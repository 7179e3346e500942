import pytest

from broker.oslo.directory.state import FOREIGN, FULL, LOCAL_OWNER, STALE
from broker.oslo.directory.wire import RESTART_S
from broker.oslo.records import Beat
from tests.unit.oslo.directory.clouds import Registry, Told, gone, rpc, state, states

PLACE = ("n1", "call")
GONE = gone("n1", "call", 7, "not known any more")


@pytest.fixture
def registry():
    return Registry(5.0)


def beat(version=1, incarnation=1, node="n1"):
    return Beat(node, "call", incarnation, version)


def test_an_announcement_is_news_once(registry):
    one = state(records=[rpc("l1")])
    assert registry.announce(LOCAL_OWNER, one, 0.0).news == (states(one),)
    assert registry.announce(LOCAL_OWNER, one, 1.0) == Told()
    assert (len(registry), registry.records) == (1, 1)
    assert registry.state(PLACE) == one
    assert registry.states() == (one,)


def test_only_a_newer_one_replaces(registry):
    registry.announce(LOCAL_OWNER, state(incarnation=5, version=3), 0.0)
    assert registry.announce(LOCAL_OWNER, state(incarnation=4, version=9), 1.0).refused == STALE
    assert registry.announce(LOCAL_OWNER, state(incarnation=5, version=2), 1.0).refused == STALE
    assert registry.announce(LOCAL_OWNER, state(incarnation=6, version=1), 1.0).news
    assert registry.counts["stale"] == 2


def test_a_key_that_did_not_announce_it_may_do_nothing_while_the_lease_lives(registry):
    registry.announce("key one", state(incarnation=5, records=[rpc("l1")]), 0.0)
    mine = registry.states()
    answers = [
        registry.announce("key two", state(incarnation=9), 1.0),
        registry.beat("key two", [beat(incarnation=5)], 1.0),
        registry.leave("key two", beat(incarnation=5), 1.0),
    ]
    assert [answer.refused for answer in answers] == [FOREIGN] * 3
    assert [answer.news for answer in answers] == [()] * 3
    assert registry.states() == mine
    assert registry.counts["foreign"] == 3
    assert registry.owner(PLACE) == "key one"


def test_our_own_pipelines_mind_nobody_else(registry):
    foreign = state(incarnation=1 << 62, records=[rpc("evil")])
    registry.announce("key", foreign, 0.0)
    mine = state(incarnation=5, version=2, records=[rpc("l1")])
    assert registry.beat(LOCAL_OWNER, [beat(2, incarnation=5)], 1.0) == Told(unknown=True)
    assert registry.leave(LOCAL_OWNER, beat(2, incarnation=5), 1.0) == Told()
    assert registry.announce(LOCAL_OWNER, mine, 1.0).news == (states(mine),)
    assert (registry.owner(PLACE), registry.records) == (LOCAL_OWNER, 1)
    assert registry.announce("key", foreign, 1.0).refused == FOREIGN
    assert registry.beat(LOCAL_OWNER, [beat(2, incarnation=5)], 2.0) == Told()


def test_after_the_lease_another_key_may(registry):
    registry.tick(0.0)
    registry.announce("key one", state(incarnation=5), 0.0)
    registry.tick(2.0)
    registry.tick(4.0)
    assert registry.tick(5.5)
    assert registry.announce("key two", state(incarnation=1), 5.5).news
    assert registry.owner(PLACE) == "key two"


def test_beats_renew_and_reveal_what_was_missed(registry):
    assert registry.beat(LOCAL_OWNER, [beat()], 0.0).unknown
    registry.announce(LOCAL_OWNER, state(version=3), 0.0)
    assert registry.beat(LOCAL_OWNER, [beat(3)], 1.0) == Told()
    assert registry.beat(LOCAL_OWNER, [beat(4)], 1.0).unknown
    assert registry.beat(LOCAL_OWNER, [beat(1, incarnation=2)], 1.0).unknown
    assert registry.beat(LOCAL_OWNER, [beat(2)], 1.0) == Told()


def test_leases_end_without_beats_and_only_then(registry):
    registry.announce(LOCAL_OWNER, state("n1", incarnation=7), 0.0)
    registry.announce(LOCAL_OWNER, state("n2"), 0.0)
    for now in range(1, 6):
        registry.beat(LOCAL_OWNER, [beat(node="n2")], float(now))
        assert registry.tick(float(now)) == (() if now < 5 else (GONE,))
    assert registry.state(("n2", "call")) is not None
    assert registry.records == 0


def test_who_leaves_is_gone_at_once(registry):
    registry.announce(LOCAL_OWNER, state(incarnation=7, records=[rpc("l1")]), 0.0)
    assert registry.leave(LOCAL_OWNER, beat(incarnation=6), 1.0).news == ()
    assert registry.leave(LOCAL_OWNER, beat(incarnation=7), 1.0).news == (GONE,)
    assert registry.leave(LOCAL_OWNER, beat(incarnation=7), 1.0).news == ()
    assert (len(registry), registry.records) == (0, 0)


def test_a_directory_that_was_stopped_itself_holds_nobody_guilty(registry):
    registry.tick(0.0)
    registry.announce(LOCAL_OWNER, state(), 0.0)
    registry.tick(1.0)
    assert registry.announce("another", state(incarnation=9), 60.0).refused == FOREIGN
    assert registry.tick(60.0) == ()
    registry.tick(62.0)
    assert registry.tick(63.0) == ()
    assert registry.tick(64.5) != ()


def test_limits_refuse_and_forget_nothing():
    registry = Registry(5.0, states_max=2, records_max=3)
    registry.announce("a", state("n1", records=[rpc("l1")]), 0.0)
    registry.announce("a", state("n2", records=[rpc("l2")]), 0.0)
    assert registry.announce("a", state("n3"), 0.0).refused == FULL
    before = registry.states()
    grown = state("n1", version=2, records=[rpc("l1"), rpc("x"), rpc("y")])
    assert registry.announce("a", grown, 0.0).refused == FULL
    assert registry.states() == before
    assert registry.announce("a", state("n1", version=3, records=[rpc("x"), rpc("y")]), 0.0).news
    assert (len(registry), registry.records) == (2, 3)
    assert registry.counts["full"] == 2


def test_what_found_no_room_is_asked_for_once_there_may_be_some():
    registry = Registry(5.0, states_max=2, records_max=3)
    for node, count in (("n1", 1), ("n2", 2)):
        registry.announce("a", state(node, records=[rpc(f"{at}") for at in range(count)]), 0.0)
    assert registry.announce("a", state("n3"), 0.0).refused == FULL
    assert registry.announce("a", state("n1", version=2, records=[rpc("x"), rpc("y")]), 0.0).refused == FULL
    beats = [beat(node="n3"), beat(2)]
    assert registry.beat("a", beats, 1.0) == Told()  # and n1 stays as it was
    assert registry.beat("a", [beat(3)], 1.0).unknown
    assert registry.announce("a", state("n2", version=2, records=[rpc("1")]), 1.0).news
    assert registry.beat("a", [beat(2)], 1.0).unknown
    assert registry.announce("a", state("n1", version=2, records=[rpc("x"), rpc("y")]), 1.0).news
    assert registry.announce("a", state("n3"), 1.0).refused == FULL
    registry.leave("a", beat(node="n2"), 1.0)
    assert registry.beat("a", [beat(node="n3")], 1.0).unknown


def test_a_pipeline_that_is_started_again_is_kept_for_a_restart(registry):
    registry.announce(LOCAL_OWNER, state(incarnation=5, records=[rpc("l1")]), 0.0)
    assert registry.leave("key", beat(incarnation=5), 1.0, returns=True).refused == FOREIGN
    assert registry.leave(LOCAL_OWNER, beat(incarnation=5), 1.0, returns=True) == Told(away=True)
    registry.beat(LOCAL_OWNER, [beat(incarnation=5)], 1.5)  # it was on its way
    for now in range(2, int(RESTART_S)):
        assert registry.tick(float(now)) == ()
    assert registry.state(PLACE) is not None
    registry.announce(LOCAL_OWNER, state(incarnation=6), RESTART_S)
    assert registry.leave(LOCAL_OWNER, beat(incarnation=5), RESTART_S, returns=True) == Told(), (
        "it is back already"
    )
    for now in range(int(RESTART_S), int(RESTART_S) + 6):
        registry.tick(float(now))
    assert registry.state(PLACE) is None, "a lease from then on"
