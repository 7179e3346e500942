import re
import socket

import pytest

from broker.errors import ConfigError
from gateway.cluster import state
from gateway.cluster.engine import Unsupported
from gateway.cluster.processes import Processes, _free_url
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
