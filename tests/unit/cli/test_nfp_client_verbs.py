"""The client verbs of NFP against a broker made by hand, as a person calls them."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest

from broker.cli import exits
from broker.cli.main import main
from broker.cli.nfp import events, following
from broker.cli.nfp.following import show_results
from broker.cli.nfp.jobs import JOB_HEADS, job_row
from broker.cli.nfp.session import CONNECT_S, NfpSession
from broker.cli.screen import Screen
from broker.errors import LinkBroken
from broker.nfp.client import BlockingClient, Event, NfpClient
from broker.nfp.client.events import GAP
from broker.transport import curve
from tests.tables import for_each
from tests.unit.nfp.client.fake_broker import FakeBroker, until

HEADGATE = [sys.executable, "-m", "broker.cli.main", "nfp"]


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch):
    """Keys and state of the verbs are nowhere else."""
    folder = tmp_path / "base"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.delenv("HEADGATE_NFP", raising=False)
    return folder / "headgate" / "nfp"


@pytest.fixture(params=[True, False], ids=["ours", "norfab"])
def broker(request, monkeypatch):
    if not request.param:  # deployed NorFab's lets OPEN pass without a word
        monkeypatch.setattr("broker.cli.nfp.session.NfpClient", partial(NfpClient, open_timeout_s=0.05))
    with FakeBroker(push=request.param) as fake:
        monkeypatch.setenv("HEADGATE_NFP", fake.endpoint)
        yield fake


@pytest.fixture
def ours(monkeypatch):
    with FakeBroker(push=True) as fake:
        monkeypatch.setenv("HEADGATE_NFP", fake.endpoint)
        yield fake


def nfp(*words):
    return main(["nfp", *words])


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def values(capsys):
    return [json.loads(line) for line in lines(capsys)]


# ---------------------------------------------------------------- run


def test_run(broker, capsys):
    assert nfp("run", "dummy", "ping", "-k", "n=3") == 0
    assert lines(capsys) == ["w1: 3", "w2: 3"]


def test_run_with_arguments_of_every_kind(ours, capsys):
    words = ["run", "dummy", "ping", "1", "two", '{"three": 3}', "-k", "n=[4]", "-k", '{"five": {"six": 6}}']
    assert nfp(*words, "--target", "w2", "--timeout", "7", "--json") == 0
    assert values(capsys)[0]["worker"] == "w2"
    assert json.loads(ours.seen[1][3]) == {
        "task": "ping",
        "args": [1, "two", {"three": 3}],
        "kwargs": {"n": [4], "five": {"six": 6}},
        "timeout": 7.0,
    }


def test_run_shows_progress(ours, capsys):
    assert nfp("run", "dummy", "ping", "--target", "w1", "--progress") == 0
    captured = capsys.readouterr()
    assert captured.out == "w1: pong\n"
    assert "w1: progress starting" in captured.err.splitlines()


def test_run_as_json_with_progress(ours, capsys):
    assert nfp("run", "dummy", "ping", "--target", "w1", "--progress", "--json") == 0
    said = values(capsys)
    assert {"event": "progress", "worker": "w1", "message": "starting"} in said
    assert said[-1]["result"]["result"] == "pong"


def test_a_failed_task(broker, capsys):
    assert nfp("run", "dummy", "fail", "--target", "w1") == exits.FAILED
    assert lines(capsys)[0].startswith("w1: failed: Traceback")


def test_every_error_of_a_failed_task_is_shown(capsys):
    results = {"w1": {"failed": True, "errors": ["first", "second\n"]}, "w2": {"failed": True, "errors": []}}
    assert show_results(Screen(as_json=False), results) == exits.FAILED
    assert lines(capsys) == ["w1: failed: first", "second", "w2: failed: it does not say why"]


def test_results_that_do_not_come(ours, capsys):
    assert nfp("run", "dummy", "never", "--timeout", "0.3") == exits.TIMEOUT
    assert "nothing final within 0.3 s; no result of w1, w2" in capsys.readouterr().err


def test_a_job_that_nobody_takes(ours, capsys):
    assert nfp("run", "nosuch", "x", "--timeout", "0.2") == exits.TIMEOUT
    assert "it stayed in the queue: no worker of the service 'nosuch' took it" in capsys.readouterr().err
    ours.ignore = 1000
    assert nfp("run", "dummy", "x", "--timeout", "0.2") == exits.TIMEOUT
    assert "no broker has confirmed that it has it" in capsys.readouterr().err


def test_detach_and_take_up(ours, capsys):
    assert nfp("run", "dummy", "never", "--detach") == 0
    (uuid,) = lines(capsys)
    ours.do(lambda: [ours.finish(uuid, worker, worker) for worker in ("w1", "w2")])
    assert nfp("jobs", "result", uuid) == 0
    assert lines(capsys) == ["w1: w1", "w2: w2"]


def test_a_named_client_finds_its_jobs_where_the_broker_keeps_none(broker, base, capsys):
    assert nfp("run", "dummy", "never", "--target", "w1", "--detach", "--name", "me") == 0
    (uuid,) = lines(capsys)
    broker.do(lambda: broker.finish(uuid, "w1", 1))
    assert nfp("jobs", "result", uuid, "--name", "me") == 0
    assert lines(capsys) == ["w1: 1"]
    assert (base / "peers" / "me.db").exists()
    assert nfp("run", "dummy", "ping", "--name", "other", "--no-store") == 0
    assert not (base / "peers" / "other.db").exists()


def test_a_name_that_is_in_use(ours, base, capsys):
    with BlockingClient("me", broker=ours.endpoint, state_dir=base):
        assert nfp("run", "dummy", "ping", "--name", "me") == exits.CONFIG
    assert "client name 'me' is in use on this machine" in capsys.readouterr().err


@for_each("word", ["n", "=3", "{broken", "[1]"])
def test_keywords_that_are_none(ours, word, capsys):
    assert nfp("run", "dummy", "ping", "--kwargs", word) == exits.USAGE
    assert "--kwargs" in capsys.readouterr().err


def test_interrupted_without_a_terminal_the_job_is_cancelled(ours, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def interrupt():
        ours.wait_for(lambda b: "u" in b.jobs)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    assert nfp("run", "dummy", "never", "--uuid", "u") == exits.INTERRUPTED
    interrupting.join()
    assert capsys.readouterr().err == "headgate nfp run: job u cancelled\n"
    assert ours.count("DELETE") == 1


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, *words):
        import pty

        self.main, child = pty.openpty()
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
        self.process = subprocess.Popen(
            [*HEADGATE, *words], stdin=child, stdout=child, stderr=child, env=environ, start_new_session=True
        )
        os.close(child)
        self.seen = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        while True:
            try:
                data = os.read(self.main, 4096)
            except OSError:
                return
            if not data:
                return
            self.seen += data

    def wait_for(self, text):
        until(lambda: text in self.seen)

    def type(self, text):
        os.write(self.main, text)

    def end(self):
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join(5)
            os.close(self.main)


def test_on_a_terminal_interruption_asks(ours):
    terminal = Terminal("run", "dummy", "never", "--uuid", "u")
    ours.wait_for(lambda b: "u" in b.jobs)
    terminal.wait_for(b"w1")
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for(b"ancel it")
    terminal.type(b"w\n")
    ours.do(lambda: ours.event("u", "w1", "progress", "after waiting"))
    terminal.wait_for(b"after waiting")
    terminal.process.send_signal(signal.SIGINT)
    until(lambda: terminal.seen.count(b"ancel it") == 2)
    terminal.type(b"d\n")
    assert terminal.end() == exits.INTERRUPTED
    assert b"headgate nfp jobs result u" in terminal.seen
    assert ours.count("DELETE") == 0


class Typed(io.StringIO):
    """What somebody types at a terminal."""

    def isatty(self):
        return True


def test_whoever_sits_at_a_terminal_answers_workers(ours, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", Typed("7\n"))
    assert nfp("run", "dummy", "ask", "--target", "w2", "--progress") == 0
    said = capsys.readouterr()
    assert "w2 asks: really? " in said.err
    assert said.out == "w2: 7\n"
    assert ours.inputs["w2"]["value"] == 7


def test_what_workers_say_stays_on_its_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    said = "really?\nheadgate: forged\x1b[2J"
    body = {"extras": {"input_request": {"id": "1", "question": said}}}
    asyncio.run(following.answer(None, Event("input_request", "w2", said, body), Screen(False)))
    events.show(Screen(False), Event(GAP, message=said))
    told = capsys.readouterr().err
    assert told.count("\n") == 2
    assert "\x1b" not in told


def test_services_of_the_broker_itself_are_asked_once(broker, capsys):
    assert nfp("run", "sid.service.broker", "get_inventory", "-k", "name=w1") == 0
    assert lines(capsys) == ['broker: {"hosts":["w1"]}']
    assert nfp("run", "mmi.service.broker", "show_workers", "--json") == 0
    assert [worker["name"] for worker in values(capsys)[0]["result"]] == ["w1", "w2", "f1", "f2"]
    assert broker.count("MMI") == 2
    assert broker.count("POST") == 0


def test_what_management_answers_is_no_failed_task(ours, capsys):
    ours._answer = lambda *_: (200, {"failed": ["w1"], "result": 7})
    assert nfp("run", "jobs.service.broker", "show") == 0
    assert lines(capsys) == ['broker: {"failed":["w1"],"result":7}']


def test_services_of_the_broker_itself_take_no_jobs(ours, capsys):
    assert nfp("run", "mmi.service.broker", "restart", "--detach") == exits.USAGE
    assert "--detach: mmi.service.broker takes no jobs" in capsys.readouterr().err
    assert nfp("run", "mmi.service.broker", "nonsense") == exits.FAILED
    assert "mmi.service.broker: no task 'nonsense'" in capsys.readouterr().err


# ---------------------------------------------------------------- jobs


def test_jobs(ours, capsys):
    assert nfp("run", "dummy", "ping", "--uuid", "done") == 0
    assert nfp("run", "dummy", "never", "--uuid", "open", "--detach") == 0
    capsys.readouterr()
    assert nfp("jobs") == 0
    told = lines(capsys)
    assert told[0].split()[:8] == ["id", "service", "task", "target", "state", "age", "took", "workers"]
    assert told[1].split()[:5] == ["done", "dummy", "ping", "all", "done"]
    assert nfp("jobs", "list", "--json") == 0
    assert [job["state"] for job in values(capsys)] == ["done", "open"]
    assert nfp("jobs", "show", "open", "--json") == 0
    assert values(capsys)[0]["task"] == "never"
    assert nfp("jobs", "show", "done") == 0
    assert any(line.split() == ["task", "ping"] for line in lines(capsys))


@pytest.mark.parametrize(("target", "state"), [("w1", "failed"), ("w1,w2", "2 of 2 failed")])
def test_a_job_whose_task_failed_is_not_shown_as_done(target, state, ours, capsys):
    assert nfp("run", "dummy", "fail", "--target", target) == exits.FAILED
    capsys.readouterr()
    assert nfp("jobs") == 0
    assert f" {state} " in lines(capsys)[1]
    assert nfp("jobs", "--json") == 0
    assert values(capsys)[0]["failed"] == target.split(",")


def test_a_list_shows_what_was_asked_and_how_it_ended(ours, capsys):
    assert nfp("run", "dummy", "fail", "-k", "device=r1") == exits.FAILED
    capsys.readouterr()
    assert nfp("jobs") == 0
    assert 'device="r1"  ValueError: no such device' in lines(capsys)[1]
    (uuid,) = ours.jobs
    assert nfp("jobs", "show", uuid) == 0
    told = "\n".join(lines(capsys))
    assert "w1: failed: ValueError: no such device\nTraceback (most recent call last):" in told


def test_jobs_are_filtered_by_the_broker_and_more_are_told(ours, capsys):
    ours.total = 7
    words = ("--state", "failed,expired", "--text", "r1", "--client", "c", "--worker", "w1", "--limit", "3")
    assert nfp("jobs", "list", *words, "--since", "2026-01-31T12:00") == 0
    assert ours.listed == {
        "state": "failed,expired", "text": "r1", "client": "c", "worker": "w1", "limit": 3,
        "since": 1769860800.0,
    }  # fmt: skip
    assert "7 more" in capsys.readouterr().err
    assert nfp("jobs", "--since", "noon") == exits.USAGE
    assert "--since 'noon': expected a time" in capsys.readouterr().err


def test_cancel(ours, capsys):
    assert nfp("run", "dummy", "never", "--uuid", "u", "--detach") == 0
    capsys.readouterr()
    assert nfp("jobs", "cancel", "u") == 0
    assert lines(capsys) == ["u cancelled"]
    assert nfp("jobs", "cancel", "u") == exits.FAILED
    assert "job 'u' is not known" in capsys.readouterr().err


def test_one_id_that_is_unknown_does_not_keep_the_others(ours, capsys):
    assert nfp("run", "dummy", "never", "--uuid", "u", "--detach") == 0
    capsys.readouterr()
    assert nfp("jobs", "cancel", "nosuch", "u") == exits.FAILED
    said = capsys.readouterr()
    assert "job 'nosuch' is not known" in said.err
    assert said.out.splitlines() == ["u cancelled"]


def test_a_job_that_is_over_cannot_be_cancelled(ours, capsys):
    assert nfp("run", "dummy", "ping", "--uuid", "u") == 0
    capsys.readouterr()
    assert nfp("jobs", "cancel", "u") == exits.FAILED
    assert lines(capsys) == ["u not cancelled: done"]


# ---------------------------------------------------------------- services, events


def test_services(broker, capsys):
    assert nfp("services") == 0
    told = [line.split() for line in lines(capsys)]
    assert told[1][:3] == ["dummy", "2", "2"]
    assert ["w1", "dummy", "alive"] in [row[:3] for row in told]
    assert nfp("services", "dummy", "--json") == 0
    (value,) = values(capsys)
    assert [service["name"] for service in value["services"]] == ["dummy"]


def test_a_service_that_nobody_offers(broker, capsys):
    assert nfp("services", "nosuch") == exits.FAILED
    assert "no worker offers 'nosuch'" in capsys.readouterr().err
    assert nfp("services", "nosuch", "--json") == exits.FAILED


def test_events(ours, capsys):
    ours.do(lambda: [ours.publish(kind) for kind in ("submitted", "finished", "closed")])
    assert nfp("events", "--since", "1", "--count", "2") == 0
    told = lines(capsys)
    assert [line.split()[0] for line in told] == ["2", "3"]
    assert told[1].endswith("u dummy.? closed w1 closed of u")
    assert nfp("events", "--since", "0", "--count", "1", "--json") == 0
    assert values(capsys)[0]["kind"] == "submitted"


def test_events_where_there_are_none(monkeypatch, capsys):
    with FakeBroker(push=False) as fake:
        assert nfp("events", "--broker", fake.endpoint) == exits.FAILED
    assert capsys.readouterr().err == "headgate nfp: events.service.broker: no such service\n"


# ---------------------------------------------------------------- fetch


def test_fetch(broker, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broker.files["nf://deep/a.bin"] = b"abc" * 1000
    assert nfp("fetch", "nf://deep/a.bin") == 0
    assert lines(capsys) == [str(tmp_path / "a.bin")]
    assert (tmp_path / "a.bin").read_bytes() == b"abc" * 1000
    assert nfp("fetch", "nf://deep/a.bin", "--json") == 0
    assert values(capsys)[0]["cached"] is True
    assert nfp("fetch", "nf://deep/a.bin", "-o", f"{tmp_path}/new/") == 0
    assert (tmp_path / "new" / "a.bin").exists()
    capsys.readouterr()
    assert nfp("fetch", "--list") == 0
    assert lines(capsys) == ["deep/a.bin"]
    assert nfp("fetch", "--details", "nf://deep/a.bin") == 0
    assert lines(capsys)[0].startswith("nf://deep/a.bin 3000 bytes " + ("sha256" if broker.push else "md5"))


@for_each("url", ["http://a", "nf://", "nf://a/../../b"])
def test_a_url_that_names_no_file_is_refused_before_a_broker_is_asked(url, capsys):
    assert nfp("fetch", url, "--broker", "tcp://127.0.0.1:1") == exits.USAGE
    assert "is no nf:// URL of a file" in capsys.readouterr().err


def test_fetch_of_nothing(ours, capsys):
    assert nfp("fetch", "nf://nothing") == exits.FAILED
    assert "nf://nothing: file not found" in capsys.readouterr().err


# ---------------------------------------------------------------- keys


def test_keys(base, capsys):
    assert nfp("keys") == 0
    assert lines(capsys) == [f"no keys in {base}"]
    assert nfp("keys", "make", "w1", "--service", "dummy", "--json") == 0
    (made,) = values(capsys)
    assert curve.load(base / "peers" / "w1.key_secret").public_key == made["key"]
    assert nfp("keys", "make", "w1") == 0
    assert f'key = "{made["key"]}"' in lines(capsys)
    assert nfp("keys", "make", "w1", "--standing", "guest") == 0
    assert lines(capsys)[1:] == [
        "[[nfp.keys]]",
        f'key = "{made["key"]}"',
        'name = "w1"',
        'standing = "guest"',
    ]
    assert nfp("keys", "list", "--json") == 0
    assert [value["whose"] for value in values(capsys)] == ["peer"]


def test_the_lines_for_the_list_are_settings(base, capsys):
    from broker.settings import loads

    assert nfp("keys", "make", 'odd "name"', "--service", "a*", "--service", "b") == 0
    settings = loads("[nfp]\n" + capsys.readouterr().out)
    assert settings.nfp is not None
    (listed,) = settings.nfp.keys
    assert (listed.services, listed.standing) == (("a*", "b"), "user")


def test_the_brokers_key(base, capsys):
    assert nfp("keys", "broker") == exits.CONFIG
    base.mkdir(parents=True)
    certificate = curve.generate()
    curve.save(certificate.public, base / "broker.key")
    capsys.readouterr()
    assert nfp("keys", "broker") == 0
    assert lines(capsys) == [certificate.public_key]


@for_each("words", [("make", "x", "--standing", "king"), ("make", "x" * 300)])
def test_keys_that_cannot_be(words, capsys):
    assert nfp("keys", *words) == exits.CONFIG


# ---------------------------------------------------------------- the connection


def session(**given):
    usual = {"brokers": None, "server_key": None, "key": None, "name": None, "base_dir": None}
    return NfpSession("run", **{**usual, "plain": False, "insecure": False, "as_json": False, **given})


def test_the_owners_key_is_taken_where_it_is(base):
    base.mkdir(parents=True)
    server, owner = curve.generate(), curve.generate()
    curve.save(server.public, base / "broker.key")
    assert session()._given_server_key() == server.public_key
    own = session()._own_key()
    assert own.public_key == curve.load(base / "peers" / "cli.key_secret").public_key
    curve.save(owner, base / "owner.key_secret")
    assert session()._own_key() == base / "owner.key_secret"
    assert session(key="mine.key_secret")._own_key() == "mine.key_secret"
    assert session(plain=True)._given_server_key() == ""


def test_two_calls_are_two_clients():
    assert session()._name != session()._name
    assert session(name="me")._name == "me"


def test_nobody_there(monkeypatch, capsys):
    monkeypatch.setattr("broker.cli.nfp.session.CONNECT_S", 0.3)
    assert nfp("run", "dummy", "ping", "--broker", "tcp://127.0.0.1:1") == exits.NO_CONNECTION
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("headgate nfp run: cannot connect to tcp://127.0.0.1:1: Connection refused")
    assert len(said) == 3
    assert "is a broker running at tcp://127.0.0.1:1?" in said[1]


@for_each(
    ("environ", "words", "brokers"),
    [
        ("", ("--broker", "tcp://127.0.0.1:1"), 1),
        ("", ("--broker", "tcp://127.0.0.1:1", "--broker", "tcp://127.0.0.1:2"), 2),
        ("tcp://127.0.0.1:1, tcp://127.0.0.1:2", (), 2),
        ("tcp://127.0.0.1:1, tcp://127.0.0.1:2", ("--broker", "ipc:///x"), 1),
    ],
)
def test_every_broker_of_the_list_or_else_of_the_environment_gets_its_time(
    environ, words, brokers, monkeypatch, capsys
):
    waited = []

    async def wait_connected(self, timeout_s):
        waited.append(timeout_s)
        raise LinkBroken("nobody")

    monkeypatch.setenv("HEADGATE_NFP", environ)
    monkeypatch.setattr("broker.nfp.client.client.NfpClient.wait_connected", wait_connected)
    assert nfp("services", *words) == exits.NO_CONNECTION
    assert waited == [CONNECT_S * brokers]


@pytest.mark.parametrize("words", [("run", "dummy", "ping"), ("fetch", "nf://a")])
def test_the_timeout_is_for_the_connection_too(words, monkeypatch, capsys):
    waited = []

    async def wait_connected(self, timeout_s):
        waited.append(timeout_s)
        raise LinkBroken("nobody")

    monkeypatch.setattr("broker.nfp.client.client.NfpClient.wait_connected", wait_connected)
    assert nfp(*words, "--timeout", "1", "--broker", "tcp://127.0.0.1:1") == exits.NO_CONNECTION
    assert waited == [1.0]


def test_plaintext_and_a_key(capsys):
    assert nfp("services", "--no-curve", "--server-key", "x" * 40) == exits.USAGE


def test_plaintext_where_keys_lie_about(base, ours, capsys):
    base.mkdir(parents=True)
    curve.save(curve.generate().public, base / "broker.key")
    assert nfp("services", "--no-curve", "--json") == 0
    assert values(capsys)
    assert nfp("services", "--no-curve", "--name", "me") == 0
    assert os.listdir(base) == ["broker.key"]


def test_no_key_is_sought_but_in_the_base_directory(base, ours, tmp_path):
    base.mkdir(parents=True)
    curve.save(curve.generate().public, base / "broker.key")
    assert nfp("services", "--base-dir", str(tmp_path / "other")) == 0


def test_plaintext_to_another_machine_is_refused(capsys):
    assert nfp("services", "--broker", "tcp://192.0.2.1:5555") == exits.CONFIG
    assert "CURVE" in capsys.readouterr().err


def test_help_has_examples(capsys):
    for verb in ("run", "jobs", "services", "events", "fetch", "keys"):
        assert nfp(verb, "--help") == 0
        assert f"headgate nfp {verb}" in capsys.readouterr().out


@for_each(
    ("arguments", "shown"),
    [
        ({"args": [1], "kwargs": {"a": "b"}}, '1, a="b"'),
        ({"args": 5, "kwargs": {}}, '{"args":5,"kwargs":{}}'),
        ({"args": [], "kwargs": ["a"]}, '{"args":[],"kwargs":["a"]}'),
        ("no JSON", "no JSON"),
        (None, ""),
    ],
)
def test_a_list_of_jobs_stands_whatever_somebody_has_submitted(arguments, shown):
    job = {
        "uuid": "u",
        "service": "s",
        "task": "t",
        "target": "any",
        "state": "done",
        "age_s": 1,
        "client": "c",
    }
    row = dict(zip(JOB_HEADS, job_row({**job, "workers": [], "arguments": arguments}), strict=True))
    assert row["arguments"] == shown
