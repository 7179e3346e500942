"""A tree of small programs that say what brokers would: when it is up, and in which order it ends."""

import asyncio
import dataclasses
import signal
import sys

import pytest

from broker.children.child import Child, Program
from broker.local import tree
from broker.local.tree import Tree

PATIENCE_S = 40.0
SAYS = """
import os, signal, socket, sys
def say(*lines):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto("\\n".join(lines).encode(), os.environ["NOTIFY_SOCKET"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[1])))
"""
STAYS = "\nwhile True: signal.pause()"
JOINED = f"{SAYS}say('READY=1', 'STATUS=rank 7 of 8, state run, parent rank 3 joined'){STAYS}"
AWAY = f"{SAYS}say('READY=1', 'STATUS=rank 7 of 8, state join, parent rank 3 away'){STAYS}"
FOLLOWS = f"""{SAYS}
import time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
say('READY=1', 'STATUS=rank 7 of 8, state run, parent rank 3 joined')
signal.sigwait([signal.SIGUSR1])
say('STATUS=rank 7 of 8, state cleanup, parent rank 3 joined')
time.sleep(0.3)
"""
OPEN = f"{SAYS}say('READY=1'){STAYS}"


class Stage:
    """Makes trees; what is told is in ``told``."""

    def __init__(self, folder):
        self.folder = folder
        self.told = []

    def child(self, name, code):
        words = [sys.executable, "-S", "-c", code, "0"]
        place = str(self.folder / name)
        return Child(Program(name, lambda: words), lambda *each: self.told.append(each), place)

    def tree(self, *codes, beside=()):
        ranks = [self.child(f"rank {number}", code) for number, code in enumerate(codes)]
        return Tree(ranks, ranks[0], [self.child(f"beside {at}", code) for at, code in enumerate(beside)])

    def ended(self):
        return [name for name, event, _text in self.told if event == "left"]


@pytest.fixture
def stage(rundir, monkeypatch):
    """Nobody here follows rank 0 by itself."""
    monkeypatch.setattr(tree, "LEAVE_S", 0.2)
    return Stage(rundir)


def run(work):
    async def bounded():
        async with asyncio.timeout(PATIENCE_S):
            await work()

    asyncio.run(bounded())


def test_it_is_up_once_every_rank_runs_and_what_is_beside_it_is_ready(stage):
    async def work():
        up = stage.tree(JOINED, JOINED, beside=[OPEN])
        up.begin()
        await up.join()
        assert (up.missing(), up.lost(), up.leaving.is_set()) == ([], [], False)
        await up.down()
        await up.down()
        assert len(stage.ended()) == 3

    run(work)


def test_whoever_is_missing_is_named(stage, monkeypatch):
    monkeypatch.setattr(tree, "START_EACH_S", 0.0)

    async def work():
        up = stage.tree(JOINED, AWAY, beside=[f"{SAYS}{STAYS}"])
        up.begin()
        while up.ranks[0] in up.missing() or not up.ranks[1].said:
            await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError, match=r"^rank 1, beside 0 not ready within 0\.1 s$"):
            await up.join(0.1)
        await up.down()

    run(work)


def test_one_that_is_left_or_the_word_to_leave_ends_the_wait(stage):
    async def work():
        up = stage.tree(JOINED, "raise SystemExit(78)")
        up.begin()
        await up.join()
        assert [child.program.name for child in up.lost()] == ["rank 1"]
        await up.down()
        other = stage.tree(JOINED, AWAY)
        other.begin()
        asyncio.get_running_loop().call_later(0.1, other.leave)
        await other.join()
        assert other.lost() == []
        await other.down()

    run(work)


def test_ranks_follow_rank_0_and_only_who_does_not_is_told(stage):
    async def work():
        up = stage.tree(JOINED, JOINED)
        up.begin()
        await up.join()
        ending = asyncio.get_running_loop().create_task(up.down())
        await up.ranks[0].wait()
        assert stage.ended() == ["rank 0"]
        await ending
        assert stage.ended() == ["rank 0", "rank 1"]

    run(work)


def test_ranks_that_follow_a_rank_0_elsewhere_have_left(stage):
    async def work():
        ranks = [stage.child("rank 1", JOINED)]
        up = Tree(ranks, None)
        up.begin()
        await up.join()
        up.expect_end()
        ranks[0].send_signal(signal.SIGTERM)  # as when its parent has gone
        await ranks[0].wait()
        assert stage.told[-1] == ("rank 1", "left", "has left")

    run(work)


def test_nobody_waits_for_those_who_have_nobody_to_follow(stage, monkeypatch):
    monkeypatch.setattr(tree, "LEAVE_S", PATIENCE_S)

    async def work():
        up = stage.tree(JOINED, JOINED)
        up.begin()
        await up.join()
        up.ranks[0].end(signal.SIGKILL)
        await up.ranks[0].wait()
        await up.down()
        half = stage.tree(AWAY, AWAY)
        half.begin()
        while not all(rank.ready for rank in half.ranks):
            await asyncio.sleep(0.01)
        await half.down()
        below = Tree([stage.child("rank 1", AWAY)], None)
        below.begin()
        while not below.ranks[0].ready:
            await asyncio.sleep(0.01)
        await below.down()

    run(work)


def test_who_leaves_with_a_rank_0_that_is_elsewhere_is_not_told_to(stage, monkeypatch):
    """Told while its loop is closed, it would leave with a line about that, or as if it had been killed."""
    monkeypatch.setattr(tree, "LEAVE_S", PATIENCE_S)

    async def work():
        below = Tree([stage.child("rank 1", FOLLOWS)], None)
        below.begin()
        await below.join()
        below.expect_end()
        (rank,) = below.ranks
        rank.send_signal(signal.SIGUSR1)
        while "cleanup" not in rank.said:
            await asyncio.sleep(0.01)
        await below.down()
        assert rank.code == 0

    run(work)


def test_a_rank_that_is_started_again_has_to_join_again(stage):
    async def work():
        up = stage.tree(JOINED)
        (rank,) = up.ranks
        rank.program = dataclasses.replace(
            rank.program, restarts=dataclasses.replace(rank.program.restarts, first_s=0.01)
        )
        up.begin()
        await up.join()
        rank.program = dataclasses.replace(
            rank.program, words=lambda: [sys.executable, "-S", "-c", AWAY, "0"]
        )
        rank.send_signal(signal.SIGKILL)
        while not rank.restarts or not rank.said:
            await asyncio.sleep(0.01)
        assert up.missing() == [rank]
        await up.down()

    run(work)
