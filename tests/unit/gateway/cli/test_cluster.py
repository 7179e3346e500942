"""The verbs of ``headgate cluster`` before an engine that only takes notes; real ones are in tests/story."""

import contextlib
import json
import time

import pytest

from broker.cli.main import main
from broker.errors import HeadgateError
from gateway.cli.cluster import life, telling, which
from gateway.cluster import files, state
from gateway.cluster.engine import Access, Member, Unsupported
from gateway.cluster.shape import Shape


class Noted:
    """An engine (``gateway.cluster.engine.Engine``) whose members are where one says."""

    def __init__(self):
        self.did = []
        self.members = []
        self.failure = None

    def up(self, shape, folder):
        self.did.append(("up", shape, folder.name))
        if self.failure:
            raise self.failure
        for rank in shape.ranks():
            uri = f"local:///run/x/local-{rank}"
            self.members.append(
                Member(f"rank-{rank}", rank, "running", str(100 + rank), uri, time.time() - 5)
            )
        self.members.append(
            Member("gateway", None, "running", "99", "http://127.0.0.1:8280", time.time() - 5)
        )

    def down(self):
        self.did.append("down")
        self.members = []

    def status(self):
        return self.members

    def access(self, *, login=False):
        link = "http://127.0.0.1:8280/#x" if login else ""
        return Access("local:///nonexistent/local-0", "http://127.0.0.1:8280", link, "hgt_x")

    def logs(self, rank, follow=False):
        yield f"line of {rank}, {follow}"

    def __getattr__(self, verb):
        if verb not in ("kill", "start", "pause", "resume", "partition", "heal"):
            raise AttributeError(verb)

        def do(*args, **words):
            if self.failure:
                raise self.failure
            self.did.append((verb, *args, *words.values()))

        return do


@pytest.fixture
def engine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(telling, "ASK_S", 0.2)
    noted = Noted()
    for module in (life, which):
        monkeypatch.setattr(module, "make", lambda _name, _folder: noted)
    return noted


def cluster(*words):
    return main(["cluster", *words])


def test_up_tells_how_to_get_in(engine, capsys):
    assert cluster("up", "--size", "3", "--engine", "processes", "--nfp") == 0
    (did,) = engine.did
    assert did == ("up", Shape("headgate", 3, nfp=True), "keys")
    out, err = capsys.readouterr()
    assert out.splitlines()[1:] == [
        "0 broker-0  local:///run/x/local-0",
        "├─ 1 broker-1  local:///run/x/local-1",
        "└─ 2 broker-2  local:///run/x/local-2",
        "export FLUX_URI=local:///nonexistent/local-0",
        "the dashboard (the link works once, on this machine):",
        "  http://127.0.0.1:8280/#x",
        "token of the operator: hgt_x",
    ]
    assert "engine: processes, as asked" in err


def test_up_as_json(engine, capsys):
    assert cluster("up", "--size", "2", "--engine", "processes", "--no-gateway", "--json") == 0
    seen = json.loads(capsys.readouterr().out)
    assert (seen["name"], seen["engine"], len(seen["members"])) == ("headgate", "processes", 3)
    assert seen["access"]["uri"] == "local:///nonexistent/local-0"


def test_a_cluster_is_not_started_twice(engine, capsys):
    assert cluster("up", "--size", "2", "--engine", "processes") == 0
    assert cluster("up", "--size", "2", "--engine", "processes") == 78
    assert "is up already" in capsys.readouterr().err
    assert cluster("up", "--size", "2", "--engine", "processes", "--name", "other") == 0
    assert state.names() == ["headgate", "other"]


def test_what_is_left_of_one_that_died_is_removed_first(engine):
    assert cluster("up", "--size", "2", "--engine", "processes") == 0
    (state.folder_of("headgate") / "left").write_text("")
    engine.members = []
    assert cluster("up", "--size", "3", "--engine", "processes") == 0
    assert engine.did[1:] == ["down", ("up", Shape("headgate", 3), "keys")]
    assert not (state.folder_of("headgate") / "left").exists()


def test_a_failed_start_leaves_nothing(engine, capsys):
    engine.failure = HeadgateError("rank-1: exit code 78: no such key")
    assert cluster("up", "--size", "2", "--engine", "processes") == 1
    assert "rank-1: exit code 78: no such key" in capsys.readouterr().err
    assert engine.did[-1] == "down"
    assert state.names() == []
    assert not state.folder_of("headgate").exists()


def test_wait_takes_it_down_at_the_end(engine, monkeypatch):
    monkeypatch.setattr(life, "_until_told", lambda: engine.did.append("waited"))
    assert cluster("up", "--size", "1", "--engine", "processes", "--wait") == 0
    assert engine.did[1:] == ["waited", "down"]
    assert state.names() == []


def test_every_fault_reaches_the_engine(engine):
    cluster("up", "--size", "7", "--engine", "processes")
    engine.did.clear()
    for words in ("kill 3", "kill 0 --stay", "start 0", "pause 6", "resume 6", "partition 1 2", "heal"):
        assert cluster(*words.split()) == 0
    assert engine.did == [
        ("kill", 3, False),
        ("kill", 0, True),
        ("start", 0),
        ("pause", 6),
        ("resume", 6),
        ("partition", [1, 2]),
        ("heal",),
    ]


