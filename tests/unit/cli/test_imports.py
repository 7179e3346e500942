"""The broker process loads nothing that only the command line or the gateway needs."""

import os
import re
import signal
import subprocess
import sys
import time

PIPELINE = {"numpy", "pyarrow", "deltalake", "pandas", "pyspark", "duckdb", "zstandard", "lz4"}
"""What the journal's writer, its readers and the pipeline need: other processes."""
FORBIDDEN = {"typer", "rich", "aiohttp", "cryptography", "click", "pydantic"} | PIPELINE
_LOADED = re.compile(r"^import time:.*\| +(\S+)$", re.MULTILINE)


def loaded(stderr: str) -> set[str]:
    return {name.partition(".")[0] for name in _LOADED.findall(stderr)}


def test_broker_process_that_records(rundir):
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "broker.cli.main",
        "broker",
        "--set",
        f"broker.rundir={rundir}",
        "--journal",
        str(rundir / "j"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for _ in range(1000):
        if os.path.exists(rundir / "local-0"):
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    stderr = process.communicate(timeout=20)[1]
    assert process.returncode == 0
    names = loaded(stderr)
    assert "broker" in names
    assert not names & FORBIDDEN
    assert "broker.journal.recorder" in _LOADED.findall(stderr)
    assert "broker.journal.writer" not in _LOADED.findall(stderr)


def test_ranks_of_a_local_tree():
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "broker.cli.main",
        "start",
        "--size",
        "2",
        "--",
        "true",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0
    names = loaded(done.stderr)
    assert "nacl" in names
    assert not names & {*FORBIDDEN, "zmq"}
    assert "broker.journal.recorder" not in _LOADED.findall(done.stderr), "nothing is recorded"


def test_broker_of_nfp(rundir):
    command = [sys.executable, "-X", "importtime", "-m", "broker.cli.main", "nfp", "broker", "--no-flux"]
    words = ["--endpoint", "tcp://127.0.0.1:*", "--base-dir", str(rundir / "nfp")]
    process = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("Ctrl-C"):
            break
    process.send_signal(signal.SIGTERM)
    stderr = process.communicate(timeout=20)[1]
    assert process.returncode == 0
    assert not loaded(stderr) & FORBIDDEN
