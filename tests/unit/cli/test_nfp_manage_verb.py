"""``headgate nfp manage`` against a broker of ours, and against one of NorFab's made by hand."""

import json
import logging
from functools import partial

import pytest

from broker.cli import exits
from broker.cli.main import main
from broker.nfp.client import NfpClient
from broker.nfp.names import Command
from tests.live.nfp import nfp_broker, ready, workers_of
from tests.unit.nfp.client.fake_broker import FakeBroker


@pytest.fixture
def live(rundir, monkeypatch):
    (rundir / "inventory.yaml").write_text("workers: {w1: [{site: here}]}")
    with nfp_broker(rundir, inventory=str(rundir / "inventory.yaml")) as live:
        monkeypatch.setenv("HEADGATE_NFP", live.endpoint)
        yield live


@pytest.fixture
def manage(live, capsys):
    def run(*words, code=0):
        assert main(["nfp", "manage", *words, "--base-dir", str(live.base_dir)]) == code
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def worker(live):
    with live.dealer("w1") as worker:
        worker.say(ready())
        live.eventually(lambda: [view for view in workers_of(live.broker) if view.name == "w1"])
        yield worker


def rows(lines):
    return {line.split()[0]: line.split()[1:] for line in lines[1:]}


def test_the_broker_is_shown(manage):
    shown = rows(manage())
    assert shown["status"] == ["active"]
    assert "workers.alive" in shown
    (told,) = map(json.loads, manage("show", "--json"))
    assert told["status"] == "active"
    assert rows(manage("show", "version"))["headgate"]
    assert rows(manage("show", "status"))["role"] == rows(manage("show", "stats"))["role"] == ["broker"]
    assert json.loads(manage("show", "inventory")[0])["workers"] == {"w1": [{"site": "here"}]}


def test_workers_are_disconnected(manage, worker):
    assert manage("disconnect", "nosuch", code=exits.FAILED) == ["no worker was there"]
    assert manage("disconnect", "w1") == ["w1"]
    worker.until(lambda packet: packet.command is Command.DISCONNECT)


def test_a_name_is_freed(live, manage, worker):
    assert manage("unpin", "w1") == ["w1 is free"]
    assert manage("unpin", "w1", code=exits.FAILED) == ["w1 belonged to no key"]


def test_the_inventory_is_read_again(rundir, manage, capsys):
    assert manage("reload")
    (rundir / "inventory.yaml").write_text("workers: [")
    assert manage("reload", code=exits.FAILED) == []


def test_the_log_is_shown(live, manage, capsys):
    logging.getLogger("headgate").warning("a word")
    assert [line.split(" ", 1)[1] for line in manage("logs", "--level", "warning")] == ["WARNING a word"]
    (line,) = manage("logs", "--last", "1", "--json")
    assert json.loads(line)["role"] == "broker"
    assert manage("logs", "--since", "2999-01-01") == []
    assert (
        main(["nfp", "manage", "logs", "--level", "loud", "--base-dir", str(live.base_dir)]) == exits.FAILED
    )
    assert "level 'loud', expected DEBUG" in capsys.readouterr().err


def test_workers_answer_for_themselves(live, manage, capsys):
    (line,) = manage("worker", "show_workers", "broker-files")
    assert line.startswith('broker-files: [{"')
    (line,) = manage("worker", "restart", "broker-files", "--json", code=exits.FAILED)
    assert "lives in its broker's process" in json.loads(line)["answer"]["error"]
    asked = ["worker", "show_broker", "broker-files", "nosuch", "--base-dir", str(live.base_dir)]
    assert main(["nfp", "manage", *asked]) == exits.FAILED
    said = capsys.readouterr()
    assert (len(said.out.splitlines()), "no answer of nosuch: not there" in said.err) == (1, True)


@pytest.mark.parametrize(
    ("word", "said", "outcome"),
    [("restart", "restarting", "restart"), ("shutdown", "shutting down", "stop")],
)
def test_it_is_told_to_leave(word, said, outcome, live, manage):
    assert manage(word) == [said]
    assert live.run(live.broker.left()) == outcome


def test_what_only_owners_may(live, tmp_path, capsys):
    connection = ["--server-key", live.server_key, "--base-dir", str(tmp_path)]
    for words in (["restart"], ["shutdown"], ["disconnect"], ["unpin", "w1"], ["reload"], ["logs"]):
        assert main(["nfp", "manage", *words, *connection]) == exits.FAILED
        assert "not allowed: a user may not call mmi.service.broker" in capsys.readouterr().err


def test_a_broker_of_norfabs_does_not_know_everything(monkeypatch, capsys):
    monkeypatch.setattr("broker.cli.nfp.session.NfpClient", partial(NfpClient, open_timeout_s=0.05))
    with FakeBroker(push=False) as fake:
        where = ["--broker", fake.endpoint, "--no-curve"]
        assert main(["nfp", "manage", "show", *where]) == exits.FAILED
        assert "Unsupported task 'show_broker'" in capsys.readouterr().err
