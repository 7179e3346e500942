"""The end of ``.ci/run``: what failed is run again, once and alone; then the run passes or fails, and says why.

    python -m tests.ci.verdict FOLDER SECONDS

``FOLDER`` has ``steps``, a line ``NAME EXIT SECONDS`` for each step in order, the output ``NAME.log`` of each, and in
``records`` what ``record`` wrote. It needs nothing but Python: a run that could not install anything ends here, too.

A test that passes at the second time is flaky. It fails the run where more than ``FLAKY_MAX`` are, or where it stands
in ``tests/flaky.txt``: it has been seen before, and whoever met it then wrote it down.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FLAKY_MAX = 3
AGAIN_MAX = 10
"""Where more tests fail, none is run again: that is not the weather."""
AGAIN_S = 600
"""The longest that all second runs may take together."""
LINES_MAX = 60
"""Of the end of a run that failed."""
STEPS_LINES_MAX = 30
"""Of them, for steps that failed without a test."""
WIDTH = 300

LISTED = Path(__file__).parents[1] / "flaky.txt"
LISTED_MAX = 10

PROBLEM = re.compile(
    r"^(E   |error|ERROR|WARNING +-|FAILED|bad +\d|Would reformat|\w+: FAILED"
    r"|Traceback|\w+(\.\w+)*(Error|Exception): |.* BROKEN$|[\w./-]+:\d+(:\d+)?: (?!note)|make.*\*\*\*)"
)
"""How a line begins that says what is wrong, in the words of linters, compilers, pip, make and MkDocs."""


NOTICE = re.compile(r"^(SKIPPED |SLOW |Python \d)")
"""How lines begin that are shown once more though nothing is wrong."""


@dataclass
class Failure:
    """A test that failed, and all that it takes to run it again."""

    step: str
    test: str
    where: str
    reason: list[str]
    command: list[str] | None
    folder: str
    environment: dict[str, str]


@dataclass
class Outcome:
    """What all runs of pytest came to."""

    passed: int = 0
    skipped: int = 0
    failed: list[Failure] = field(default_factory=list)
    flaky: list[Failure] = field(default_factory=list)


def outcome_of(records: Path) -> Outcome:
    """Read what the runs of pytest wrote down, and run again what failed."""
    outcome, found = Outcome(), []
    for record in _read(records):
        outcome.passed += record["counts"]["passed"]
        outcome.skipped += record["counts"]["skipped"]
        found += _failures(record)
    few = len(found) <= AGAIN_MAX
    deadline = time.monotonic() + AGAIN_S
    for failure in found:
        left_s = deadline - time.monotonic()
        if few and failure.command and left_s > 0 and _passes(failure, left_s):
            outcome.flaky.append(failure)
        else:
            outcome.failed.append(failure)
    return outcome


def _read(records: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(records.glob("*.json"), key=lambda each: each.stat().st_mtime):
        try:
            yield json.loads(path.read_text())
        except ValueError:  # the run that wrote it was killed, or the disk is full: its step fails
            print(f"ERROR: {path.name} is cut short", flush=True)


def _failures(record: dict[str, Any]) -> list[Failure]:
    """Each test once, even where its teardown failed, too."""
    made: dict[str, Failure] = {}
    for each in record["failures"]:
        failure = Failure(
            record["step"], each["test"], each["where"], each["reason"],
            record["command"] if each["again"] else None, record["folder"], record["environment"],
        )  # fmt: skip
        made.setdefault(failure.test, failure)
    return list(made.values())


def _passes(failure: Failure, limit_s: float) -> bool:
    """Run a test a second time, alone; it passes when it is seen to pass, not when it is skipped."""
    assert failure.command is not None
    print(f"again: {failure.test} ({failure.step})", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**failure.environment, "HEADGATE_RECORDS": folder}
        done = subprocess.Popen(
            [*failure.command, failure.test], cwd=failure.folder, env=environment, start_new_session=True
        )
        try:
            done.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, signal.SIGKILL)  # what the test started, too: the next one is to be alone
            done.wait()
            return False
        counts = [record["counts"] for record in _read(Path(folder))]
    return done.returncode == 0 and [(each["passed"] > 0, each["failed"]) for each in counts] == [(True, 0)]


# ---------------------------------------------------------------- tests/flaky.txt


def listed(path: Path = LISTED) -> dict[str, str]:
    """Return the tests that were flaky before, each with what is known of it.

    Raises:
        ValueError: a line is not ``NAME | FIRST SEEN | WHAT IS KNOWN``, or there are too many.
    """
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    if len(lines) > LISTED_MAX:
        raise ValueError(f"{path.name}: {len(lines)} lines, at most {LISTED_MAX}: mend the oldest")
    found = {}
    for line in lines:
        match = re.fullmatch(r"(\S.*) \| (\d{4}-\d\d-\d\d) \| (\S.*)", line)
        if match is None:
            raise ValueError(f"{path.name}: expected NAME | YYYY-MM-DD | WHAT IS KNOWN, saw {line!r}")
        found[match[1]] = match[3]
    return found


# ---------------------------------------------------------------- what is printed


def problem_lines(log: str, most: int) -> list[str]:
    """Return the lines of a step's output that say what is wrong; the last lines where none does."""
    lines = [line.rstrip()[:WIDTH] for line in log.splitlines() if line.strip()]
    found = list(dict.fromkeys(line for line in lines if PROBLEM.match(line)))
    return lines[-most:] if all(line.startswith("make") for line in found) else cut(found, most)


