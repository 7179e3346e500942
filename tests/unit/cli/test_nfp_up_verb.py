"""``headgate nfp up``: what is started for an inventory and options, what is refused, what is told and kept."""

import json
import os
import sys
from pathlib import Path

import pytest

from broker import interpreter
from broker.cli import exits
from broker.cli.main import main
from broker.cli.nfp import norfab_worker, up
from broker.nfp.inventory import Datastore, read_topology
from broker.outlet import Outlet
from tests.tables import for_each

KEY = "k" * 40
INVENTORY = """\
broker: {endpoint: "tcp://127.0.0.1:5999"}
workers:
  "*": [{service: greet, worker: greet.py, max_concurrent_jobs: 8}]
  n: [{worker: }]
topology:
  workers: [w, {x: {depends_on: [w]}}]
"""


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY)
    return path


def programs(inventory: Path, *words: str) -> dict[str, list[str]]:
    """The command lines behind ``headgate nfp`` by name."""
    given = up.arguments().parse_args([str(inventory), *words])
    datastore = Datastore(inventory)
    datastore.load()
    wanted = up.wanted(given, read_topology(datastore))
    ours = [*interpreter.command("headgate"), "nfp"]
    found = {each.name: list(each.words()) for each in up.Commands(given, wanted).programs()}
    return {
        name: words[len(ours) :] if words[: len(ours)] == ours else words for name, words in found.items()
    }


def options(words: list[str]) -> dict[str, str]:
    """``--name value`` of a command line without flags."""
    return dict(zip(words[::2], words[1::2], strict=True))


def test_what_is_started(inventory: Path) -> None:
    folder = inventory.parent
    found = programs(inventory)
    assert list(found) == ["broker", "w", "x"]
    verb, *words = found["broker"]
    state = f"{folder}/home/headgate/nfp"
    assert (verb, options(words)) == (
        "broker",
        {"--endpoint": "tcp://127.0.0.1:5999", "--inventory": str(inventory), "--base-dir": state},
    )
    verb, code, *words = found["w"]
    assert (verb, code, words.count("--inventory")) == ("worker", f"{folder}/greet.py", 1)
    words.remove("--inventory")
    assert options(words) == {
        "--name": "w",
        "--broker": "tcp://127.0.0.1:5999",
        "--base-dir": state,
        "--drain": "30",
        "--service": "greet",
        "--jobs": "8",
    }


def test_options_are_passed_on(inventory: Path) -> None:
    given = ["--base-dir", "state", "--no-store", "--no-curve", "--insecure", "--drain", "5"]
    given += ["--config", "nfp.toml", "--set", "nfp.credits=4"]
    Path("nfp.toml").write_text("")
    found = programs(inventory, *given)
    broker, worker = " ".join(found["broker"]), " ".join(found["w"])
    for words in (broker, worker):
        assert f"--base-dir {inventory.parent}/state" in words
        assert words.endswith("--no-curve --insecure --no-store")
    assert "--config nfp.toml --set nfp.credits=4" in broker
    assert "--drain 5" in worker


@for_each(
    ("file", "words", "endpoint"),
    [
        ('worker_endpoint = "tcp://127.0.0.1:6001"', [], "tcp://127.0.0.1:6001"),
        ('endpoint = "tcp://127.0.0.1:6000"', [], "tcp://127.0.0.1:5999"),
        ("", ["--set", "nfp.endpoint=tcp://127.0.0.1:6000"], "tcp://127.0.0.1:6000"),
        ("", ["--set", "nfp.worker_endpoint=tcp://127.0.0.1:6001"], "tcp://127.0.0.1:6001"),
    ],
)
def test_workers_go_where_the_settings_of_the_broker_say(
    inventory: Path, file: str, words: list[str], endpoint: str
) -> None:
    Path("nfp.toml").write_text(f"[nfp]\n{file}\n")
    found = programs(inventory, "--config", "nfp.toml", *words)
    assert found["w"][found["w"].index("--broker") + 1] == endpoint
    assert "--no-curve" not in found["w"]
    alone = programs(inventory, "--config", "nfp.toml", "--no-broker", "--server-key", KEY, *words)
    assert alone["w"][alone["w"].index("--broker") + 1] == "tcp://127.0.0.1:5999"


def test_workers_have_the_keys_and_the_form_that_the_settings_of_the_broker_say(inventory: Path) -> None:
    inventory.write_text(INVENTORY.replace('broker: {endpoint: "tcp://127.0.0.1:5999"}', ""))
    place = inventory.parent / "srv"
    Path("nfp.toml").write_text(
        f'[nfp]\nendpoint = "tcp://127.0.0.1:6000"\ncurve = false\ninsecure = true\nbase_dir = "{place}"\n'
    )
    worker = programs(inventory, "--config", "nfp.toml")["w"]
    assert f"--broker tcp://127.0.0.1:6000 --base-dir {place}" in " ".join(worker)
    assert worker[-2:] == ["--no-curve", "--insecure"]


