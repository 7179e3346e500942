"""How much of each room the tests run: ``coverage`` over what ``make test-all`` runs, summed up by room."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).with_name("coverage.ini")
MARKS = "not bench and not slow and not interop and not spark"
"""The set of `make test-all`."""
LOWEST = 12
"""Files that are named, those with the smallest share."""


class Room(NamedTuple):
    """One package of the product, its sub-packages included."""

    name: str
    statements: int
    missed: int

    @property
    def share(self) -> float:
        """Of the statements that were run, 0 to 100; 100 where there is none."""
        return 100.0 * (self.statements - self.missed) / self.statements if self.statements else 100.0


class MissingError(Exception):
    """The package ``coverage`` is not installed, or too old."""


def measure(words: list[str], tests: list[str]) -> tuple[dict[str, Any], int]:
    """Run the tests under ``coverage``; its report as JSON, and pytest's exit code.

    Raises:
        MissingError: it cannot be run here.
    """
    if importlib.util.find_spec("coverage") is None:
        raise MissingError("coverage is not installed: pip install 'coverage>=7.10'")
    with tempfile.TemporaryDirectory(prefix="hg-cov-") as name:
        environ = {**os.environ, "COVERAGE_FILE": str(Path(name) / "data")}
        run = [sys.executable, "-m", "coverage"]
        config = f"--rcfile={CONFIG}"
        done = subprocess.run(
            [*run, "run", config, "-m", "pytest", "-q", "-m", MARKS, *words, *tests],
            cwd=ROOT,
            env=environ,
            check=False,
        )
        subprocess.run([*run, "combine", config, "-q"], cwd=ROOT, env=environ, check=True)
        report = Path(name) / "report.json"
        subprocess.run([*run, "json", config, "-q", "-o", str(report)], cwd=ROOT, env=environ, check=True)
        return json.loads(report.read_text()), done.returncode


def rooms(report: dict[str, Any]) -> list[Room]:
    """The rooms of a report, in the order of their names; modules directly below a package stand under its name."""
    sums: dict[str, tuple[int, int]] = {}
    for path, told in report["files"].items():
        parts = Path(path).parts
        room = "/".join(parts[:2]) if len(parts) > 2 else parts[0]
        statements, missed = sums.get(room, (0, 0))
        summary = told["summary"]
        sums[room] = (statements + summary["num_statements"], missed + summary["missing_lines"])
    return [Room(name, *numbers) for name, numbers in sorted(sums.items())]


def table(report: dict[str, Any]) -> str:
    """The report for people: rooms, all of it, and the files that are run least."""
    found = rooms(report)
    whole = Room("together", sum(room.statements for room in found), sum(room.missed for room in found))
    lines = [f"{'room':24} {'statements':>10} {'missed':>7} {'run':>7}"]
    lines += [
        f"{room.name:24} {room.statements:>10} {room.missed:>7} {room.share:>6.1f}%"
        for room in [*found, whole]
    ]
    files = [
        Room(path, told["summary"]["num_statements"], told["summary"]["missing_lines"])
        for path, told in report["files"].items()
    ]
    least = [each for each in sorted(files, key=lambda each: each.share) if each.missed][:LOWEST]
    return "\n".join([*lines, "", "least of all:", *(f"{each.share:>6.1f}%  {each.name}" for each in least)])


def share(report: dict[str, Any]) -> float:
    """Of all statements that were run, 0 to 100."""
    found = rooms(report)
    return Room("", sum(room.statements for room in found), sum(room.missed for room in found)).share
