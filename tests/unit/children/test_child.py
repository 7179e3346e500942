"""One child and several: what no keeper of children has of its own."""

import asyncio
import dataclasses
import os
import signal
import sys
import time

import pytest

from broker.children import supervisor
from broker.children.child import Child, Program, Restarts
from broker.children.supervisor import Step, Supervisor

PATIENCE_S = 40.0
SAYS = """
import os, signal, socket, time
def say(*lines):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto("\\n".join(lines).encode(), os.environ["NOTIFY_SOCKET"])
"""
STAYS = f"{SAYS}say('READY=1')\nwhile True: signal.pause()"
DEAF = f"{SAYS}signal.signal(signal.SIGTERM, lambda *_: None)\nsay('READY=1')\nwhile True: signal.pause()"


def run(work):
    async def bounded():
        async with asyncio.timeout(PATIENCE_S):
            await work()

    asyncio.run(bounded())


@pytest.fixture
def make(rundir):
    """Makes children; what they tell is in ``told``."""

    def child(name, code, *before, restarts=None, **options):
        words = [sys.executable, "-S", "-c", code]
        program = Program(name, lambda: words, before, restarts=restarts or Restarts(first_s=0.01), **options)

        def tell(who, event, text):
            make.told.append((who, event, text))

        return Child(program, tell, str(rundir / name))

    make = child
    make.told = []
    return make


def test_a_stopped_child_goes_on_to_be_able_to_leave(make):
    async def work():
        child = make("a", STAYS)
        child.start()
        await child.settled.wait()
        child.send_signal(signal.SIGSTOP)
        child.end()
        await child.wait()
        assert child.why == "ended with signal 15 (SIGTERM)"
        assert make.told[-1] == ("a", "left", "has left")

    run(work)


def test_who_waits_for_one_that_is_never_ready_can_be_ended(make):
    async def work():
        first, second = make("a", f"{SAYS}time.sleep(60)"), make("b", STAYS, "a")
        both = Supervisor([first, second])
        starting = asyncio.get_running_loop().create_task(both.start())
        while not first.pid:
            await asyncio.sleep(0.01)
        await both.end([second])
        assert (second.over, first.over) == (True, False)
        await both.end([first])
        await starting
        assert not first.pid

    run(work)


def test_a_second_word_to_leave_cuts_the_steps_short(make, monkeypatch):
    monkeypatch.setattr(supervisor, "HURRY_S", 0.1)

    async def work():
        child = make("a", DEAF)
        one = Supervisor([child])
        await one.start()
        one.leave()
        ending = asyncio.get_running_loop().create_task(
            one.end([child], Step([child], signal.SIGTERM, PATIENCE_S))
        )
        await asyncio.sleep(0.1)
        assert not child.over
        one.leave()
        await ending
        assert child.why == "ended with signal 9 (SIGKILL)"

    run(work)


def test_who_is_not_looked_after_any_more_is_killed(make):
    async def work():
        child = make("a", DEAF)
        child.start()
        await child.settled.wait()
        make.pid = child.pid

    run(work)  # its end cancels what keeps the child
    with pytest.raises(ProcessLookupError):
        os.kill(make.pid, 0)


def test_what_was_there_once_is_awaited(make, rundir):
    """A program that is being upgraded is away for a moment; one that was never there is a wrong word."""
    program = rundir / "program"

    async def work():
        program.symlink_to(sys.executable)
        child = make("a", "", restarts=Restarts(first_s=0.01, longest_s=0.02))
        child.program = dataclasses.replace(child.program, words=lambda: [str(program), "-S", "-c", STAYS])
        child.start()
        await child.settled.wait()
        program.unlink()
        child.send_signal(signal.SIGKILL)
        while not any("cannot be started" in text for _, event, text in make.told if event == "ended"):
            await asyncio.sleep(0.01)
        program.symlink_to(sys.executable)
        await child.settled.wait()
        assert child.ready
        child.end()
        await child.wait()

    run(work)


def test_what_one_said_before_its_end_is_heard(make):
    """Though both come in the same turn of the loop."""

    async def work():
        child = make("a", f"{SAYS}say('STATUS=begins')\nsay('READY=1')\nraise SystemExit(1)")
        child.start()
        while not child.pid:
            await asyncio.sleep(0.01)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - the loop stands meanwhile
        while child.pid:
            await asyncio.sleep(0)
        assert child.was_ready
        child.end()

    run(work)


def test_one_that_waits_to_be_started_again_does_so_at_once_when_it_is_started(make):
    async def work():
        child = make("a", "raise SystemExit(1)", restarts=Restarts(first_s=PATIENCE_S, longest_s=PATIENCE_S))
        began = time.monotonic()
        child.start()
        while not child.why:
            await asyncio.sleep(0.01)
        child.start()
        while child.restarts < 1:
            await asyncio.sleep(0.01)
        child.end(signal.SIGKILL)
        await child.wait()
        assert time.monotonic() - began < PATIENCE_S

    run(work)
