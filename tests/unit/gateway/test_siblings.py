"""Worker processes of one gateway among each other: one limit of a user, answers of all, and who has ended."""

import asyncio
import contextlib
import fcntl
import os
import resource
import socket

import pytest

from broker.errors import ConfigError, NotReady
from gateway.fleet import siblings
from gateway.fleet.messages import encode
from gateway.fleet.peers import SILENT_BEATS, Peers
from gateway.fleet.siblings import Siblings, tell_end
from tests.unit.gateway.identity import racers
from tests.unit.gateway.sessions.desk import until

pytestmark = pytest.mark.interpreter


class Worker:
    """One worker process, as far as the others know."""

    def __init__(self, folder, name, answer=bytes):
        self.peers = Peers(name, answer=answer)
        self.siblings = Siblings(str(folder), self.peers)
        self.left = False

    async def leave(self):
        if not self.left:
            self.left = True
            await self.siblings.stop()

    async def hears(self):
        """It has taken in what was told before."""
        self.siblings._take()
        for _ in range(3):
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def workers(folder, *names, **more):
    started = [Worker(folder, name, **more) for name in names]
    try:
        for each in started:
            await each.siblings.start()
        yield started
    finally:
        for each in started:
            await each.leave()


def test_a_single_process_counts_in_memory():
    peers = Peers()
    assert [peers.acquire("alice", 2) for _ in range(3)] == [True, True, False]
    assert peers.acquire("bob", 2)
    peers.release("alice")
    assert peers.own("alice") == 1
    assert peers.acquire("alice", 2)
    assert not peers.uncertain("alice")
    assert not peers.shared


async def test_who_is_refused_leaves_nothing_behind(rundir):
    async with workers(rundir, "a", "b") as (one, two):
        assert not one.peers.acquire("alice", 0)
        one.peers.release("alice")
        assert one.peers.counts()[0].users == {}
        assert two.peers.elsewhere("alice") == 0


async def test_workers_share_the_limit_at_once(rundir):
    async with workers(rundir, "a", "b") as (one, two):
        assert one.peers.acquire("alice", 2)
        assert two.peers.acquire("alice", 2)
        assert not one.peers.acquire("alice", 2)
        assert not two.peers.acquire("alice", 2)
        assert one.peers.acquire("bob", 2)
        two.peers.release("alice")
        assert one.peers.acquire("alice", 2)
        async with workers(rundir, "c") as (late,):
            assert (late.peers.elsewhere("alice"), late.peers.elsewhere("bob")) == (2, 1)
            assert not late.peers.acquire("alice", 2)
            assert late.peers.acquire("bob", 2)
            assert not one.peers.acquire("bob", 2)
        await one.leave()
        await two.hears()
        assert two.peers.elsewhere("alice") == len(two.peers) == 0


async def test_one_that_does_not_answer_a_newcomer_in_time_is_told_of_its_connections_all_the_same(
    rundir, monkeypatch
):
    monkeypatch.setattr(siblings, "ASK_S", 0.05)
    async with workers(rundir, "a") as (busy,):
        asyncio.get_running_loop().remove_reader(busy.siblings._listener)
        async with workers(rundir, "b") as (late,):
            assert late.peers.acquire("alice", 1)
            assert not busy.peers.acquire("alice", 1)


async def test_a_worker_that_is_killed_is_forgotten_and_nobody_else(rundir):
    async with workers(rundir, "a", "b", "c") as (one, two, three):
        assert one.peers.acquire("alice", 9)
        assert three.peers.acquire("alice", 9)
        tell_end(str(rundir), "a")
        await two.hears()
        assert (two.peers.elsewhere("alice"), two.peers.names()) == (1, ["c"])
        assert not (rundir / "a.sock").exists(), "whoever starts would wait for it"


async def test_a_worker_that_is_not_heard_of_counts_no_more_and_before_that_is_uncertain(rundir):
    async with workers(rundir, "a", "b") as (one, two):
        assert one.peers.acquire("alice", 1)
        assert two.peers.acquire("bob", 1)
        assert not two.peers.acquire("alice", 1)
        assert not two.peers.uncertain("alice")
        for _ in range(2):
            two.peers.beat(two.siblings)
        assert two.peers.uncertain("alice")
        assert not two.peers.uncertain("bob")
        one.siblings._say_counts()
        await two.hears()
        assert not two.peers.uncertain("alice")
        for _ in range(SILENT_BEATS + 1):
            two.peers.beat(two.siblings)
        assert not two.peers.uncertain("alice")
        assert two.peers.acquire("alice", 1)
        one.siblings._say_counts()  # it stood still
        await two.hears()
        assert two.peers.elsewhere("alice") == 1


async def test_one_that_stood_still_hears_the_others_before_it_takes_them_for_gone(rundir, monkeypatch):
    monkeypatch.setattr(siblings, "BEAT_S", 0.01)
    async with workers(rundir, "a", "b") as (one, two):
        await until(lambda: one.siblings._tasks and two.siblings._tasks)
        await asyncio.sleep(0.3)
        assert (one.peers.names(), two.peers.names()) == (["b"], ["a"])


async def test_what_finds_no_room_is_told_with_the_next_beat(rundir, monkeypatch):
    monkeypatch.setattr(siblings, "BACKLOG", 0)
    async with workers(rundir, "a", "b") as (one, two):
        asyncio.get_running_loop().remove_reader(two.siblings._listener)  # it stands still
        for _ in range(9):
            assert one.peers.acquire("alice", 9)
        one.peers.release("alice")
        await two.hears()
        assert two.peers.elsewhere("alice") < 8
        one.siblings._say_counts()
        await two.hears()
        assert two.peers.elsewhere("alice") == 8


