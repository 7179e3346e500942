"""The verbs of ``headgate cluster`` before clusters that only take notes; real ones are in tests/story."""

import contextlib
import json
import os
import signal
import time

import pytest

from broker.cli.main import main
from broker.errors import HeadgateError
from gateway.cli.cluster import drawing, lifecycle, shared_options
from gateway.cluster import compose, files, state
from gateway.cluster.client import Access
from gateway.cluster.members import Member
from gateway.cluster.shape import Shape
from tests.tables import for_each


class Notes:
    """What was done to clusters (``gateway.cluster.client.Cluster``), whose members are where one says."""

    def __init__(self):
        self.did = []
        self.members = []
        self.failure = None

    def cluster(self, folder, saved):
        return Noted(self, folder, saved)


class Noted:
    uri = "local:///nonexistent/local-0"

    def __init__(self, notes, folder, saved):
        self.notes = notes
        self.folder = folder
        self.saved = saved
        self.shape = saved.shape

    def up(self):
        self.notes.did.append(("up", self.shape))
        if self.notes.failure:
            raise self.notes.failure
        for rank in self.shape.ranks():
            uri = f"local:///run/x/local-{rank}"
            self.notes.members.append(
                Member(f"rank-{rank}", rank, "running", str(100 + rank), uri, time.time() - 5)
            )
        self.notes.members.append(
            Member("gateway", None, "running", "99", "http://127.0.0.1:8280", time.time() - 5)
        )

    def down(self):
        self.notes.did.append("down")
        self.notes.members = []

    def status(self):
        return self.notes.members

    def access(self, *, login=False):
        link = "http://127.0.0.1:8280/#x" if login else ""
        return Access(self.uri, "http://127.0.0.1:8280", link, "hgt_x")

    def logs(self, rank, follow=False):
        yield f"line of {rank}, {follow}"

    def ask(self, verb, ranks=(), **more):
        if self.notes.failure:
            raise self.notes.failure
        self.notes.did.append((verb, *ranks, *more.values()))


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(drawing, "CONNECT_S", 0.2)
    taken = Notes()
    for module in (lifecycle, shared_options):
        monkeypatch.setattr(module, "Cluster", taken.cluster)
    return taken


def cluster(*words):
    return main(["cluster", *words])


def test_up_tells_how_to_get_in(notes, capsys):
    assert cluster("up", "--size", "3", "--nfp") == 0
    (did,) = notes.did
    assert did == ("up", Shape("headgate", 3, nfp=True))
    assert capsys.readouterr().out.splitlines()[1:] == [
        "0 broker-0  local:///run/x/local-0",
        "├─ 1 broker-1  local:///run/x/local-1",
        "└─ 2 broker-2  local:///run/x/local-2",
        "export FLUX_URI=local:///nonexistent/local-0",
        "the dashboard (the link works once, on this machine):",
        "  http://127.0.0.1:8280/#x",
        "token of the operator: hgt_x",
    ]


def test_up_as_json(notes, capsys):
    assert cluster("up", "--size", "2", "--no-gateway", "--json") == 0
    seen = json.loads(capsys.readouterr().out)
    assert (seen["name"], len(seen["members"])) == ("headgate", 3)
    assert seen["access"]["uri"] == "local:///nonexistent/local-0"


def test_a_cluster_is_not_started_twice(notes, capsys):
    assert cluster("up", "--size", "2") == 0
    assert cluster("up", "--size", "2") == 78
    assert "is up already" in capsys.readouterr().err
    assert cluster("up", "--size", "2", "--name", "other") == 0
    assert state.names() == ["headgate", "other"]


def test_what_is_left_of_one_that_died_is_removed_first(notes):
    assert cluster("up", "--size", "2") == 0
    (state.folder_of("headgate") / "left").write_text("")
    notes.members = []
    assert cluster("up", "--size", "3") == 0
    assert notes.did[1:] == ["down", ("up", Shape("headgate", 3))]
    assert not (state.folder_of("headgate") / "left").exists()


def test_a_failed_start_leaves_nothing(notes, capsys):
    notes.failure = HeadgateError("rank-1: ended with code 78: no such key")
    assert cluster("up", "--size", "2") == 1
    assert "rank-1: ended with code 78: no such key" in capsys.readouterr().err
    assert notes.did[-1] == "down"
    assert state.names() == []
    assert not state.folder_of("headgate").exists()


def test_a_second_signal_takes_it_down_at_once(notes, monkeypatch):
    def down(noted):
        notes.did.append("down")
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(lifecycle, "_wait_for_signal", lambda: None)
    monkeypatch.setattr(Noted, "down", down)
    before = signal.getsignal(signal.SIGINT)
    assert cluster("up", "--size", "1", "--wait") == 0
    assert notes.did[1:] == ["down", ("down", True)]
    assert signal.getsignal(signal.SIGINT) is before


def test_wait_takes_it_down_at_the_end(notes, monkeypatch):
    monkeypatch.setattr(lifecycle, "_wait_for_signal", lambda: notes.did.append("waited"))
    assert cluster("up", "--size", "1", "--wait") == 0
    assert notes.did[1:] == ["waited", "down"]
    assert state.names() == []


def test_every_fault_reaches_the_supervisor(notes):
    cluster("up", "--size", "7")
    notes.did.clear()
    for words in ("kill 3", "kill 0 --stay", "start 0", "pause 6", "resume 6", "partition 1 2", "heal"):
        assert cluster(*words.split()) == 0
    assert notes.did == [
        ("kill", 3, False),
        ("kill", 0, True),
        ("start", 0),
        ("pause", 6),
        ("resume", 6),
        ("partition", 1, 2),
        ("partition",),
    ]