def test_an_environment_file_is_read_as_in_norfab(inventory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["# of the lab", "export NFP_TEST_A='x y'", 'NFP_TEST_B="a b" # of b', "NFP_TEST_C=a#b  # c"]
    Path(".env").write_text("\n".join([*lines, "NFP_TEST_D=", "no assignment", ""]))
    names = [f"NFP_TEST_{letter}" for letter in "ABCD"]
    for name in names:
        monkeypatch.setenv(name, "before")
    with pytest.raises(SystemExit, match="2"):
        main(["nfp", "up", "--no-broker", "--no-workers"])
    assert main(["nfp", "up", "--worker", "nosuch"]) == exits.CONFIG
    assert [os.environ[name] for name in names] == ["x y", "a b", "a#b", ""]
    monkeypatch.setenv("NFP_TEST_A", "before")
    assert main(["nfp", "up", "--worker", "nosuch", "--no-env"]) == exits.CONFIG
    assert os.environ["NFP_TEST_A"] == "before"
    Path(".env").write_bytes(b"\xff")
    assert main(["nfp", "up", "--worker", "nosuch"]) == exits.CONFIG


def test_a_part_of_it(inventory: Path) -> None:
    assert list(programs(inventory, "--no-workers")) == ["broker"]
    assert list(programs(inventory, "--worker", "x")) == ["broker", "x"]
    found = programs(inventory, "--no-broker", "--server-key", KEY)
    assert list(found) == ["w", "x"]
    assert f"--server-key {KEY}" in " ".join(found["w"])
    inventory.write_text(INVENTORY.replace("{endpoint", f"{{zmq_auth: false, shared_key: {KEY}, endpoint"))
    assert "--no-curve" in programs(inventory, "--no-broker")["w"]
    assert "--server-key" not in programs(inventory, "--no-broker")["w"]


def test_a_worker_of_norfab(inventory: Path) -> None:
    inventory.write_text(INVENTORY.replace("worker: greet.py, ", "").replace("n: [{worker: }]", ""))
    found = programs(inventory, "--norfab", "/n/python", "--no-broker", "--server-key", KEY)
    script = norfab_worker.__file__
    assert found["w"] == ["/n/python", "-P", script, str(inventory), "w", "tcp://127.0.0.1:5999", KEY]
    assert programs(inventory, "--norfab", "/n/python", "--no-curve")["w"][-1] == ""


@pytest.mark.parametrize(
    ("text", "words", "code", "said"),
    [
        (None, [], exits.CONFIG, "inventory.yaml cannot be read: No such file"),
        ("a: [", [], exits.CONFIG, "inventory.yaml:1: "),
        (INVENTORY, ["--worker", "y"], exits.CONFIG, "no worker 'y' in the topology"),
        (INVENTORY, ["--server-key", "z"], exits.CONFIG, "z: "),
        (INVENTORY, ["--set", "nfp.nosuch=1"], exits.CONFIG, "nosuch"),
        (INVENTORY, ["--set", "nfp.endpoint=tcp://127.0.0.1:*"], exits.CONFIG, "expected a port"),
        ("topology: {broker: false}", [], exits.CONFIG, "nothing to start"),
        (
            INVENTORY.replace("[w, {x: {depends_on: [w]}}]", "[broker]"),
            [],
            exits.CONFIG,
            "cannot be called 'broker' here",
        ),
        (
            INVENTORY.replace(", worker: greet.py", ""),
            [],
            exits.CONFIG,
            "inventory.yaml:6: worker 'w' of the service 'greet' is NorFab's own or a plugin of it: name an",
        ),
    ],
)
def test_what_cannot_be(
    inventory: Path,
    text: str | None,
    words: list[str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if text is None:
        inventory.unlink()
    else:
        inventory.write_text(text)
    assert main(["nfp", "up", *words]) == code
    assert said in capsys.readouterr().err


def test_neither_broker_nor_workers(inventory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["nfp", "up", "--no-broker", "--no-workers"])
    assert "expected one of them" in capsys.readouterr().err


def test_lines_are_told_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = up.OutputPrinter(tmp_path / "logs", as_json=False)
    told("", "logs", "logs in x")
    told("a/b", "starting", "is started")
    told("a/b", "line", "text")
    told.close()
    assert capsys.readouterr().out == "logs in x\na/b - is started\na/b | text\n"
    first, second = (tmp_path / "logs" / "a%2Fb.log").read_text().splitlines()
    assert (first.endswith(" -- is started"), second) == (True, "text")


def test_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = up.OutputPrinter(tmp_path, as_json=True)
    told("w", "line", "text")
    told("w", "left", "has left")
    told.close()
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(said["name"], said["event"], said["text"]) for said in told] == [
        ("w", "line", "text"),
        ("w", "left", "has left"),
    ]
    assert "text" in (tmp_path / "w.log").read_text()


def test_what_nobody_reads_is_told_as_an_object_among_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "out", "w", encoding="utf-8") as out:
        monkeypatch.setattr("sys.stdout", Outlet(out))
        up.OutputPrinter(tmp_path, as_json=True).close()
        said = json.loads(sys.stdout.told_of(7))
    assert (said["event"], said["text"][:7]) == ("dropped", "7 lines")


def test_a_folder_that_cannot_be_made(
    tmp_path: Path, inventory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").write_text("")
    assert main(["nfp", "up", "--base-dir", str(tmp_path)]) == exits.CONFIG
    assert "cannot make the folder" in capsys.readouterr().err
