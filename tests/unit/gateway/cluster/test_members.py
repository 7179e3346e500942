"""One member as a process: here small programs that say what a broker would."""

import asyncio
import dataclasses
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time

import pytest

from gateway.cluster import members
from gateway.cluster.members import Process

SAYS = """
import os, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[1])))
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sock.connect(os.environ["NOTIFY_SOCKET"])
print("up", flush=True)
sock.send(b"STATUS=joins")
sock.send(b"READY=1\\nSTATUS=is there")
while True: signal.pause()
"""
SLEEPS = "import time; time.sleep(60)"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Started again after a tenth of a second; whatever a failed test leaves behind is ended."""
    monkeypatch.setattr(members, "RESTARTS", dataclasses.replace(members.RESTARTS, first_s=0.1))
    yield
    for process in STARTED:
        process.send_signal(signal.SIGKILL)
    STARTED.clear()


STARTED = []


def program(rundir, *texts, code=0):
    """A member whose lives are ``texts``, the last one again and again."""
    lives = list(texts or (SAYS,))

    def words():
        text = lives.pop(0) if len(lives) > 1 else lives[0]
        return (sys.executable, "-S", "-E", "-c", text, str(code))

    uri = f"local://{rundir}/sock"
    STARTED.append(Process("rank-3", 3, words, rundir / "log", uri, rundir / "ready-3"))
    return STARTED[-1]


async def until(process, *states):
    async with asyncio.timeout(10):
        while process.member().state not in states:
            await asyncio.sleep(0.01)
    return process.member()


def kernel_state(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


async def end(process):
    process.end(signal.SIGKILL)
    await process.wait()


def test_it_starts_answers_and_leaves(rundir):
    async def run():
        process = program(rundir)
        assert process.member().state == "exited"
        process.start()
        running = await until(process, "running")
        assert (running.name, running.rank, running.uri) == ("rank-3", 3, f"local://{rundir}/sock")
        assert int(running.id) == process.pid
        assert running.said == "is there"
        assert time.time() - running.since < 5
        process.end(signal.SIGTERM)
        await process.wait()
        assert process.member().why == "ended with code 0"
        assert (rundir / "log").read_text() == "up\n"
        assert oct((rundir / "log").stat().st_mode)[-3:] == "600"

    asyncio.run(run())


def test_a_killed_one_comes_back_as_another_process(rundir):
    async def run():
        process = program(rundir)
        process.start()
        before = await until(process, "running")
        process.kill(stay=False)
        gone = await until(process, "exited")
        assert (gone.why, gone.id) == ("ended with signal 9 (SIGKILL)", "")
        again = await until(process, "running")
        assert again.id != before.id
        assert (again.restarts, again.why) == (1, "")
        await end(process)

    asyncio.run(run())


def test_one_that_was_killed_to_stay_away_stays_until_it_is_started(rundir):
    async def run():
        process = program(rundir)
        process.start()
        await until(process, "running")
        process.kill(stay=True)
        await until(process, "exited")
        await asyncio.sleep(0.3)
        assert process.member().state == "exited"
        process.kill(stay=False)  # harmless
        process.start()
        await until(process, "running")
        process.start()  # harmless
        await end(process)

    asyncio.run(run())


def test_a_frozen_one_is_paused_and_goes_on(rundir):
    async def run():
        process = program(rundir)
        assert process.pause() is False
        process.start()
        await until(process, "running")
        process.resume()
        assert process.pause() is True
        assert process.member().state == "paused"
        async with asyncio.timeout(10):
            while kernel_state(process.pid) != "T":
                await asyncio.sleep(0.01)
        process.partitioned = True
        assert process.member().state == "paused"
        process.resume()
        assert process.member().state == "partitioned"
        process.pause()
        process.end(signal.SIGTERM)
        await process.wait()
        assert process.member().why == "ended with code 0"

    asyncio.run(run())


@pytest.mark.parametrize("code", [0, 2, 78])
def test_who_leaves_in_order_or_is_called_or_configured_wrongly_is_not_started_again(rundir, code):
    async def run():
        process = program(rundir, f"import sys; sys.exit({code})")
        process.start()
        async with asyncio.timeout(10):
            await process.wait()
        assert (process.member().why, process.member().restarts) == (f"ended with code {code}", 0)

    asyncio.run(run())


@pytest.mark.patient
def test_who_fails_again_and_again_is_started_less_and_less_often(rundir, monkeypatch):
    restarts = dataclasses.replace(members.RESTARTS, first_s=0.05, longest_s=0.2)
    monkeypatch.setattr(members, "RESTARTS", restarts)

    async def run():
        process = program(rundir, SAYS.replace("while True: signal.pause()", "sys.exit(1)"))
        began = time.monotonic()
        process.start()
        while process.member().restarts < 4:
            assert process.member().why in ("", "ended with code 1")
            await asyncio.sleep(0.01)
        assert time.monotonic() - began >= 0.05 + 0.1 + 0.2 + 0.2
        await end(process)

    asyncio.run(run())


@pytest.mark.parametrize("code", [1, 75])
def test_who_ends_before_it_was_ready_is_left_to_whoever_makes_the_cluster(rundir, code):
    async def run():
        process = program(rundir, f"import sys; sys.exit({code})")
        process.start()
        async with asyncio.timeout(10):
            await process.left.wait()
        assert (process.member().why, process.member().restarts) == (f"ended with code {code}", 0)

    asyncio.run(run())


def test_a_program_that_is_not_there_is_told(rundir, caplog):
    async def run():
        words = ("/nonexistent",)
        process = Process("rank-3", 3, lambda: words, rundir / "log", "local:///x", rundir / "ready-3")
        process.start()
        await process.wait()
        assert process.member().why.startswith("cannot be started: ")

    asyncio.run(run())
    assert "/nonexistent" in caplog.text


def test_it_is_not_ready_before_it_says_so(rundir):
    async def run():
        process = program(rundir, SLEEPS)
        process.start()
        await until(process, "starting")
        await asyncio.sleep(0.3)
        assert process.member().state == "starting"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            for word in (b"", b"\xff=1", b"WATCHDOG=1", b"STATUS=x" * 1000, b"READY"):
                sock.sendto(word, str(rundir / "ready-3"))
            await asyncio.sleep(0.1)
        assert process.member().state == "starting"
        await end(process)
        assert process.member().said == ""

    asyncio.run(run())


def test_what_an_earlier_process_said_counts_for_nothing(rundir):
    async def run():
        process = program(rundir, SAYS, SLEEPS)
        process.start()
        await until(process, "running")
        process.kill(stay=False)
        await until(process, "exited")
        await until(process, "starting")
        await asyncio.sleep(0.2)
        assert process.member().state == "starting"
        await end(process)

    asyncio.run(run())


PARENT = """
import asyncio, os, sys
from pathlib import Path
from gateway.cluster.members import Process
async def run():
    folder = Path(sys.argv[1])
    child = Process("rank-3", 3, lambda: ["/bin/sleep", "60"], folder / "log", "local:///x", folder / "ready-3")
    child.start()
    while not child.pause():
        await asyncio.sleep(0.01)
    print(child.pid, os.getsid(child.pid) == child.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(run())
"""


def test_a_child_dies_with_its_parent_even_if_it_is_frozen(rundir):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(rundir)], stdout=subprocess.PIPE, text=True)
    pid, own_session = parent.stdout.readline().split()
    child = os.pidfd_open(int(pid))
    try:
        assert own_session == "True"
        parent.kill()
        parent.wait()
        poll = select.poll()
        poll.register(child)
        assert poll.poll(5000)
    finally:
        os.close(child)
        parent.stdout.close()


def test_who_cannot_even_be_listened_to_is_tried_again(rundir, monkeypatch):
    """A full disk has no room for its socket."""

    def full(_sock, _path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def run():
        process = program(rundir)
        process.start()
        await until(process, "running")
        with monkeypatch.context() as patched:
            patched.setattr(socket.socket, "bind", full)
            process.kill(stay=False)
            async with asyncio.timeout(10):
                while "No space left" not in process.member().why:
                    await asyncio.sleep(0.01)
        assert (await until(process, "running")).why == ""
        process.end(signal.SIGTERM)
        await process.wait()

    asyncio.run(run())


def test_one_whose_end_nobody_would_notice_is_started_again(rundir, monkeypatch):
    opened = os.pidfd_open

    def fails_once(pid):
        monkeypatch.setattr(os, "pidfd_open", opened)
        raise OSError("no descriptor")

    async def run():
        process = program(rundir)
        process.start()
        await until(process, "running")
        monkeypatch.setattr(os, "pidfd_open", fails_once)
        process.kill(stay=False)
        await until(process, "exited")
        assert (await until(process, "running")).restarts == 2
        process.end(signal.SIGTERM)
        await process.wait()

    asyncio.run(run())
