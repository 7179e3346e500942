"""What the guide tells people to do about what passed works as written: capture, tables, charts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.pages import Page
from tests.story.test_readme_nfp import program, until

block = Page("guides/history.md").block

pytestmark = pytest.mark.timeout(420)
PAGE = (Path(__file__).parents[2] / "gateway/pipeline/README.md").read_text()
"""Of the pipeline: its pieces of Python are one notebook."""
SESSION = """
headgate rpc attr.get '{"name": "size"}'
headgate rpc --rank 3 attr.get '{"name": "rank"}'
headgate ping --count 3 2
headgate pub demo.hello '{"n": 1}'
"""


@pytest.fixture
def env(java: None) -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def run(place: Path, env: dict[str, str], text: str) -> str:
    done = subprocess.run(
        ["bash", "-ec", text], env=env, capture_output=True, text=True, timeout=280, check=False, cwd=place
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def recorded(rundir: Path, env: dict[str, str]) -> Path:
    """The folder in which the first command has recorded a session; nothing runs in it any more."""
    up = [*block("sh", "headgate up --size 4 --journal").split(), "--listen", "http://127.0.0.1:0"]
    with program(up, env, rundir / "up.log") as log:
        uri = until(log, r"FLUX_URI=(\S+)")[1]
        run(rundir, {**env, "FLUX_URI": uri}, SESSION)
    return rundir


def test_capture_tables_charts(recorded: Path, env: dict[str, str]) -> None:
    out = run(recorded, env, block("sh", "headgate journal ls journal"))
    for said in ("rank3", "nothing damaged, no gaps", "attr.get"):
        assert said in out
    run(recorded, env, block("sh", "headgate pipeline batch"))
    run(recorded, env, "headgate pipeline report --warehouse warehouse -o report.html")
    page = (recorded / "report.html").read_text()
    for said in ("attr.get", "demo.hello", "Latency"):
        assert said in page
    out = run(recorded, env, "headgate pipeline describe --warehouse warehouse")
    for said in ("traffic", "rpc_latency", "_runs", "fed by ingest", "last run: batch"):
        assert said in out
    (recorded / "notebook.py").write_text(
        "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
    )
    out = run(recorded, env, "python notebook.py")
    assert re.search(r"attr\.get *\|1 ", out), (
        out
    )  # the other one was answered where it entered: not captured
    assert re.search(r"\|rank 0\|rank 1\|", out), out


def test_the_picture_is_there() -> None:
    assert (Path(__file__).parents[2] / "deploy/pictures/history.png").read_bytes().startswith(b"\x89PNG")
