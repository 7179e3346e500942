import pytest

from broker.oslo.directory.state import LOCAL_OWNER, Replica, Server
from broker.oslo.records import Record
from tests.unit.oslo.directory.clouds import gone, rpc, state, states, welcome

CALL = frozenset({"call"})
BOTH = frozenset({"call", "cast"})


@pytest.fixture
def replica():
    return Replica()


def fill(replica, source, *each, now=0.0, incarnation=1):
    replica.feed(source, welcome(incarnation), now)
    replica.feed(source, states(*each, complete=True), now)


def test_nothing_is_known_at_first(replica):
    assert replica.servers("nova", "compute") == ()
    assert replica.fanout_nodes("nova", "compute") == ()
    assert dict(replica.pools("nova", "compute.info")) == {}
    assert replica.state("n1", "call") is None
    assert not replica.synced
    assert replica.version == 0


def test_servers_are_sorted_by_server_and_say_how_they_are_reached(replica):
    fill(
        replica,
        "a",
        state("n2", "call", records=[rpc("l3", server="b"), rpc("l1", server="a")]),
        state("n1", "call", records=[rpc("l2", server="a")]),
        state("n1", "cast", records=[rpc("l2", server="a")]),
    )
    assert replica.servers("nova", "compute") == (
        Server("a", "l1", "n2", CALL),
        Server("a", "l2", "n1", BOTH),
        Server("b", "l3", "n2", CALL),
    )
    assert replica.servers("cinder", "compute") == ()
    assert replica.synced


def test_a_pipeline_that_ends_leaves_the_other(replica):
    both = rpc("l1", server="a")
    fill(replica, "a", state("n1", "call", records=[both]), state("n1", "cast", records=[both]))
    replica.feed("a", gone("n1", "cast"), 1.0)
    assert replica.servers("nova", "compute") == (Server("a", "l1", "n1", CALL),)
    replica.feed("a", gone("n1", "call"), 1.0)
    assert replica.servers("nova", "compute") == ()


def test_fanout_nodes_and_pools(replica):
    notice = [
        Record("nova", "t.info", "", each, pool) for each, pool in (("l2", None), ("l1", None), ("l3", "p"))
    ]
    fill(
        replica,
        "a",
        state("n2", "fanout", records=[Record("nova", "t")]),
        state("n1", "fanout", records=[Record("nova", "t"), Record("nova", "u")]),
        state("n1", "notify", records=notice),
        state("n0", "notify", records=[Record("nova", "t.info", "", "l9", None)]),
    )
    assert replica.fanout_nodes("nova", "t") == ("n1", "n2")
    assert dict(replica.pools("nova", "t.info")) == {
        None: (("n0", "l9"), ("n1", "l1"), ("n1", "l2")),
        "p": (("n1", "l3"),),
    }
    with pytest.raises(TypeError):
        replica.pools("nova", "t.info")["x"] = ()
    replica.feed("a", states(state("n1", "notify", version=2)), 1.0)
    replica.feed("a", states(state("n1", "fanout", version=2, records=[Record("nova", "u")])), 1.0)
    assert replica.fanout_nodes("nova", "t") == ("n2",)
    assert dict(replica.pools("nova", "t.info")) == {None: (("n0", "l9"),)}


def test_a_newer_state_replaces_the_one_before(replica):
    fill(replica, "a", state(records=[rpc("l1"), rpc("l2")]))
    replica.feed("a", states(state(version=2, records=[rpc("l3"), rpc("l2")])), 1.0)
    assert [each.listener for each in replica.servers("nova", "compute")] == ["l2", "l3"]
    replica.feed("a", states(state(version=3, records=[rpc("l4", topic="other")])), 1.0)
    assert replica.servers("nova", "compute") == ()
    assert [each.listener for each in replica.servers("nova", "other")] == ["l4"]


def test_a_source_begins_with_its_welcome(replica):
    replica.feed("a", states(state(records=[rpc("l1")]), complete=True), 0.0)
    assert not replica.synced
    assert replica.servers("nova", "compute") == ()


def test_callbacks_come_once_for_what_changed_and_never_otherwise(replica):
    calls, seen = [], []
    replica.on_change.append(lambda: calls.append(replica.version))
    replica.on_state.append(lambda before, after: seen.append((before, after)))
    one, two = state(records=[rpc("l1")]), state("n2", records=[rpc("l2")])
    fill(replica, "a", one, two)
    assert calls == [1]
    assert seen == [(None, one), (None, two)]
    version = replica.version
    replica.feed("a", states(one), 1.0)
    replica.feed("b", welcome(), 1.0)
    replica.feed("b", states(one), 1.0)
    replica.tick(2.0)
    assert replica.version == version
    grown = state(version=2, records=[rpc("l1"), rpc("l3")])
    replica.feed("a", states(grown), 2.0)
    assert seen[2:] == [(one, grown)]
    replica.feed("a", gone("n2"), 2.0)
    assert seen[3:] == [(two, None)]
    assert replica.version == version + 2


