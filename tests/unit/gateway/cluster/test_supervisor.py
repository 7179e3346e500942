"""What the supervisor is told, before any process is started, and the folder of its sockets."""

import asyncio
import dataclasses
import os
import socket
import stat
import sys
import time

import pytest

from broker import interpreter
from broker.children import supervisor as children
from broker.errors import ConfigError, HeadgateError
from broker.local import tree
from gateway.cluster import state, supervisor
from gateway.cluster.shape import Shape
from tests.tables import for_each


@pytest.fixture
def told(rundir):
    """What a supervisor of three ranks without a gateway answers."""
    saved = state.Saved(Shape("demo", 3, gateway=False), str(rundir), 0.0)
    made = supervisor.Supervisor(rundir, saved, lambda: None)
    return lambda **words: asyncio.run(made.do(words))


def test_who_is_cut_off_is_known_until_the_heal(told, caplog):
    caplog.set_level("INFO")
    assert told(do="partition", ranks=[2, 1]) == {}
    assert told(do="partition", ranks=[]) == {}
    assert caplog.messages == ["partition: 1 2", "partition: none"]
    assert [member["name"] for member in told(do="status")["members"]] == ["rank-0", "rank-1", "rank-2"]
    assert told(do="resume", ranks=[0, 1]) == {}


@for_each(
    "words",
    [
        {},
        {"do": "frobnicate"},
        {"do": "kill", "ranks": [3]},
        {"do": "kill", "ranks": 1},
        {"do": "partition", "ranks": [True]},
        {"do": "start", "ranks": ["1"]},
    ],
    ids=str,
)
def test_words_that_make_no_sense(told, words):
    with pytest.raises(ConfigError, match="saw"):
        told(**words)


def test_what_does_not_run_cannot_be_paused(told):
    with pytest.raises(HeadgateError, match="rank-1 does not run"):
        told(do="pause", ranks=[1])


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


def test_who_is_told_a_second_time_ends_all_at_once(rundir, monkeypatch):
    monkeypatch.setattr(children, "HURRY_S", 0.1)
    monkeypatch.setattr(interpreter, "command", lambda _module: [sys.executable, "-S", "-c", DEAF])
    (rundir / state.LOGS).mkdir()
    said = []

    async def run():
        saved = state.Saved(Shape("demo", 2, gateway=False), str(rundir), 0.0)
        made = supervisor.Supervisor(rundir, saved, said.append)
        running = asyncio.get_running_loop().create_task(made.run())
        await asyncio.sleep(0.3)  # until they are deaf
        assert said == []
        await made.do({"do": "down"})
        await made.do({"do": "down"})  # another verb, no second word of the same person
        await asyncio.sleep(0.3)
        assert not running.done()
        began = time.monotonic()
        await made.do({"do": "down", "at_once": True})
        await running
        assert time.monotonic() - began < tree.LEAVE_S

    asyncio.run(run())
    assert said == [{"ok": False, "kind": "failed", "error": "the supervisor was told to leave"}]


SERVES = """
import os, signal, socket, sys
url = sys.argv[sys.argv.index("--listen") + 1] if "--listen" in sys.argv else ""
if url == "http://127.0.0.1:1":
    sys.exit("in use")
said = b"READY=1\\nSTATUS=rank 0 of 1, state run, tree full"
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
    sock.sendto(said, os.environ["NOTIFY_SOCKET"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
while True:
    signal.pause()
"""


def test_a_port_that_was_taken_in_between_is_another_one(rundir, monkeypatch):
    """Somebody is faster than the gateway to take the port that was found free; later it stays at its own."""
    monkeypatch.setattr(supervisor, "RESTARTS", dataclasses.replace(supervisor.RESTARTS, first_s=0.05))
    monkeypatch.setattr(interpreter, "command", lambda _module: [sys.executable, "-S", "-c", SERVES])
    urls = {True: ["http://127.0.0.1:1"], False: ["http://127.0.0.1:2", "http://127.0.0.1:3"]}
    monkeypatch.setattr(supervisor, "free_url", lambda usual: urls[usual].pop(0))
    (rundir / state.LOGS).mkdir()

    async def run():
        up = asyncio.Event()
        saved = state.Saved(Shape("demo", 1), str(rundir), 0.0)
        made = supervisor.Supervisor(rundir, saved, lambda answer: answer["ok"] and up.set())
        running = asyncio.get_running_loop().create_task(made.run())
        await up.wait()
        for restarts in (1, 2):
            gateway = made.beside[0]
            await gateway.settled.wait()
            assert (gateway.member().uri, gateway.member().restarts) == ("http://127.0.0.1:2", restarts)
            gateway.kill(stay=False)
            while gateway.ready:
                await asyncio.sleep(0.01)
        made.leave()
        await running

    asyncio.run(run())


def test_who_ends_before_all_are_there_is_told_with_its_last_line(rundir, monkeypatch):
    monkeypatch.setattr(
        interpreter, "command", lambda _module: [sys.executable, "-S", "-c", "raise SystemExit('no key')"]
    )
    (rundir / state.LOGS).mkdir()
    said = []

    async def run():
        saved = state.Saved(Shape("demo", 1, gateway=False), str(rundir), 0.0)
        made = supervisor.Supervisor(rundir, saved, lambda answer: said.append(answer) or made.leave())
        await made.run()

    asyncio.run(run())
    assert said == [{"ok": False, "kind": "failed", "error": "rank-0: ended with code 1: no key"}]


def test_a_port_that_is_taken_is_passed_over():
    first = supervisor.free_url()
    host, port = first.removeprefix("http://").split(":")
    with socket.create_server((host, int(port))):
        assert supervisor.free_url() != first
    usual = range(supervisor.GATEWAY_PORT, supervisor.GATEWAY_PORT + supervisor.PORTS)
    assert int(supervisor.free_url(usual=False).rpartition(":")[2]) not in usual


def test_the_last_line_that_says_something(tmp_path):
    file = tmp_path / "log"
    assert supervisor.last_line(file) == ""
    file.write_text("first\n" + "x" * 10_000 + "\nthe end \n\n")
    assert supervisor.last_line(file) == "the end"


# ---------------------------------------------------------------- the folder of sockets


@pytest.mark.skipif(os.geteuid() != 0, reason="optional: only root can make a folder of somebody else's")
def test_sockets_are_not_put_below_a_folder_of_somebody_else(rundir):
    (rundir / "theirs").mkdir(mode=0o777)
    os.chown(rundir / "theirs", 12345, 12345)
    with pytest.raises(ConfigError, match="expected a folder of ours"):
        supervisor._own(rundir / "theirs" / "clusters" / "demo-1")
    (rundir / "link").symlink_to(rundir)
    with pytest.raises(ConfigError, match="expected a folder of ours"):
        supervisor._own(rundir / "link" / "clusters" / "demo-1")


def test_folders_above_the_sockets_are_closed_to_other_writers(rundir):
    (rundir / "run" / "clusters").mkdir(parents=True)
    (rundir / "run").chmod(0o775)
    (rundir / "run" / "clusters").chmod(0o777)
    own = supervisor._own(rundir / "run" / "clusters" / "demo-1")
    assert stat.S_IMODE((rundir / "run").stat().st_mode) == 0o755
    assert stat.S_IMODE((rundir / "run" / "clusters").stat().st_mode) == 0o755
    assert stat.S_IMODE((rundir / "run" / "clusters" / "demo-1").stat().st_mode) == 0o700
    own.remove()
