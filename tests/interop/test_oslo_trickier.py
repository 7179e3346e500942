"""What applications do and oslo.messaging's own suite does not ask for, over real proxies, in both ways of threading.

``tests/live/oslo_tricks`` has the tricks; this runs all of them in one process of an application for each way and
place, and shows what became of each.
"""

import ast
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.live.oslo import OLDER, ROOT, nodes, oslo_python

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
TRICKS = Path(__file__).parents[1] / "live" / "oslo_tricks"
RUN_S = 240.0


def names() -> list[str]:
    """The tricks, without importing what our own environment lacks."""
    return [
        node.name
        for file in sorted(TRICKS.glob("*.py"))
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(each, ast.Name) and each.id == "trick" for each in node.decorator_list)
    ]


def tricks(folder: Path, *, green: bool, count: int, version: str = "") -> dict[str, dict[str, Any]]:
    """What became of each trick; servers live on the first node, clients on the last."""
    python = oslo_python(version)
    log = folder / "tricks.err"
    with nodes(folder, count) as started, log.open("wb") as errors:
        urls = [f"zmq://?rpc_zmq_ipc_dir={proxy.folder}" for proxy in started]
        words = {"green": green, "servers": urls[0], "clients": urls[-1]}
        done = subprocess.run(
            [python, "-W", "ignore", "-m", "tests.live.oslo_tricks", json.dumps(words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            timeout=RUN_S,
            check=False,
        )
    found = {line["trick"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, f"{sorted(found)} were done, then: {log.read_text(errors='replace')[-3000:]}"
    return found


WAYS = {
    "threads": {"green": False, "count": 1},
    "greenlets": {"green": True, "count": 1},
    "threads-two-nodes": {"green": False, "count": 2},
    "greenlets-two-nodes": {"green": True, "count": 2},
    f"threads-{OLDER[0]}": {"green": False, "count": 1, "version": OLDER[0]},
    **{f"greenlets-{version}": {"green": True, "count": 1, "version": version} for version in OLDER},
}


GATING = ("greenlets-two-nodes", f"threads-{OLDER[0]}")
"""The newest and the oldest version, one node and two, each with the threads that the shipped suite has not."""


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way in GATING else pytest.mark.between) for way in WAYS]
)
def test_tricks(rundir: Path, way: str) -> None:
    done = tricks(rundir, **WAYS[way])
    assert sorted(done) == sorted(names())
    wrong = {name: each["text"] for name, each in done.items() if not each["ok"]}
    assert wrong == {}, "Z24: unit tests; functional tests unchanged; trickier cases"
