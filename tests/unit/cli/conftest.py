"""One small instance that all tests of the client verbs talk to."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

HEADGATE = [sys.executable, "-m", "broker.cli.main"]


@pytest.fixture(scope="session")
def instance() -> Iterator[str]:
    """The URI of rank 0 of a tree of three."""
    with tempfile.TemporaryDirectory(prefix="hg-", dir="/tmp") as directory:
        command = [*HEADGATE, "start", "--size", "3", "--wait", "--rundir", f"{directory}/r"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Ctrl-C"):
                break
        yield f"local://{directory}/r/local-0"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        process.stdout.close()
        assert os.listdir(directory) == []


@pytest.fixture
def broker(instance: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, as what the verbs find in the environment."""
    monkeypatch.setenv("HEADGATE_URI", instance)
    return instance
