"""The commands that a broker prints at its start work when they are pasted."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.live.ports import free_endpoint
from tests.story.test_nfp_management import HEADGATE, TASKS
from tests.story.test_readme_nfp import program, run, until

pytestmark = [pytest.mark.story, pytest.mark.patient]


@pytest.mark.parametrize(
    "options",
    [
        "--worker-endpoint {other}",
        "",
        "--no-curve",
        "--base-dir {folder}",
    ],
)
def test_what_a_broker_prints_works(options: str, rundir: Path) -> None:
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(rundir / "state"),
    }
    env.pop("HEADGATE_NFP", None)
    (rundir / "tasks.py").write_text(TASKS)
    words = [*HEADGATE, "nfp", "broker", "--no-flux", "--endpoint", free_endpoint()]
    with program(words, env, rundir / "earlier.log") as earlier:
        until(earlier, "Ctrl-C ends it")  # it leaves its key in the usual folder
    words += shlex.split(options.format(other=free_endpoint(), folder=shlex.quote(str(rundir / "a b"))))
    with program(words, env, rundir / "broker.log") as log:
        worker = until(log, r"\n  (headgate nfp worker FILE\.py.*)\n")[1].replace("FILE.py", "tasks.py")
        client = until(log, r"\n  (headgate nfp run SERVICE TASK.*)\n")[1]
        with program(shlex.split(worker), env, rundir / "worker.log") as lab:
            until(lab, "talks to the broker")
            client = client.replace("SERVICE TASK", "lab ping --target lab-1")
            assert run(env, "bash", "-c", client) == "lab-1: pong\n"
