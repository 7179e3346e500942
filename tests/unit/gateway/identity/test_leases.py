"""Connections of a user over all workers."""

import time

import pytest

from gateway.identity.leases import HEARTBEAT_S, LEASE_S, Connections, forget
from gateway.identity.store import Store
from gateway.principal import Denied
from tests.unit.gateway.identity import racers

pytestmark = pytest.mark.interpreter


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def stores(tmp_path, clock):
    made = [Store(tmp_path, wall=lambda: clock[0]) for _ in range(2)]
    yield made
    for store in made:
        store.close()


def test_a_single_process_counts_in_memory():
    counts = Connections(None)
    assert [counts.acquire("alice", 2) for _ in range(3)] == [True, True, False]
    assert counts.acquire("bob", 2)
    counts.release("alice")
    assert counts.total("alice") == 1
    assert counts.acquire("alice", 2)
    counts.close()
    assert counts.total("alice") == 0


def test_who_is_refused_leaves_nothing_behind():
    counts, told = Connections(None), []
    counts.changed = told.append
    assert not counts.acquire("alice", 0)
    assert (counts.all_own(), told) == ({}, [])


def test_a_limit_is_uncertain_while_another_gateway_holds_some():
    """It may have ended this moment, and its clients come here before it is missed."""
    counts = Connections(None)
    counts.elsewhere = {"alice": 2, "bob": 0}.__getitem__
    assert not counts.acquire("alice", 2)
    assert counts.uncertain("alice")
    assert not counts.uncertain("bob")


def test_workers_share_the_limit(stores):
    one, two = map(Connections, stores)
    assert one.acquire("alice", 2)
    assert two.acquire("alice", 2)
    assert not one.acquire("alice", 2)
    assert not two.acquire("alice", 2)
    assert one.total("alice") == two.total("alice") == 2
    assert one.acquire("bob", 2)
    two.release("alice")
    assert one.acquire("alice", 2)
    one.close()
    assert two.total("alice") == 0


def test_a_worker_that_was_not_heard_of_counts_no_more(stores, clock):
    one, two = map(Connections, stores)
    assert one.acquire("alice", 1)
    clock[0] += LEASE_S / 2
    two.heartbeat()
    assert not two.acquire("alice", 1)
    clock[0] += LEASE_S / 2 + 1
    two.heartbeat()
    assert two.acquire("alice", 1)
    assert two.total("alice") == 1


def test_a_limit_is_uncertain_while_a_worker_that_holds_some_is_overdue(stores, clock):
    one, two = map(Connections, stores)
    assert one.acquire("alice", 9)
    assert two.acquire("bob", 9)
    assert not two.uncertain("alice")
    clock[0] += 2 * HEARTBEAT_S
    assert two.uncertain("alice")
    assert not two.uncertain("bob")
    one.heartbeat()
    assert not two.uncertain("alice")
    clock[0] += LEASE_S + 1
    assert not two.uncertain("alice")
    assert not Connections(None).uncertain("alice")


def test_a_worker_that_ended_is_forgotten_and_nobody_else(stores):
    one, two = Connections(stores[0], "0-a"), Connections(stores[1], "1-b")
    assert one.acquire("alice", 9)
    assert two.acquire("alice", 9)
    forget(stores[1], "0-a")
    assert two.total("alice") == 1
    forget(stores[1], None)
    assert two.total("alice") == 0
    two.heartbeat()
    assert two.total("alice") == 1


def test_a_worker_that_stood_still_counts_again_after_its_next_heartbeat(stores, clock):
    one, two = map(Connections, stores)
    assert one.acquire("alice", 9)
    assert one.acquire("alice", 9)
    clock[0] += LEASE_S + 1
    two.heartbeat()
    assert two.total("alice") == 0
    one.heartbeat()
    assert two.total("alice") == 2


def test_a_release_that_could_not_be_written_is_put_right(stores):
    one, two = map(Connections, stores)
    assert one.acquire("alice", 9)
    with stores[1].writing():
        one.release("alice")
    assert two.total("alice") == 1
    one.heartbeat()
    assert two.total("alice") == 0


def test_while_the_file_is_away_each_worker_has_limits_of_its_own(stores):
    one, two = map(Connections, stores)
    assert two.acquire("alice", 2)
    with stores[1].writing():
        assert [one.acquire("alice", 2) for _ in range(3)] == [True, True, False], "two's is not known of"
        assert one.away
        assert not one.uncertain("alice")
        with pytest.raises(Denied):
            one.heartbeat()
    assert one.acquire("bob", 1)
    one.release("bob")
    assert one.away, "the file is not tried at every connection"
    assert two.total("alice") == 1
    one.heartbeat()
    assert not one.away
    assert (two.total("alice"), two.total("bob")) == (3, 0)
    assert not one.acquire("alice", 3)
    one.release("alice")
    assert one.acquire("alice", 3)


def test_processes_that_race_get_as_many_as_there_are_and_give_them_back_when_killed(tmp_path):
    granted = racers.race(racers.acquire, 4, tmp_path, 8, 10)
    assert sum(granted) == 10, granted
    late = Store(tmp_path, wall=lambda: time.time() + LEASE_S + 1)
    counts = Connections(late)
    assert counts.total("alice") == 0
    assert late.reading("SELECT count(*) FROM counts") == [(0,)]
    assert counts.acquire("alice", 1)
    late.close()
