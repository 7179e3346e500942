"""A run of the tests that is killed leaves no process behind; in the background it can still interrupt its children."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live import guard
from tests.live.brokers import eventually

ROOT = Path(__file__).parents[2]

STORY = """
import os
import pathlib
import subprocess
import sys
import threading
import time

DAEMON = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(60)"

def start(*words):
    subprocess.Popen(words, stdout=open("said", "ab"), stderr=subprocess.STDOUT)

def test_stays(monkeypatch):
    monkeypatch.chdir(pathlib.Path(__file__).parent)
    start(sys.executable, "-m", "broker.cli.main", "start", "--size", "2", "--wait", "--rundir", "r")
    thread = threading.Thread(target=start, args=(sys.executable, "-c", DAEMON))
    thread.start()
    thread.join()
    while b"Ctrl-C" not in pathlib.Path("said").read_bytes():
        time.sleep(0.02)
    pathlib.Path("mark").write_text(os.environ["RUN_OF_HEADGATE_TESTS"])
    time.sleep(60)
"""


@pytest.mark.parametrize("words", [[], ["--numprocesses", "1"]], ids=["alone", "workers"])
@pytest.mark.patient
@pytest.mark.timeout(120)
def test_whatever_it_started_is_gone(words, rundir):
    story = rundir / "test_stays.py"
    story.write_text(STORY)
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", *words, str(story)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        eventually((rundir / "mark").exists, timeout=60)
        mark = (rundir / "mark").read_text()
        begun = list(guard.bearers(mark))
    finally:
        run.kill()
        run.wait()
    assert len(begun) >= 4  # the launcher, two brokers, the daemon
    eventually(lambda: list(guard.bearers(mark)), [], 30)


def test_children_hear_an_interrupt_that_the_run_ignores():
    code = (
        "import signal, subprocess, sys\n"
        "from tests.live import guard\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "guard.hear_interrupts()\n"
        "sys.exit(subprocess.run(['sh', '-c', 'kill -INT $$']).returncode != -signal.SIGINT)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_this_run_is_guarded():
    mark = os.environ[guard.MARK]
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in set(guard.bearers(mark))
        child.send_signal(signal.SIGTERM)