async def test_whose_turn_it_is_not_waits_for_it_but_not_for_one_that_stands_still(rundir, monkeypatch):
    waited = []
    async with workers(rundir, "a", "b") as (one, _):
        held = os.open(rundir, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr(siblings.time, "sleep", waited.append)
        assert one.peers.acquire("alice", 2)
        assert sum(waited) == pytest.approx(siblings.TURN_S)
        monkeypatch.setattr(siblings.time, "sleep", lambda _s: fcntl.flock(held, fcntl.LOCK_UN))
        assert one.peers.acquire("alice", 2)
        monkeypatch.undo()
        os.close(held)
        assert not one.peers.acquire("alice", 2)


async def test_all_answer_what_one_asks_large_answers_too(rundir):
    async with workers(rundir, "a", "b", "c", answer=lambda question: question * 10**6) as (one, *_):
        assert await one.peers.ask(b"?") == {"b": b"?" * 10**6, "c": b"?" * 10**6}
        assert await one.peers.ask(b"", one.siblings) == {"b": b"", "c": b""}


async def test_one_that_does_not_answer_is_told_of_and_one_that_has_ended_is_not_waited_for(
    rundir, monkeypatch
):
    monkeypatch.setattr("gateway.fleet.peers.ASK_S", 0.2)
    async with workers(rundir, "a", "b") as (one, two):
        asyncio.get_running_loop().remove_reader(two.siblings._listener)
        assert await one.peers.ask(b"?") == {"b": b""}
        monkeypatch.setattr("gateway.fleet.peers.ASK_S", 1000)
        asking = asyncio.get_running_loop().create_task(one.peers.ask(b"?"), name="asking")
        await asyncio.sleep(0)
        await two.leave()
        async with asyncio.timeout(10):
            assert await asking == {"b": b""}
        assert await one.peers.ask(b"?") == {}


async def test_a_question_that_is_none_costs_no_traceback(rundir, caplog):
    async with workers(rundir, "a", "b", answer={}.__getitem__) as (one, _):
        assert await one.peers.ask(b"?") == {"b": b""}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_folder_that_is_none(rundir):
    with pytest.raises((ConfigError, NotReady), match="nothing"):
        Worker(rundir / "nothing", "a")


def test_processes_that_race_get_as_many_as_there_are(rundir):
    granted = racers.race(racers.acquire, 4, str(rundir), 8, 10)
    assert sum(granted) == 10, granted


async def test_what_a_worker_told_first_is_heard_first_wherever_it_was_stopped(rundir):
    """Between connecting and sending, say: the older word must not replace the newer."""
    async with workers(rundir, "a", "b") as (one, two):
        one.peers.acquire("alice", 9)
        (before,) = one.peers.counts(["alice"])
        one.peers.acquire("alice", 9)
        (behind,) = one.peers.counts(["alice"])
        with socket.socket(socket.AF_UNIX) as stopped:
            stopped.connect(f"{rundir}/b{siblings.SUFFIX}")
            await two.hears()
            stopped.sendall(encode(before))
        siblings._send(f"{rundir}/b{siblings.SUFFIX}", encode(behind))
        two.siblings._take()
        await two.hears()
        assert two.peers.elsewhere("alice") == 2
        assert not two.siblings._unread


async def test_what_all_users_have_is_not_overtaken_by_what_one_has(rundir):
    """However long the names of users are: what the system does not hold at once would come behind later words."""
    async with workers(rundir, "a", "b") as (one, two):
        for number in range(400):
            one.peers.acquire(f"{number:01000}", 9)
        one.peers.acquire("alice", 9)
        await two.hears()
        one.siblings._say_counts()
        one.peers.acquire("alice", 9)
        await two.hears()
        await until(lambda: not two.siblings._unread)
        assert two.peers.elsewhere("alice") == 2
        assert two.peers.elsewhere(f"{399:01000}") == 1


async def test_a_question_that_is_given_up_leaves_nothing_behind(rundir):
    async with workers(rundir, "a", "b") as (one, two):
        two.siblings._take = lambda: None  # it stands still
        asyncio.get_running_loop().remove_reader(two.siblings._listener)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await one.peers.ask(b"?")
        assert not one.peers._asked


@contextlib.contextmanager
def no_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_worker_without_descriptors_counts_right_and_tells_it_later(rundir, monkeypatch):
    monkeypatch.setattr(siblings, "BEAT_S", 0.01)
    async with workers(rundir, "a", "b") as (one, two):
        with no_descriptors():
            assert one.peers.acquire("alice", 2)
            assert one.peers.acquire("bob", 2)
            one.peers.release("bob")
            await asyncio.sleep(0.05)
        await until(lambda: two.peers.elsewhere("alice") == 1)
        assert one.peers.own("bob") == two.peers.elsewhere("bob") == 0


async def test_a_worker_without_descriptors_does_not_spin(rundir, monkeypatch):
    monkeypatch.setattr(siblings, "BEAT_S", 0.2)
    async with workers(rundir, "a", "b") as (one, two):
        asyncio.get_running_loop().remove_reader(two.siblings._listener)
        assert one.peers.acquire("alice", 2)
        tries = []

        def take():
            tries.append(1)
            two.siblings._take()

        with no_descriptors():
            asyncio.get_running_loop().add_reader(two.siblings._listener, take)
            await asyncio.sleep(0.05)
        assert len(tries) == 1
        await until(lambda: two.peers.elsewhere("alice") == 1)
