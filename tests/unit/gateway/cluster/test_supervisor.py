"""What the supervisor is told, before any process is started, and the folder of its sockets."""

import asyncio
import os
import shutil
import stat
import sys
import threading
import time

import pytest

from broker import interpreter
from broker.children import supervisor as children
from broker.errors import ConfigError, HeadgateError
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
        {"do": "move"},
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

    async def run():
        up = asyncio.Event()
        saved = state.Saved(Shape("demo", 2, gateway=False), str(rundir), 0.0)
        made = supervisor.Supervisor(rundir, saved, up.set)
        running = asyncio.get_running_loop().create_task(made.run())
        await up.wait()
        await asyncio.sleep(0.3)  # until they are deaf
        await made.do({"do": "down"})
        await made.do({"do": "down"})  # another verb, no second word of the same person
        await asyncio.sleep(0.3)
        assert not running.done()
        began = time.monotonic()
        await made.do({"do": "down", "at_once": True})
        await running
        assert time.monotonic() - began < supervisor.LEAVE_S

    asyncio.run(run())


# ---------------------------------------------------------------- the folder of sockets


@pytest.mark.skipif(os.geteuid() != 0, reason="optional: only root can make a folder of somebody else's")
def test_sockets_are_not_put_below_a_folder_of_somebody_else(rundir):
    (rundir / "theirs").mkdir(mode=0o777)
    os.chown(rundir / "theirs", 12345, 12345)
    with pytest.raises(ConfigError, match="expected a folder of ours"):
        supervisor._make_private(rundir / "theirs" / "clusters" / "demo-1")
    (rundir / "link").symlink_to(rundir)
    with pytest.raises(ConfigError, match="expected a folder of ours"):
        supervisor._make_private(rundir / "link" / "clusters" / "demo-1")


def test_folders_above_the_sockets_are_closed_to_other_writers(rundir):
    (rundir / "run" / "clusters").mkdir(parents=True)
    (rundir / "run").chmod(0o775)
    (rundir / "run" / "clusters").chmod(0o777)
    supervisor._make_private(rundir / "run" / "clusters" / "demo-1")
    assert stat.S_IMODE((rundir / "run").stat().st_mode) == 0o755
    assert stat.S_IMODE((rundir / "run" / "clusters").stat().st_mode) == 0o755
    assert stat.S_IMODE((rundir / "run" / "clusters" / "demo-1").stat().st_mode) == 0o700


def test_who_waits_for_the_sockets_of_a_cluster_that_ends_has_them_then(rundir):
    """The one before removes the folder and lets go of the lock."""
    sockets = rundir / "run" / "clusters" / "demo-1"
    first = supervisor._own(sockets)
    (sockets / "left").mkdir()
    (sockets / "control").touch()

    def end():
        shutil.rmtree(sockets)
        os.close(first)

    ending = threading.Timer(0.15, end)
    ending.start()
    second = supervisor._own(sockets)
    ending.join()
    assert os.listdir(sockets) == ["lock"]
    assert state.lock_file(sockets / "lock", 0.0) is None
    os.close(second)
