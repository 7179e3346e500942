"""Scripts written for NorFab, over our client, at a broker made by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.nfp.names import Command
from broker.nfp.norfab import NorFab
from broker.nfp.norfab.__main__ import main as start_script
from tests.unit.nfp.client.fake_broker import FakeBroker

KEYS = {
    "result", "failed", "errors", "task", "messages", "juuid", "resources", "resources_failed", "status",
    "task_started", "task_completed", "service", "diff", "dry_run",
}  # fmt: skip
SCRIPT = """
import json, sys
from norfab.core.nfapi import NorFab
from norfab.core.client import NFPClient
with NorFab(inventory=sys.argv[1], run_broker=False, run_workers=False) as nf:
    found = nf.client.run_job("dummy", "ping", kwargs={"n": 2}, workers=["w1"])
    print(json.dumps([isinstance(nf.client, NFPClient), nf.client.name, found["w1"]["result"]]))
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Where state is kept, and where the script runs."""
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}-state")
    monkeypatch.setattr(sys, "argv", ["/anywhere/tool.py"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ours():
    with FakeBroker(push=True) as fake:
        yield fake


def made(broker, **options):
    return NorFab(inventory_data={"broker": {"endpoint": broker.endpoint}}, **options)


@pytest.fixture
def client(ours):
    with made(ours) as nf:
        yield nf.client


def test_run_job(client):
    assert {w: r["result"] for w, r in client.run_job("dummy", "ping", kwargs={"n": 3}).items()} == {
        "w1": 3,
        "w2": 3,
    }
    assert set(client.run_job("dummy", "ping", workers="w2", args=[1])) == {"w2"}
    assert client.run_job("dummy", "fail", workers=["w1"])["w1"]["failed"] is True
    assert client.run_job("dummy", "ping", uuid="u", nowait=True) == {"uuid": "u", "service": "dummy"}


def test_results_that_do_not_come_are_timeouts(client):
    found = client.run_job("dummy", "never", uuid="u", workers=["w1", "w2"], timeout=0.3)
    assert set(found) == {"w1", "w2"}
    assert found["w1"].keys() == KEYS
    assert {key: found["w1"][key] for key in ("result", "failed", "status", "juuid", "service", "task")} == {
        "result": None, "failed": True, "status": "timeout", "juuid": "u", "service": "dummy", "task": "never",
    }  # fmt: skip
    assert "nothing final within 0.3 s" in found["w1"]["errors"][0]
    assert set(client.run_job("nosuch", "x", timeout=0.2)) == {"all"}


def test_results_are_timeouts_where_the_broker_was_the_first_to_say_so(ours, client):
    future = client.submit_job("dummy", "never", uuid="u", workers=["w1", "w2"])
    ours.wait_for(lambda b: "u" in b.jobs)

    def end():
        said = {"error": "no result within 1 s", "target": "w1", "workers": None}
        ours.send(ours.jobs["u"]["client"], Command.RESPONSE, "u", 408, said)
        ours.finish("u", "w2", 2)

    ours.do(end)
    found = future.result()
    assert (found["w1"]["status"], found["w1"]["errors"]) == ("timeout", ["w1: no result within 1 s"])
    assert found["w2"]["result"] == 2


def test_a_result_that_is_not_there_yet(ours, client):
    future = client.submit_job("dummy", "never", uuid="u", workers="w1")
    ours.wait_for(lambda b: "u" in b.jobs)
    assert future.result(timeout=0.1) is None
    ours.do(lambda: ours.finish("u", "w1", 1))
    assert future.result(timeout=5)["w1"]["result"] == 1


def test_events_and_an_answer(client):
    future = client.submit_job("dummy", "ask", workers="w1", timeout=30)
    kinds = []
    for event in future.events(timeout=10):
        kinds.append(event["event_type"])
        if event["event_type"] == "input_request":
            future.send_response(event["extras"]["input_request"]["id"], "grace")
    assert "input_request" in kinds
    assert future.result()["w1"]["failed"] is False
    silent = client.submit_job("dummy", "never", workers="w1")
    assert [event["event_type"] for event in silent.events(timeout=0.2)] in ([], ["progress"])


def test_markdown(client):
    text = client.run_job("dummy", "ping", kwargs={"n": 3}, markdown=True)
    assert text.startswith("# dummy ping\n")
    assert '## w1\n\n```json\n{\n  "result": 3,\n' in text
    assert client.run_job("dummy", "never", timeout=0.3, markdown=True).count('"status": "timeout"') == 2


def test_mmi(client):
    found = client.mmi("mmi.service.broker", "show_workers", kwargs={"service": "dummy"})
    assert found.keys() == {"status", "results", "errors"}
    assert (found["status"], found["errors"]) == ("200", [])
    assert {worker["name"] for worker in found["results"]} >= {"w1", "w2"}
    assert client.mmi("sid.service.broker", "get_inventory", kwargs={"name": "w1"})["results"]


def test_files(ours, client, place):
    ours.files = {"nf://configs/a.txt": b"hello", "nf://b.txt": b"world"}
    path = place / "__norfab__" / "files" / "client" / client.name / "fetchedfiles" / "configs" / "a.txt"
    assert client.fetch_file("nf://configs/a.txt") == {"status": "200", "content": str(path), "error": None}
    assert path.read_bytes() == b"hello"
    found = client.fetch_file(["nf://b.txt", "nf://none", "git://x", "nf://../../x"], read=True)
    assert [(each["status"], each["content"]) for each in found] == [
        ("200", "world"),
        ("404", None),
        ("500", None),
        ("500", None),
    ]
    gone = client.delete_fetched_files("configs")
    assert gone == {"deleted": [str(path.parent)], "errors": []}
    assert not path.exists()


def test_jobs_of_an_earlier_life_go_on(ours):
    with made(ours) as nf:
        nf.client.submit_job("dummy", "never", uuid="u", workers=["w1"])
        ours.wait_for(lambda b: "u" in b.jobs)
    with made(ours) as nf:
        ours.do(lambda: ours.finish("u", "w1", 7))
        assert nf.client.job_futures["u"].result()["w1"]["result"] == 7


def test_the_default_name_is_norfabs(ours, client):
    assert client.name.startswith("tool_")
    assert client.name.endswith("_NFPClient")
    assert client.get_status()["name"] == client.name
    with pytest.raises(ConfigError, match=f"client name '{client.name}' is in use"):
        made(ours).make_client()
    other = made(ours).make_client(name="other")
    assert other.name == "other"
    other.destroy()


# -- the inventory ---------------------------------------------------------------------------------


def inventory_file(folder, text):
    (folder / "inventory.yaml").write_text(text)
    return NorFab(inventory=str(folder / "inventory.yaml"))


def test_an_inventory_with_an_environment_of_its_own(place):
    (place / ".env").write_text("# ours\nexport NFP_TEST_PORT='5777'\nNFP_TEST_SET=theirs\n")
    os.environ["NFP_TEST_SET"] = "ours"
    try:
        nf = inventory_file(place, "broker: {endpoint: 'tcp://127.0.0.1:{{ env.NFP_TEST_PORT }}'}")
        assert (nf.broker_endpoint, os.environ["NFP_TEST_SET"]) == ("tcp://127.0.0.1:5777", "theirs")
        assert nf.inventory.base_dir == str(place)
    finally:
        for name in ("NFP_TEST_SET", "NFP_TEST_PORT"):
            os.environ.pop(name, None)


def test_the_key_of_the_broker(place):
    assert inventory_file(place, "broker: {zmq_auth: false, shared_key: x}").inventory.server_key() == ""
    assert inventory_file(place, "broker: {shared_key: x}").inventory.server_key() == "x"
    nf = inventory_file(place, "broker: {}")
    assert nf.inventory.server_key() is None
    theirs = place / "__norfab__" / "files" / "broker" / "public_keys" / "broker.key"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    assert nf.inventory.server_key() == str(theirs)


def test_hooks(ours, place):
    (place / "nfp_test_hooks.py").write_text(
        "seen = []\ndef note(nf, *args, **kwargs): seen.append((args, kwargs))\n"
    )
    hook = {"function": "nfp_test_hooks:note", "args": [1], "kwargs": {"a": 2}}
    data = {"broker": {"endpoint": ours.endpoint}, "hooks": {"startup": [hook], "exit": [hook]}}
    with NorFab(inventory_data=data):
        import nfp_test_hooks

        assert nfp_test_hooks.seen == [((1,), {"a": 2})]
    assert len(nfp_test_hooks.seen) == 2


def test_an_inventory_that_is_not_there(place):
    with pytest.raises(ConfigError, match=r"inventory\.yaml"):
        NorFab()


# -- start -----------------------------------------------------------------------------------------


@pytest.fixture
def up(place, monkeypatch):
    """`headgate nfp up`, as a script of this test; returns what it was called with."""

    def becomes(code):
        (place / "up.py").write_text("import json, os, signal, socket, sys, time\n" + code)
        monkeypatch.setattr(
            "broker.interpreter.command", lambda module: (sys.executable, "-S", str(place / "up.py"))
        )

    return becomes


UP = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # a handler that comes while the socket ends is not heard
open("words", "w").write(json.dumps(sys.argv[1:]))
print("all there", flush=True)
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
signal.sigwait([signal.SIGTERM])
"""


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({}, []),
        ({"run_broker": False}, ["--no-broker"]),
        ({"run_workers": False}, ["--no-workers"]),
        ({"run_workers": ["w1", " w2 "]}, ["--worker", "w1", "--worker", "w2"]),
    ],
)
def test_start(place, up, wanted, words):
    up(UP)
    (place / "inventory.yaml").write_text("topology: {broker: true, workers: [w1, w2, w3]}")
    nf = NorFab()
    try:
        nf.start(**wanted)
        assert json.loads((place / "words").read_text()) == [
            "nfp", "up", str(place / "inventory.yaml"), "--no-env", *words,
        ]  # fmt: skip
        with pytest.raises(RuntimeError, match="one start"):
            nf.start()
    finally:
        nf.destroy()
    assert nf._running._child.code == 0


