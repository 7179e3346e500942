"""One script, written for NorFab: run by deployed NorFab and by the adapter, at NorFab's broker and at ours."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.nfp import nfp_process
from tests.live.norfab import NorFab, norfab, norfab_python
from tests.live.ports import free_endpoint

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

IMPORT = "from norfab.core.nfapi import NorFab"
SCRIPT = f"""
import json
import sys
import time

{IMPORT}

VOLATILE = ("task_started", "task_completed", "juuid")


def plain(results):
    if not isinstance(results, dict):
        return results
    return {{
        worker: {{key: "?" if key in VOLATILE else value for key, value in result.items()}}
        for worker, result in sorted(results.items())
    }}


with NorFab(inventory=sys.argv[1], run_broker=False, run_workers=False) as nf:
    client = nf.client
    while True:
        shown = client.mmi("mmi.service.broker", "show_workers", kwargs={{"service": "dummy"}}, workers="any")
        if {{each["name"] for each in shown["results"]}} >= {{"w1", "w2"}}:
            break
        time.sleep(0.1)
    found = {{"mmi": [shown["status"], shown["errors"], sorted(each["service"] for each in shown["results"])]}}
    found["all"] = plain(client.run_job("dummy", "ping", kwargs={{"n": 3}}))
    found["args"] = plain(client.run_job(service="dummy", task="ping", args=[4], workers=["w2"], timeout=30))
    found["any"] = len(client.run_job("dummy", "ping", workers="any"))
    failed = client.run_job("dummy", "fail", workers="w1")["w1"]
    found["fail"] = [failed["failed"], failed["result"], failed["status"], "this task fails" in failed["errors"][0]]
    late = plain(client.run_job("dummy", "slow", kwargs={{"seconds": 3}}, workers=["w1", "w2"], timeout=1))
    found["late"] = {{worker: {{**result, "errors": len(result["errors"])}} for worker, result in late.items()}}
    found["nowait"] = client.run_job("dummy", "ping", uuid="by-hand", nowait=True)
    found["text"] = type(client.run_job("dummy", "ping", workers="w1", markdown=True)).__name__
    future = client.submit_job("dummy", "ask", kwargs={{"question": "who?"}}, workers=["w2"], timeout=60)
    for event in future.events(timeout=30):
        if event["event_type"] == "input_request":
            found["event"] = {{key: event[key] for key in ("worker", "service", "task", "message", "status")}}
            future.send_response(input_id=event["extras"]["input_request"]["id"], value="grace")
    found["answer"] = plain(future.result(timeout=30))
    note = client.fetch_file("nf://docs/note.txt", read=True)
    there = client.fetch_file("nf://docs/note.txt")
    parts = there["content"].replace(client.name, "NAME").split("/__norfab__/")[1]
    found["file"] = [note, there["status"], there["error"], parts]
    others = client.fetch_file(["nf://docs/none.txt", "http://docs/note.txt"])
    found["no file"] = [[each["status"], each["content"]] for each in others]
    gone = client.delete_fetched_files("docs")
    found["deleted"] = [len(gone["deleted"]), gone["errors"]]
print(json.dumps(found))
"""


class Stage:
    """A broker with two workers of NorFab's, and its files; ``inventory`` leads there."""

    def __init__(self, nf: NorFab, endpoint: str, key: str, folder: Path) -> None:
        self.folder = folder
        self.inventory = folder / "inventory.yaml"
        self.inventory.write_text(f"broker: {{endpoint: '{endpoint}', shared_key: '{key}'}}\n")
        for name in ("w1", "w2"):
            nf.worker(endpoint, key, name)

    def run(self, place: str, *words: str, script: str = SCRIPT) -> Any:
        """What the script prints, run in the folder ``place``: NorFab's default name of a client depends on it."""
        folder = self.folder / place
        folder.mkdir()
        (folder / "script.py").write_text(script)
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        if words[0] == norfab_python():
            del environ["PYTHONPATH"]
        command = [*words, "script.py", str(self.inventory)]
        done = subprocess.run(
            command, cwd=folder, env=environ, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=["their broker", "our broker"])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("scripts")
    shared = folder / "shared"
    (shared / "docs").mkdir(parents=True)
    (shared / "docs" / "note.txt").write_text("hello")
    with norfab(folder) as nf:
        if request.param == "our broker":
            with nfp_process(folder, files=str(shared)) as live:
                yield Stage(nf, live.endpoint, live.server_key, folder)
        else:
            endpoint = free_endpoint()
            files = {"files-1": [{"service": "filesharing", "base_dir": str(shared)}]}
            key = nf.broker(endpoint, workers=files).ready["key"]
            nf.files(endpoint, key, "files-1", shared)
            yield Stage(nf, endpoint, key, folder)


def test_a_script_does_the_same_with_the_adapter(stage: Stage) -> None:
    theirs = stage.run("deployed", norfab_python())
    assert theirs["all"]["w1"]["result"] == {"n": 3, "worker": "w1"}
    assert theirs["late"]["w2"]["status"] == "timeout"
    assert theirs["file"][0] == {"status": "200", "content": "hello", "error": None}
    changed = SCRIPT.replace(IMPORT, "from broker.nfp.norfab import NorFab")
    assert stage.run("changed", sys.executable, script=changed) == theirs
    assert stage.run("as-it-is", sys.executable, "-m", "broker.nfp.norfab") == theirs