def test_values_are_replaced_not_changed(replica):
    fill(replica, "a", state(records=[rpc("l1")]), state("n1", "fanout", records=[Record("nova", "t")]))
    servers, nodes = replica.servers("nova", "compute"), replica.fanout_nodes("nova", "t")
    replica.feed("a", states(state("n2", records=[rpc("l2")])), 1.0)
    assert replica.fanout_nodes("nova", "t") is nodes  # not touched
    assert len(servers) == 1
    assert len(replica.servers("nova", "compute")) == 2


def test_many_changes_of_one_topic_and_few_lead_to_the_same(replica):
    records = [rpc(f"{at:03}", server=f"s{at % 7}") for at in range(300)]
    fill(replica, "a", state(records=records))
    single = Replica()
    fill(single, "a", state())
    for at in range(300):
        single.feed("a", states(state(version=at + 2, records=records[: at + 1])), 1.0)
    assert single.servers("nova", "compute") == replica.servers("nova", "compute")
    replica.feed("a", states(state(version=2, records=records[290:])), 1.0)
    for at in range(290):
        single.feed("a", states(state(version=at + 400, records=records[at + 1 :])), 1.0)
    assert single.servers("nova", "compute") == replica.servers("nova", "compute")
    assert len(replica.servers("nova", "compute")) == 10


def test_of_its_own_node_only_what_was_announced_here_is_believed():
    replica = Replica("n1", 5.0)
    fill(replica, "a", state("n1", incarnation=9, records=[rpc("wrong")]), state("n2", records=[rpc("l2")]))
    replica.announce(LOCAL_OWNER, state("n1", records=[rpc("l1")]), 0.0)
    replica.feed("a", gone("n1", incarnation=9), 1.0)
    replica.source_lost("a")
    replica.feed("a", gone("n1", incarnation=9), 3.0)
    assert [each.listener for each in replica.servers("nova", "compute")] == ["l1", "l2"]
    assert replica.status()["sources"]["a"]["states"] == 1


# ---------------------------------------------------------------- several sources


def test_the_newest_of_all_sources_is_in_force(replica):
    fill(replica, "a", state(version=2, records=[rpc("new")]))
    fill(replica, "b", state(version=1, records=[rpc("old")]))
    assert [each.listener for each in replica.servers("nova", "compute")] == ["new"]
    replica.feed("b", states(state(incarnation=2, records=[rpc("newer")])), 1.0)
    assert [each.listener for each in replica.servers("nova", "compute")] == ["newer"]


def test_a_lost_source_takes_nothing_away(replica):
    fill(replica, "a", state(records=[rpc("l1")]))
    replica.source_lost("a")
    for now in range(2, 1000):
        replica.tick(float(now))
    assert [each.listener for each in replica.servers("nova", "compute")] == ["l1"]
    assert replica.synced


def test_a_source_that_still_vouches_keeps_a_state(replica):
    fill(replica, "a", state(records=[rpc("l1")]))
    fill(replica, "b", state(records=[rpc("l1")]))
    replica.feed("a", gone(), 1.0)
    assert replica.state("n1", "call") is not None
    replica.feed("b", gone(), 1.0)
    assert replica.state("n1", "call") is None


@pytest.mark.parametrize("lost_first", [True, False])
def test_a_lost_source_does_not_vouch_for_what_another_ended(replica, lost_first):
    for source in ("a", "b"):
        fill(replica, source, state(records=[rpc("l1")]), state("n2", records=[rpc("l2")]))
    if lost_first:
        replica.source_lost("b")
        replica.feed("a", gone(why="lease ended"), 2.0)
    else:
        replica.feed("a", gone(why="lease ended"), 1.0)
        replica.tick(5.0)
        replica.source_lost("b")
    assert [each.listener for each in replica.servers("nova", "compute")] == ["l2"]


def test_an_older_incarnation_that_ends_does_not_end_a_newer_one(replica):
    fill(replica, "a", state(incarnation=5, records=[rpc("l1")]))
    replica.feed("a", gone(incarnation=4), 1.0)
    assert replica.state("n1", "call") is not None
    replica.feed("a", gone(incarnation=5), 1.0)
    assert replica.state("n1", "call") is None


def test_a_restarted_empty_directory_has_a_lease_of_grace(replica):
    fill(replica, "a", state(records=[rpc("l1")]), state("n2", records=[rpc("l2")]))
    replica.source_lost("a")
    fill(replica, "a", now=10.0, incarnation=2)
    replica.tick(14.9)
    assert len(replica.servers("nova", "compute")) == 2
    replica.feed("a", states(state(records=[rpc("l1")])), 14.9)
    replica.tick(15.1)
    assert [each.listener for each in replica.servers("nova", "compute")] == ["l1"]
    replica.tick(100.0)
    assert [each.listener for each in replica.servers("nova", "compute")] == ["l1"]