def cut(lines: list[str], most: int) -> list[str]:
    """Return at most that many lines, the last one says how many are left out."""
    return lines if len(lines) <= most else [*lines[: most - 1], f"... and {len(lines) - most + 1} more"]


def failure_lines(failures: list[Failure], room: int) -> list[str]:
    """Return what failed, where and why, in at most ``room`` lines: fewer of each where there are many."""
    each_max = max(room // max(len(failures), 1), 1)
    if each_max == 1:
        return cut(
            [f"FAILED {each.step}: {each.test}: {' '.join(each.reason)}"[:WIDTH] for each in failures], room
        )
    return [
        line
        for each in failures
        for line in [
            f"FAILED {each.step}: {each.test} ({each.where})",
            *(f"    {line}" for line in cut(each.reason, each_max - 1)),
        ]
    ]


@dataclass
class Step:
    """A step of the run, its exit code and its output."""

    name: str
    code: int
    seconds: int
    log: str


def steps_of(folder: Path) -> list[Step]:
    """Read what ``.ci/run`` wrote down of its steps."""
    return [
        Step(name, int(code), int(seconds), (folder / f"{name}.log").read_text(errors="replace"))
        for name, code, seconds in map(str.split, (folder / "steps").read_text().splitlines())
    ]


def complaints(steps: list[Step], outcome: Outcome, flaky_list: Path) -> list[str]:
    """Return why the run fails; nothing where it passes."""
    found = [f"step {step.name}" for step in steps if step.code]
    if not outcome.passed and not outcome.failed:
        found.append("no test was run")
    if outcome.failed:
        found.append(f"tests: {len(outcome.failed)}")
    if len(outcome.flaky) > FLAKY_MAX:
        found.append(f"more than {FLAKY_MAX} flaky tests")
    try:
        known = listed(flaky_list)
    except ValueError as error:
        return [*found, str(error)]
    return found + [
        f"flaky again, mend it: {each.test} ({known[each.test]})"
        for each in outcome.flaky
        if each.test in known
    ]


def end_of(steps: list[Step], outcome: Outcome, wrong: list[str]) -> list[str]:
    """Return the last lines but the total: at most ``LINES_MAX`` with it."""
    lines = [f"{step.name}: exit {step.code} after {step.seconds} s" for step in steps]
    flaky = [f"FLAKY {each.test}: {' '.join(each.reason)}"[:WIDTH] for each in outcome.flaky]
    if flaky:
        lines += [*cut(flaky, AGAIN_MAX), f"{len(flaky)} flaky: passed when run again, alone"]
    failed = [step for step in steps if step.code]
    for step in failed:
        most = STEPS_LINES_MAX // len(failed) - 1
        lines += [f"FAILED {step.name}", *(f"    {line}" for line in problem_lines(step.log, most))]
    reasons = [f"FAILED: {each}"[:WIDTH] for each in cut(wrong, 5)]
    room = LINES_MAX - 1 - len(lines) - len(reasons)
    return [*lines, *failure_lines(outcome.failed, room), *reasons]


def main(folder: Path, seconds: int, flaky_list: Path = LISTED) -> int:
    """Print the end of a run and return its exit code."""
    steps = steps_of(folder)
    outcome = outcome_of(folder / "records")
    wrong = complaints(steps, outcome, flaky_list)
    print("=== summary")
    for line in sorted({line for step in steps for line in step.log.splitlines() if NOTICE.match(line)}):
        print(line)
    for line in end_of(steps, outcome, wrong):
        print(line)
    failed = f"{len(outcome.failed)} failed, " if outcome.failed else ""
    passed = outcome.passed + len(outcome.flaky)
    print(f"=========== {failed}{passed} passed, {outcome.skipped} skipped in {seconds}.00s ===========")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # reasons may hold anything
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