def test_an_inventory_that_is_no_file_is_one_while_it_runs(place, up):
    up(UP)
    data = {"topology": {"workers": ["w1"]}}
    with NorFab(inventory_data=data) as nf:
        path = Path(json.loads((place / "words").read_text())[2])
        assert (path.parent, json.loads(path.read_text())) == (place, data)
        assert nf.inventory.topology == data["topology"]
    assert not path.exists()


def test_what_does_not_start_is_told(place, up):
    up("print('inventory.yaml:1: worker w1 is NorFab\\'s own'); sys.exit(78)")
    (place / "inventory.yaml").write_text("topology: {workers: [w1]}")
    with pytest.raises(ConfigError, match=r"could not be started: inventory\.yaml:1: worker w1"):
        NorFab().start()


def test_nothing_to_start(place, up):
    up("raise SystemExit('not called')")
    (place / "inventory.yaml").write_text("topology: {workers: []}")
    nf = NorFab()
    nf.start()
    nf.run()
    nf.destroy()
    nf.destroy()


# -- a script without a changed line ---------------------------------------------------------------


def test_a_script_as_it_is(ours, place):
    (place / "inventory.yaml").write_text(f"broker: {{endpoint: '{ours.endpoint}'}}")
    (place / "lab.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "broker.nfp.norfab", "lab.py", "inventory.yaml"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    is_client, name, result = json.loads(done.stdout)
    assert (is_client, name.split("_")[0], result) == (True, "lab", 2)


def test_no_script():
    with pytest.raises(SystemExit, match="usage:"):
        start_script([])
