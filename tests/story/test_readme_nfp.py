"""What the guide tells people to do with NFP works as written."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.pages import Page
from tests.live.ports import free_endpoint

block = Page("guides/nfp.md").block

pytestmark = pytest.mark.story
START_S = 30.0


@contextlib.contextmanager
def program(words: list[str], env: dict[str, str], log: Path) -> Iterator[Path]:
    """A process of ours for the length of a block; what it prints is in ``log``."""
    with log.open("ab") as out:
        process = subprocess.Popen(words, env=env, stdout=out, stderr=out, cwd=log.parent)
    try:
        yield log
    finally:
        process.terminate()
        process.wait(START_S)


def until(log: Path, pattern: str) -> re.Match[str]:
    end = time.monotonic() + START_S
    while (found := re.search(pattern, log.read_text())) is None:
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    return found


@pytest.fixture
def lab(rundir: Path) -> Iterator[dict[str, str]]:
    """The five minutes: a broker with the wing, and the guide's worker. Yields the environment of the commands."""
    endpoint = free_endpoint()
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(rundir / "state"),
        "HEADGATE_NFP": endpoint,
    }
    command = block("sh", "headgate up --nfp").split()
    place = ["--listen", "http://127.0.0.1:0", "--broker-set", f"nfp.endpoint={endpoint}"]
    (rundir / "tasks.py").write_text(block("python", 'Worker("lab"'))
    with program([*command, *place], env, rundir / "up.log") as up:
        env["FLUX_URI"] = until(up, r"FLUX_URI=(\S+)")[1]
        until(up, "NFP broker at")
        with program([sys.executable, "tasks.py"], env, rundir / "worker.log"):
            yield env


def run(env: dict[str, str], *words: str) -> str:
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.patient
def test_five_minutes(lab: dict[str, str]) -> None:
    client = block("python", "BlockingClient() as nfp")
    assert run(lab, sys.executable, "-c", client) == "lab-1 [0, 1, 4]\n"
    by_hand = run(
        lab, "bash", "-c", "set -e\n" + block("sh", "headgate nfp run lab").replace("points=20", "points=2")
    )
    assert "lab-1" in by_hand
    assert "[0,1]" in by_hand.replace(" ", "")
    assert "broker-files" in by_hand


@pytest.mark.patient
def test_from_the_flux_broker(lab: dict[str, str]) -> None:
    run(lab, sys.executable, "-c", block("python", "BlockingClient() as nfp"))
    call, listen = block("sh", "rpc --stream nfp.lab").splitlines()
    seen = subprocess.Popen(listen.split(), env=lab, stdout=subprocess.PIPE, text=True)
    calls = 0
    while seen.poll() is None:  # the first call may be before it has subscribed
        calls += 1
        assert calls < 10
        out = run(lab, "bash", "-c", call)
        assert '"type":"result"' in out
        assert '"result":[0,1,4]' in out
    events, _ = seen.communicate(timeout=30)
    assert len(re.findall(r"^\d+ nfp\.job\.\w+\.\w+ ", events, re.MULTILINE)) == 2