@pytest.mark.parametrize(
    "words", ["kill 7", "start 9", "pause 7", "resume 7", "partition 1 7", "logs 7", "logs x"]
)
def test_a_rank_out_of_range_is_wrong_usage(engine, words, capsys):
    cluster("up", "--size", "7", "--engine", "processes")
    engine.did.clear()
    assert cluster(*words.split()) == 2
    assert "expected" in capsys.readouterr().err
    assert engine.did == []


@pytest.mark.parametrize("words", ["kill -1", "partition", "kill", "frobnicate", ""])
def test_words_that_make_no_sense(engine, words):
    assert cluster(*words.split()) == 2


def test_what_the_engine_cannot_is_told(engine, capsys):
    cluster("up", "--size", "2", "--engine", "processes")
    engine.failure = Unsupported("this engine cannot freeze")
    assert cluster("pause", "1") == 1
    assert "headgate cluster: this engine cannot freeze" in capsys.readouterr().err


def test_a_cluster_that_is_not_there(engine, capsys):
    for words in ("status", "down", "kill 1", "logs gateway", "heal"):
        assert cluster(*words.split(), "--name", "none") == 2
    assert "no cluster none; there are: none" in capsys.readouterr().err


def test_status_of_one_whose_tree_cannot_be_asked(engine, capsys):
    cluster("up", "--size", "2", "--engine", "processes")
    engine.members[1] = Member(
        "rank-1", 1, "exited", "", "local:///x", time.time() - 61, "killed by SIGKILL", 2
    )
    capsys.readouterr()
    assert cluster("status") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["member", "state", "tree", "for", "id", "where"]
    assert lines[2].split()[:7] == ["rank-1", "exited", "(killed", "by", "SIGKILL,", "restarted", "2x)"]
    assert lines[1].split()[:3] == ["rank-0", "running", "-"]
    assert cluster("status", "--json") == 0
    seen = json.loads(capsys.readouterr().out)
    assert [(member["name"], member["tree"]) for member in seen["members"]] == [
        ("rank-0", None),
        ("rank-1", None),
        ("gateway", None),
    ]


def test_status_of_one_that_is_not_up(engine, capsys):
    cluster("up", "--size", "2", "--engine", "processes")
    engine.members = []
    assert cluster("status") == 3
    assert "is not up" in capsys.readouterr().out


def test_ls_and_logs(engine, capsys):
    assert cluster("ls") == 0
    assert "no clusters" in capsys.readouterr().out
    cluster("up", "--size", "2", "--engine", "processes")
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


def test_down_of_all(engine):
    for name in ("a", "b"):
        cluster("up", "--size", "1", "--engine", "processes", "--name", name)
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


def test_what_the_tree_says_of_each_rank():
    def of(status, *children):
        return {"status": status, "children": [{"rank": rank, "status": told} for rank, told in children]}

    told = [
        of("degraded", (1, "lost"), (2, "partial")),
        of("full", (3, "full"), (4, "full")),  # old news from beyond a partition
        of("partial", (5, "full"), (6, "offline")),
        None,
        None,
        None,
        None,
    ]
    seen = telling.judged(Shape("t", 7), told)
    assert list(seen.values()) == ["degraded", "lost", "partial", "lost", "lost", "silent", "offline"]
    assert list(seen) == list(range(7))
    assert telling.judged(Shape("t", 2), [None, None]) == {0: "silent", 1: "silent"}


def test_a_start_beside_another_is_refused_and_harms_nobody(engine, capsys):
    with state.held("headgate"):
        assert cluster("up", "--size", "2", "--engine", "processes") == 78
    assert "being started or ended" in capsys.readouterr().err
    assert engine.did == []


def test_containers_of_somebody_else_are_left_alone(engine, monkeypatch, capsys):
    """An engine of containers knows its members by the name alone: what has it already is not taken over."""
    monkeypatch.setattr(life, "choose", lambda *_: "podman")
    theirs = [Member("redis", None, "running", "1", "", 0.0)]
    engine.members = theirs
    assert cluster("up", "--size", "2", "--name", "shop") == 78
    assert "of a cluster shop that is not in" in capsys.readouterr().err
    assert (engine.did, engine.members) == ([], theirs)
    assert cluster("down", "--name", "shop") == 2
    engine.members = []
    assert cluster("up", "--size", "2", "--name", "shop") == 0


def test_down_ends_what_is_on_its_way_up(engine, monkeypatch):
    """`up` sees its members go, gives up and makes room; a cluster that took the name meanwhile is left alone."""
    assert cluster("up", "--size", "2", "--engine", "processes") == 0
    found = which.find("headgate")
    holds = contextlib.ExitStack()
    holds.enter_context(state.held("headgate"))  # as `up` does

    def down():
        engine.did.append("down")
        state.remove(found.folder)
        state.save(found.folder, state.new(Shape("headgate", 3), "processes"))
        holds.close()

    monkeypatch.setattr(engine, "down", down)
    life._taken_down(found)
    assert engine.did[1:] == ["down"]
    assert which.find("headgate").saved.shape.size == 3
    life._taken_down(found)
    assert engine.did[1:] == ["down"]


def test_how_to_get_in_can_be_pasted():
    lines = telling.lines_of(Access("local:///tmp/it's here/local-0"))
    assert lines == ["""export FLUX_URI='local:///tmp/it'"'"'s here/local-0'"""]
