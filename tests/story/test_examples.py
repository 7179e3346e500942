"""The programs of docs/examples do what their page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.pages import ROOT
from tests.live.ports import free_endpoint
from tests.story.test_readme_nfp import program, until

EXAMPLES = ROOT / "docs" / "examples"
SESSION = """
python {0}/thermostat.py &
until headgate rpc thermostat.get 2>/dev/null; do sleep 0.1; done
python {0}/wait_for.py thermostat.changed 30 > told 2> waiting &
heard=$!
until [ -s waiting ]; do sleep 0.05; done
headgate rpc thermostat.set '{{"celsius": 21}}'
headgate rpc thermostat.set '{{"celsius": 99}}' || echo refused $?
wait $heard
cat told
python {0}/wait_for.py nothing.at.all 0.2 || echo late $?
python {0}/fan_out.py
kill %1
"""


def environment(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "XDG_STATE_HOME": str(folder / "state")}


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        words, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.patient
def test_a_service_its_events_all_ranks_and_what_the_journal_says(rundir: Path) -> None:
    script = SESSION.format(EXAMPLES)
    start = ["-m", "broker.cli.main", "start", "--size", "3", "--journal", "journal"]
    out = run(rundir, sys.executable, *start, "--", "bash", "-mec", script)
    assert re.search(r'\{"celsius":20\.0\}\n\{"celsius":21\.0\}\nrefused 1\n', out)
    assert f'{{"celsius": 21.0, "by": {os.getuid()}}}\nlate 4\n' in out
    assert re.findall(r"^rank (\d): \d+ MiB$", out, re.MULTILINE) == ["0", "1", "2"]
    slow = run(rundir, sys.executable, str(EXAMPLES / "slowest.py"), "journal")
    assert re.search(
        rf"^ +\d+\.\d{{3}} ms  rank 0  userid {os.getuid()}  thermostat\.set$", slow, re.MULTILINE
    )


@pytest.mark.patient
def test_a_worker_with_progress(rundir: Path) -> None:
    endpoint = free_endpoint()
    env = {**environment(rundir), "HEADGATE_NFP": endpoint}
    up = [
        "headgate",
        "up",
        "--nfp",
        "--listen",
        "http://127.0.0.1:0",
        "--broker-set",
        f"nfp.endpoint={endpoint}",
    ]
    with program(up, env, rundir / "up.log") as log:
        until(log, "NFP broker at")
        with program([sys.executable, str(EXAMPLES / "render.py")], env, rundir / "worker.log"):
            words = ["headgate", "nfp", "run", "render", "frames", "--target", "any", "--kwargs", "count=3"]
            done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert '{"frames":3}' in done.stdout.replace(" ", "")
