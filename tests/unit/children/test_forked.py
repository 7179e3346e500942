"""Children that go on without exec; in a process of their own, which has no threads."""

import os
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.interpreter

BEGIN = """
import asyncio, os, signal, sys, time
from broker import supervision
from broker.children.child import Child, Program, Restarts
from broker.children.supervisor import Step, Supervisor
folder = sys.argv[1]
def tell(name, event, text):
    if event != "starting":
        print(name, event, text, flush=True)
def child(name, work, **restarts):
    program = Program(name, work=work, restarts=Restarts(first_s=0.01, **restarts))
    return Child(program, tell, os.path.join(folder, name))
def serve():
    supervision.notify("READY=1")
    while True: signal.pause()
def run(work):
    async def bounded():
        async with asyncio.timeout(30):
            await work()
    asyncio.run(bounded())
"""


def told(code, folder):
    """What such a process prints, and what it and its children say on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code, str(folder)],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": ""},  # or what is printed would be there by itself
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_all_are_ready_and_leave(rundir):
    code = """
async def work():
    both = Supervisor([child("a", serve), child("b", serve)])
    await both.start()
    print([os.getsid(each.pid) == each.pid for each in both.children.values()])
    for each in both.children.values():
        await both.end([each])
        print(each.why)
run(work)
"""
    out, err = told(code, rundir)
    ended = "ended with signal 15 (SIGTERM)"
    assert sorted(out[:2]) == ["a ready is ready", "b ready is ready"]  # both start at once
    assert out[2:] == [
        "[True, True]",
        "a left has left",
        ended,
        "b left has left",
        ended,
    ]
    assert err == ""


def test_an_error_that_ends_one_is_a_line_and_another_life_follows(rundir):
    code = """
life = 0
def fails():
    print("to stderr")
    if life == 2:
        serve()
    raise ValueError(f"no such thing {life}")
def tell(name, event, text):
    global life
    life += event == "ended"
    print(event, text)
async def work():
    one = child("b", fails)
    one.start()
    await one.settled.wait()
    await Supervisor([one]).end([one])
run(work)
"""
    out, err = told(code, rundir)
    assert [line.partition(",")[0] for line in out if not line.startswith("starting")] == [
        "ended ended with code 1",
        "ended ended with code 1 2 times in a row",
        "ready is ready",
        "left has left",
    ]
    failed = [f"to stderr\nheadgate: b: ValueError: no such thing {life}\n" for life in (0, 1)]
    assert err == "".join([*failed, "to stderr\n"])


def test_one_has_an_event_loop_of_its_own(rundir):
    code = """
def loops():
    async def inner():
        loop = asyncio.get_running_loop()
        left = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, left.set)
        supervision.notify("READY=1")
        await left.wait()
        return 7
    return asyncio.run(inner())
async def work():
    one = child("a", loops, final=frozenset((7,)))
    one.start()
    await one.settled.wait()
    one.send_signal(signal.SIGTERM)
    await one.wait()
    print(one.code)
run(work)
"""
    out, err = told(code, rundir)
    assert (out[-1], err) == ("7", "")


def test_it_ends_with_its_parent(rundir):
    code = """
def middle():
    async def inner():
        inside = child("b", serve)
        inside.start()
        await inside.settled.wait()
        print(inside.pid)
        supervision.notify("READY=1")
        await asyncio.sleep(60)
    asyncio.run(inner())
async def work():
    first = child("a", middle)
    first.start()
    await first.settled.wait()
    first.end(signal.SIGKILL)
    await first.wait()
run(work)
"""
    pid = int(told(code, rundir)[1].split()[-1])  # what children print goes where errors go
    end = time.monotonic() + 40
    while alive(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_one_whose_words_nobody_reads_ends_all_the_same(rundir):
    """And does not go on with what its parent has to do, such as ending the other children."""
    code = """
def prints():
    end, broken = os.pipe()
    os.close(end)
    sys.stdout = open(broken, "w")
    print("a word")
    return 3
async def work():
    one = child("a", prints, final=frozenset((3,)))
    one.start()
    await one.wait()
    print(one.code)
run(work)
"""
    assert told(code, rundir) == (["a left ended with code 3, is not started again", "3"], "")


def alive(pid):
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_who_is_to_leave_at_once_hears_both_signals(rundir):
    code = """
def slow():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    supervision.notify("READY=1")
    for _ in range(2):
        while signal.SIGTERM not in signal.sigpending():
            time.sleep(0.02)
        signal.sigwait({signal.SIGTERM})
    return 7
async def work():
    one = child("a", slow)
    both = Supervisor([one])
    await both.start()
    both.leave()
    both.leave()
    await both.end([one], Step([one], signal.SIGTERM, 30.0))
    print(one.why)
run(work)
"""
    assert told(code, rundir)[0][-1] == "ended with code 7"