def test_the_grace_begins_anew_with_each_restart_and_not_with_each_snapshot(replica):
    fill(replica, "a", state(records=[rpc("l1")]))
    fill(replica, "a", now=10.0, incarnation=2)
    fill(replica, "a", now=14.0, incarnation=3)
    replica.tick(16.0)
    assert replica.state("n1", "call") is not None
    fill(replica, "a", now=18.0, incarnation=3)
    replica.tick(19.5)
    assert replica.state("n1", "call") is None


def test_what_is_not_listed_any_more_is_kept_by_no_lost_source_either(replica):
    fill(replica, "a", state(records=[rpc("l1")]))
    fill(replica, "b", state(records=[rpc("l1")]))
    replica.source_lost("b")
    fill(replica, "a", now=2.0)
    replica.tick(8.0)
    assert replica.state("n1", "call") is None


def test_a_forgotten_source_counts_no_more(replica):
    fill(replica, "a", state(records=[rpc("l1")]))
    replica.forget("a")
    assert replica.state("n1", "call") is None
    replica.forget("never")


# ---------------------------------------------------------------- limits


def test_what_does_not_fit_is_counted_and_not_asked_for_for_ever():
    replica = Replica(states_max=2, records_max=3)
    fill(replica, "a", *(state(f"n{at}", records=[rpc(f"l{at}")]) for at in range(4)))
    assert len(replica.states()) == 2
    assert replica.counts["overflow"] == 2
    replica.feed("a", states(state("n1", version=2, records=[rpc("x"), rpc("y"), rpc("z")])), 1.0)
    assert replica.counts["overflow"] == 3
    assert replica.status()["sources"]["a"]["states"] == 1


def test_endings_of_what_was_never_known_do_not_pile_up():
    replica = Replica(states_max=10)
    fill(replica, "a")
    for at in range(100):
        replica.feed("a", gone(f"n{at}"), 1.0)
    assert len(replica._ended) <= 10
    replica.tick(100.0)
    assert len(replica._ended) == 0


def test_sources_share_equal_states(replica):
    fill(replica, "a", state(records=[rpc("l1"), rpc("l2")]))
    fill(replica, "b", state(records=[rpc("l1"), rpc("l2")]))
    shared = replica.state("n1", "call")
    assert all(replica._sources[name].claims["n1", "call"].state is shared for name in "ab")


def test_a_source_that_catches_up_shares_again_and_changes_nothing(replica):
    old, new = state(records=[rpc("l1")]), state(version=2, records=[rpc("l1"), rpc("l2")])
    fill(replica, "a", old)
    fill(replica, "b", new)
    seen = []
    replica.on_state.append(lambda *told: seen.append(told))
    replica.feed("a", states(state(version=2, records=[rpc("l1"), rpc("l2")])), 1.0)
    assert seen == []
    assert replica._sources["a"].claims["n1", "call"].state is replica.state("n1", "call")
    assert [replica._sources[name].records for name in "ab"] == [2, 2]


def test_a_source_without_room_for_a_state_lets_go_of_it_and_others_do_not():
    replica = Replica(records_max=3)
    fill(replica, "a", state(records=[rpc("l1")]))
    fill(replica, "b", state(records=[rpc("l1")]), state("n2", records=[rpc("l2"), rpc("l3")]))
    for source in ("a", "b"):
        replica.feed(source, states(state(version=2, records=[rpc("l1"), rpc("l4")])), 1.0)
    assert [each.listener for each in replica.servers("nova", "compute")] == ["l1", "l2", "l3", "l4"]
    assert [replica._sources[name].records for name in "ab"] == [2, 2]
    assert replica.counts["overflow"] == 1


def test_many_pools_nodes_and_listeners_at_once_and_one_by_one(replica):
    notices = [Record("nova", "t.info", "", f"l{at:03}", None if at % 2 else "p") for at in range(300)]
    nodes = [state(f"n{at:03}", "fanout", records=[Record("nova", "t")]) for at in range(100)]
    fill(replica, "a", state("n1", "notify", records=notices), *nodes)
    single = Replica()
    fill(single, "a", state("n1", "notify"))
    for at in range(300):
        single.feed("a", states(state("n1", "notify", version=at + 2, records=notices[299 - at :])), 1.0)
    for each in reversed(nodes):
        single.feed("a", states(each), 1.0)
    assert dict(single.pools("nova", "t.info")) == dict(replica.pools("nova", "t.info"))
    assert (
        single.fanout_nodes("nova", "t")
        == replica.fanout_nodes("nova", "t")
        == tuple(each.node for each in nodes)
    )
    replica.feed("a", states(state("n1", "notify", version=2, records=notices[299:])), 1.0)
    assert dict(replica.pools("nova", "t.info")) == {None: (("n1", "l299"),)}
