"""The examples in the docstrings of the libraries do what they say, on the machine of a broker just started."""

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker.nfp.client
import broker.nfp.client.blocking
import broker.nfp.worker
from tests.story.test_readme_nfp import free_endpoint, program, run, until

pytestmark = [pytest.mark.story, pytest.mark.patient]
HEADGATE = (sys.executable, "-m", "broker.cli.main")


def example(module) -> str:
    """The first indented block behind ``::`` in the docstring of ``module``."""
    _, _, rest = inspect.getdoc(module).partition("::\n")
    lines = rest.strip("\n").splitlines()
    length = next((at for at, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    return inspect.cleandoc("\n" + "\n".join(lines[:length]))


@pytest.fixture
def machine(rundir: Path) -> Iterator[dict[str, str]]:
    """A broker, the example of a worker, and a file; yields the environment of programs there."""
    env = {**os.environ, "XDG_STATE_HOME": str(rundir / "state"), "HEADGATE_NFP": free_endpoint()}
    shared = rundir / "state" / "headgate" / "nfp" / "files" / "configs"
    shared.mkdir(parents=True)
    (shared / "a.txt").write_text("hello")
    (rundir / "worker.py").write_text(example(broker.nfp.worker))
    place = ["-e", env["HEADGATE_NFP"], "--no-flux"]
    with program([*HEADGATE, "nfp", "broker", *place], env, rundir / "broker.log") as log:
        until(log, "NFP broker at")
        with program([sys.executable, "worker.py"], env, rundir / "worker.log"):
            yield env


@pytest.mark.parametrize(
    "module", [broker.nfp.client, broker.nfp.client.blocking], ids=["asyncio", "threads"]
)
def test_the_examples_of_the_libraries(module, machine, rundir):
    (rundir / "client.py").write_text(example(module))
    done = subprocess.run(
        [sys.executable, "client.py"],
        env=machine,
        cwd=rundir,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert "'result': {'pong': 1}" in said[0]
    assert "w1 input_request reload r1?" in said
    assert "w1 progress copying" in said
    assert "'result': 'reloaded'" in said[-1]
    if module is broker.nfp.client:
        assert (rundir / "a.txt").read_text() == "hello"
    assert "upgrade" in run(machine, *HEADGATE, "nfp", "jobs")