@for_each("words", ["kill 7", "start 9", "pause 7", "resume 7", "partition 1 7", "logs 7", "logs x"])
def test_a_rank_out_of_range_is_wrong_usage(notes, words, capsys):
    cluster("up", "--size", "7")
    notes.did.clear()
    assert cluster(*words.split()) == 2
    assert "expected" in capsys.readouterr().err
    assert notes.did == []


@for_each("words", ["kill -1", "partition", "kill", "frobnicate", "", "up --engine docker"])
def test_words_that_make_no_sense(notes, words):
    assert cluster(*words.split()) == 2


def test_what_cannot_be_done_is_told(notes, capsys):
    cluster("up", "--size", "2")
    notes.failure = HeadgateError("rank-1 does not run, so it cannot be paused")
    assert cluster("pause", "1") == 1
    assert "headgate cluster: rank-1 does not run" in capsys.readouterr().err


def test_a_cluster_that_is_not_there(notes, capsys):
    for words in ("status", "down", "kill 1", "logs gateway", "heal"):
        assert cluster(*words.split(), "--name", "none") == 2
    assert "no cluster none; there are: none" in capsys.readouterr().err


def test_status_of_one_whose_tree_cannot_be_asked(notes, capsys):
    cluster("up", "--size", "2")
    notes.members[1] = Member(
        "rank-1", 1, "exited", "", "local:///x", time.time() - 61, "ended with signal 9 (SIGKILL)", 2
    )
    capsys.readouterr()
    assert cluster("status") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["member", "state", "tree", "for", "id", "where"]
    assert "(ended with signal 9 (SIGKILL), restarted 2x)" in " ".join(lines[2].split())
    assert lines[1].split()[:3] == ["rank-0", "running", "-"]
    assert cluster("status", "--json") == 0
    seen = json.loads(capsys.readouterr().out)
    assert [(member["name"], member["tree"]) for member in seen["members"]] == [
        ("rank-0", None),
        ("rank-1", None),
        ("gateway", None),
    ]


def test_status_of_one_that_is_not_up(notes, capsys):
    cluster("up", "--size", "2")
    notes.members = []
    assert cluster("status") == 3
    assert "is not up" in capsys.readouterr().out


def test_ls_and_logs(notes, capsys):
    assert cluster("ls") == 0
    assert "no clusters" in capsys.readouterr().out
    cluster("up", "--size", "2")
    capsys.readouterr()
    assert cluster("ls", "--json") == 0
    seen = json.loads(capsys.readouterr().out)
    assert (seen["name"], seen["size"], seen["running"], seen["members"]) == ("headgate", 2, 3, 3)
    assert cluster("ls") == 0
    assert cluster("logs", "1") == 0
    assert cluster("logs", "gateway", "-f") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["line of 1, False", "line of None, True"]
    assert "3 of 3" in lines[1]


def test_down_of_all(notes):
    for name in ("a", "b"):
        cluster("up", "--size", "1", "--name", name)
    assert cluster("down", "--all") == 0
    assert state.names() == []
    assert cluster("down", "--all") == 0


def test_init_writes_what_files_writes_and_shows_the_token_once(tmp_path, capsys):
    folder = str(tmp_path / "keys")
    assert cluster("init", folder, "--size", "2", "--host-pattern", "hg-{rank}", "--oslo", "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert first["token"].startswith("hgt_")
    assert {"broker.toml", "rank-1.cert", "oslo.toml"} <= set(first["made"])
    assert 'address = "tcp://hg-1:8050"' in (tmp_path / "keys" / "broker.toml").read_text()
    assert cluster("init", folder, "--size", "3", "--host-pattern", "hg-{rank}", "--oslo") == 0
    out = capsys.readouterr().out
    assert "3 files made" in out
    assert "token" not in out
    assert cluster("init", folder, "--size", "0") == 78
    assert files.MARK in (tmp_path / "keys" / "broker.toml").read_text()


def test_compose_writes_the_file_of_its_shape(tmp_path, capsys):
    words = ("--size", "3", "--fanout", "4", "--name", "lab", "--image", "x:1", "--nfp", "--no-gateway")
    assert cluster("compose", str(tmp_path), *words) == 0
    shape = Shape("lab", 3, 4, gateway=False, nfp=True, image="x:1")
    assert (tmp_path / compose.FILE).read_text() == compose.render(shape)
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in (compose.FILE, compose.TASKS)]
    assert cluster("compose", str(tmp_path), "--image", "$x") == 78
    assert "image" in capsys.readouterr().err


def test_a_start_beside_another_is_refused_and_harms_nobody(notes, capsys):
    with state.held("headgate"):
        assert cluster("up", "--size", "2") == 78
    assert "being started or ended" in capsys.readouterr().err
    assert notes.did == []


def test_down_ends_what_is_on_its_way_up(notes, monkeypatch):
    """`up` sees its members go, gives up and makes room; a cluster that took the name meanwhile is left alone."""
    assert cluster("up", "--size", "2") == 0
    found = shared_options.find("headgate")
    holds = contextlib.ExitStack()
    holds.enter_context(state.held("headgate"))  # as `up` does

    def down():
        notes.did.append("down")
        state.remove(found.folder)
        state.save(found.folder, state.new(Shape("headgate", 3)))
        holds.close()

    monkeypatch.setattr(found, "down", down)
    lifecycle._take_down(found)
    assert notes.did[1:] == ["down"]
    assert shared_options.find("headgate").saved.shape.size == 3
    lifecycle._take_down(found)
    assert notes.did[1:] == ["down"]


def test_how_to_get_in_can_be_pasted():
    lines = drawing.ways_in(Access("local:///tmp/it's here/local-0"))
    assert lines == ["""export FLUX_URI='local:///tmp/it'"'"'s here/local-0'"""]
