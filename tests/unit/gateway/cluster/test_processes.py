import os
import re
import socket
import stat
from pathlib import Path

import pytest

from broker.errors import ConfigError, HeadgateError
from broker.settings.addresses import UNIX_PATH_BYTES
from gateway.cluster import state, supervisor
from gateway.cluster.engine import Unsupported
from gateway.cluster.processes import Processes, _free_url, _short
from gateway.cluster.shape import Shape


@pytest.fixture
def saved(rundir, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(rundir / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(rundir / "run"))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)

    def save(shape):
        folder = state.folder_of(shape.name)
        state.save(folder, state.new(shape, "processes"))
        return Processes(folder)

    return save


def test_what_is_saved_is_found_again(saved, rundir):
    engine = saved(Shape("demo", 7, nfp=True))
    found = state.load(engine.folder)
    assert (found.shape, found.engine) == (Shape("demo", 7, nfp=True), "processes")
    assert re.fullmatch(f"{rundir}/run/headgate/clusters/demo-[0-9a-f]{{6}}", found.sockets)
    assert state.names() == ["demo"]
    assert oct(engine.folder.stat().st_mode)[-3:] == "700"
    state.remove(engine.folder)
    state.remove(engine.folder)
    assert state.names() == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"shape": {}}', '{"shape": {"name": "a", "size": 0}}', "\xff"]
)
def test_a_file_of_somebody_else_is_told(saved, text):
    engine = saved(Shape("demo", 1))
    (engine.folder / state.FILE).write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"cluster\.json"):
        state.load(engine.folder)


def test_clusters_of_one_name_in_two_places_have_sockets_of_their_own(rundir):
    assert state.sockets_of(rundir / "a" / "demo") != state.sockets_of(rundir / "b" / "demo")


def test_nothing_is_up_and_down_is_harmless(saved):
    engine = saved(Shape("demo", 1))
    assert engine.status() == []
    engine.down()
    engine.down()
    assert list(engine.logs(0, follow=True)) == []


def test_logs_of_what_is_not_there(saved):
    engine = saved(Shape("demo", 2, gateway=False))
    with pytest.raises(Unsupported, match="no gateway"):
        engine.logs(None)
    with pytest.raises(ConfigError, match="expected 0 to 1"):
        engine.logs(2)


def test_paths_that_are_too_long_are_told_before_anything_is_started(saved, monkeypatch, rundir):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(rundir / ("x" * 90)))
    engine = saved(Shape("demo", 1))
    with pytest.raises(ConfigError, match="too long for a socket"):
        engine.up(Shape("demo", 1), engine.folder / state.KEYS)
    assert list((engine.folder / state.KEYS).iterdir()) == []


def test_a_port_that_is_taken_is_passed_over():
    first = _free_url()
    host, port = first.removeprefix("http://").split(":")
    with socket.create_server((host, int(port))):
        assert _free_url() != first


def test_whoever_makes_or_removes_a_cluster_is_alone(saved):
    with state.held("demo"):
        with pytest.raises(ConfigError, match="being started or ended"), state.held("demo"):
            pass
        with state.held("other"):
            pass
        assert state.names() == []
    with state.held("demo", wait_s=1.0):
        pass
    assert list(state.clusters().iterdir()) == []


def test_a_supervisor_that_has_ended_is_not_waited_for(saved, monkeypatch):
    engine = saved(Shape("demo", 1, gateway=False))
    (engine.folder / state.LOGS / "supervisor.log").write_text("ERROR no room\n")
    monkeypatch.setattr(Processes, "_begin", lambda *_: None)
    with pytest.raises(HeadgateError, match="has ended: ERROR no room"):
        engine.up(Shape("demo", 1, gateway=False), engine.folder / state.KEYS)


def test_the_longest_path_of_all_is_looked_at():
    """ready-web is longer than local-0."""
    room = UNIX_PATH_BYTES - len("/local-0")
    with pytest.raises(ConfigError, match="ready-web"):
        _short(Path("/" + "x" * (room - 1)), Shape("demo", 1))
    assert _short(Path("/" + "x" * (room - 3)), Shape("demo", 1))


@pytest.mark.skipif(os.geteuid() != 0, reason="optional: only root can make a folder of somebody else's")
def test_sockets_are_not_put_below_a_folder_of_somebody_else(rundir):
    (rundir / "theirs").mkdir(mode=0o777)
    os.chown(rundir / "theirs", 12345, 12345)
    with pytest.raises(ConfigError, match="expected a folder of ours"):
        supervisor._locked(rundir / "theirs" / "clusters" / "demo-1")
    (rundir / "link").symlink_to(rundir)
    with pytest.raises(ConfigError, match="expected a folder of ours"):
        supervisor._locked(rundir / "link" / "clusters" / "demo-1")


def test_folders_above_the_sockets_are_closed_to_other_writers(rundir):
    (rundir / "run" / "clusters").mkdir(parents=True)
    (rundir / "run").chmod(0o775)
    (rundir / "run" / "clusters").chmod(0o777)
    lock = supervisor._locked(rundir / "run" / "clusters" / "demo-1")
    os.close(lock)
    assert stat.S_IMODE((rundir / "run").stat().st_mode) == 0o755
    assert stat.S_IMODE((rundir / "run" / "clusters").stat().st_mode) == 0o755
    assert stat.S_IMODE((rundir / "run" / "clusters" / "demo-1").stat().st_mode) == 0o700
