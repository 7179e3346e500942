import re
import sys
import threading
from pathlib import Path

import pytest

from broker.endpoints import UNIX_PATH_BYTES
from broker.errors import ConfigError, HeadgateError
from gateway.cluster import client, state
from gateway.cluster.client import Cluster, check_paths, lines_of
from gateway.cluster.shape import Shape
from tests.tables import for_each


@pytest.fixture
def saved(rundir, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(rundir / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(rundir / "run"))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)

    def save(shape):
        folder, saved = state.folder_of(shape.name), state.new(shape)
        state.save(folder, saved)
        return Cluster(folder, saved)

    return save


def test_what_is_saved_is_found_again(saved, rundir):
    cluster = saved(Shape("demo", 7, nfp=True))
    found = state.load(cluster.folder)
    assert found == cluster.saved
    assert found.shape == Shape("demo", 7, nfp=True)
    assert oct((cluster.folder / state.FILE).stat().st_mode)[-3:] == "600"
    assert re.fullmatch(f"{rundir}/run/headgate/clusters/demo-[0-9a-f]{{6}}", found.sockets)
    assert state.names() == ["demo"]
    assert oct(cluster.folder.stat().st_mode)[-3:] == "700"
    state.remove(cluster.folder)
    state.remove(cluster.folder)
    assert state.names() == []


@for_each("text", ["", "{", "[]", '{"shape": {}}', '{"shape": {"name": "a", "size": 0}}', "\xff"])
def test_a_file_of_somebody_else_is_told(saved, text):
    cluster = saved(Shape("demo", 1))
    (cluster.folder / state.FILE).write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"cluster\.json"):
        state.load(cluster.folder)


def test_clusters_of_one_name_in_two_places_have_sockets_of_their_own(rundir):
    assert state.sockets_of(rundir / "a" / "demo") != state.sockets_of(rundir / "b" / "demo")


def test_nothing_is_up_and_down_is_harmless(saved):
    cluster = saved(Shape("demo", 1))
    assert cluster.status() == []
    cluster.down()
    cluster.down()
    assert list(cluster.logs(0, follow=True)) == []


def test_logs_of_what_is_not_there(saved):
    cluster = saved(Shape("demo", 2, gateway=False))
    with pytest.raises(ConfigError, match="no gateway"):
        cluster.logs(None)
    with pytest.raises(ConfigError, match="expected 0 to 1"):
        cluster.logs(2)


def test_paths_that_are_too_long_are_told_before_anything_is_started(saved, monkeypatch, rundir):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(rundir / ("x" * 90)))
    cluster = saved(Shape("demo", 1))
    with pytest.raises(ConfigError, match="at most 107 bytes"):
        cluster.up()
    assert list((cluster.folder / state.KEYS).iterdir()) == []


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
    cluster = saved(Shape("demo", 1, gateway=False))
    ends = [sys.executable, "-S", "-c", "import sys; sys.exit('ERROR no room')"]
    monkeypatch.setattr(client, "command", lambda _module: ends)
    with pytest.raises(HeadgateError, match="has ended: ERROR no room"):
        cluster.up()


def test_the_longest_path_of_all_is_looked_at():
    """ready-web is longer than local-0."""
    room = UNIX_PATH_BYTES - len("/local-0")
    with pytest.raises(ConfigError, match="ready-web"):
        check_paths(Path("/" + "x" * (room - 1)), Shape("demo", 1))
    check_paths(Path("/" + "x" * (room - 3)), Shape("demo", 1))


# ---------------------------------------------------------------- logs


def test_lines_end_with_the_file(tmp_path):
    file = tmp_path / "log"
    file.write_bytes(b"one\ntwo \xff\n\nunfinished")
    assert list(lines_of(file, lambda: False)) == ["one", "two \ufffd", "", "unfinished"]
    assert list(lines_of(tmp_path / "none", lambda: True)) == []


def test_a_line_that_grows_is_one_line(tmp_path):
    file = tmp_path / "log"
    file.write_text("be")
    looks = []

    def more():
        looks.append(len(looks))
        if len(looks) == 1:
            with file.open("a") as out:
                out.write("gin")
        elif len(looks) == 2:
            with file.open("a") as out:
                out.write("ning\nend\n")
        return len(looks) < 4

    assert list(lines_of(file, more)) == ["beginning", "end"]


def test_a_reader_sees_what_another_thread_writes(tmp_path):
    file = tmp_path / "log"
    file.write_text("")
    done = threading.Event()

    def write():
        with file.open("a", buffering=1) as out:
            for number in range(100):
                out.write(f"{number}\n")
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = list(lines_of(file, lambda: not done.is_set()))
    writer.join()
    assert seen == [str(number) for number in range(100)]
