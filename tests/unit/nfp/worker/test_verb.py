"""``headgate nfp worker``: finding the Worker in a file or module, options, a process of its own."""

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys

import pytest

from broker.cli.exits import UsageError
from broker.cli.main import main
from broker.cli.nfp import worker as verb
from broker.errors import ConfigError
from broker.nfp.names import Command
from broker.nfp.worker import Worker
from tests.tables import for_each
from tests.unit.nfp.peer.raw_broker import PATIENCE_S, RawBroker
from tests.unit.nfp.worker.rig import post, result

GREET = """
from broker.nfp.worker import Worker

worker = Worker("greet", resources=["r1"])

@worker.task
def hello(who="world"):
    print("said", who)
    return f"hello {who}"
"""


@pytest.fixture
def greet(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "greet_me.py"
    path.write_text(GREET)
    yield path
    sys.modules.pop("greet_me", None)


def test_the_worker_of_a_file_and_of_a_module(greet, monkeypatch):
    monkeypatch.chdir(greet.parent)
    for where in (str(greet), f"{greet}:worker", "greet_me:worker", "greet_me.py"):
        assert verb.find(where).service == "greet"


@for_each(
    ("text", "where", "error", "said"),
    [
        ("x = 1", "{}", UsageError, "0 Workers, expected one (there is none"),
        (
            GREET + "second = Worker('b')",
            "{}",
            UsageError,
            "2 Workers, expected one (there is: worker, second)",
        ),
        (GREET, "{}:absent", UsageError, "absent is nothing, expected a Worker (there is: worker)"),
        (GREET, "{}:hello", UsageError, "hello is a function"),
        ("import absent_module", "{}", ConfigError, "ModuleNotFoundError: No module named 'absent_module'"),
        ("def", "{}", ConfigError, "cannot be loaded: SyntaxError"),
        (GREET, "absent/{}", UsageError, "no such file"),
        (GREET, "no_such_module:worker", UsageError, "no such module"),
        (GREET, "json.absent:worker", UsageError, "no such module"),
    ],
)
def test_what_cannot_be_found_is_said(tmp_path, text, where, error, said):
    path = tmp_path / "some_file.py"
    path.write_text(text)
    with pytest.raises(error) as raised:
        verb.find(where.format(path) if not where.startswith("absent") else "absent/x.py")
    assert said in str(raised.value)
    sys.modules.pop("some_file", None)


def test_options_go_before_what_the_file_says(tmp_path):
    words = (
        "x.py -b tcp://a:1 -b tcp://b:2 -n w9 -j 4 --no-store --inventory --resource r2 --drain 5 --insecure"
    )
    given = verb.arguments().parse_args(
        [*words.split(), "--base-dir", str(tmp_path), "--server-key", "k", "--key-secret", "f"]
    )
    worker = Worker("s", resources=["r1"])
    verb.settle(worker, given)
    assert (worker.name, worker.brokers) == ("w9", ["tcp://a:1", "tcp://b:2"])
    assert (worker.state_dir, worker.store, worker.slots, worker.drain_s) == (tmp_path, False, 4, 5.0)
    assert (worker.ask_inventory, worker.insecure, worker.resources) == (True, True, ["r1", "r2"])
    assert (worker.server_key, worker.key) == ("k", "f")
    verb.settle(worker, verb.arguments().parse_args(["x.py", "--no-curve"]))
    assert worker.server_key == ""
    with pytest.raises(UsageError, match="--no-curve and --server-key"):
        verb.settle(worker, argparse.Namespace(**{**vars(given), "no_curve": True}))
    with pytest.raises(ConfigError, match="name"):
        verb.settle(worker, argparse.Namespace(**{**vars(given), "name": "x" * 300}))


def test_help_names_what_it_takes(capsys):
    with pytest.raises(SystemExit) as ended:
        verb.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "FILE.py" in said
    assert "--server-key" in said


def test_exit_codes_are_those_of_the_help(greet, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    codes = dict(
        re.findall(
            r"(\d+) ([^\d]+?)(?:, (?=\d)|$)",
            " ".join(verb.arguments().format_help().split()).split("Exit codes: ")[1],
        )
    )
    assert "no such file, module or Worker" in codes["2"]
    assert "cannot be loaded" in codes["78"]
    assert set(codes) == {"0", "2", "78"}

    def code(*words):
        try:
            return main(["nfp", "worker", *words])
        except SystemExit as ended:
            return ended.code

    (tmp_path / "broken.py").write_text("def")
    (tmp_path / "empty.py").write_text("")
    for words in (["absent.py"], ["absent:worker"], [str(tmp_path / "empty.py")], [str(greet), "--nonsense"]):
        assert code(*words) == 2, words
    for words in ([str(tmp_path / "broken.py")], [str(greet), "--jobs", "100"]):
        assert code(*words) == 78, words
    capsys.readouterr()


async def fetched(broker, uuid):
    """The result of a job, as deployed NorFab gets it."""
    post(broker, uuid, "hello", client=b"cli")
    while b"result_ready" not in (await broker.take_only(Command.EVENT, Command.RESPONSE)).data:
        pass
    broker.say("w1", Command.GET, client=b"cli", uuid=uuid, body=b"{}")
    return result(await broker.take_only(Command.RESPONSE, Command.EVENT))["result"]


async def life(broker, greet, process):
    """Call it, have it started anew with another program, call it, end it."""
    await broker.take_only(Command.READY)
    assert await fetched(broker, "u1") == "hello world"
    assert await asyncio.to_thread(process.stdout.readline) == "said world\n"
    greet.write_text(GREET.replace("hello {who}", "good day, {who}"))
    broker.say("w1", Command.MMI, client=b"o", uuid="x", body=json.dumps({"task": "restart"}).encode())
    await broker.take_only(Command.DISCONNECT, Command.RESPONSE)
    await broker.take_only(Command.READY)
    assert await fetched(broker, "u2") == "good day, world"
    process.send_signal(signal.SIGTERM)
    await broker.take_only(Command.DISCONNECT)


@pytest.mark.patient
def test_a_process_works_starts_anew_and_leaves(greet, tmp_path):
    with RawBroker() as broker:
        words = [str(greet), "-n", "w1", "-b", broker.endpoint, "--base-dir", str(tmp_path)]
        program = "import sys; from broker.cli.nfp.worker import main; sys.exit(main(sys.argv[1:]))"
        process = subprocess.Popen(
            [sys.executable, "-c", program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            asyncio.run(life(broker, greet, process))
            said, logged = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0
            assert said == "said world\n", "what is there is the tasks' own"
            assert logged.count("worker w1 of the service greet: hello") == 2
            assert "starts anew" in logged
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
