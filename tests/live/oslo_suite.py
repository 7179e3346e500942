"""The functional suite that ships inside oslo.messaging, over ``zmq://``: its 31 tests, none left out.

::

    python -m tests.live.oslo_suite                                       as shipped, that is patched by eventlet
    python -m tests.live.oslo_suite --mode native --directory redis --json
    python -m tests.live.oslo_suite --only Notify --keep logs             some tests; logs of the processes

Directories: ``embedded`` is one node with its own directory, ``redis`` is two nodes that know each other through a
real Redis server only; transports of the suite then take turns between the two. ``--nodes`` overrides their number.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.live.oslo import nodes, oslo_python
from tests.live.redis_server import redis_server

SIDE = Path(__file__).with_name("oslo_suite_side.py")
MODULES = (
    "oslo_messaging/tests/functional/test_functional",
    "oslo_messaging/tests/functional/notify/test_logger",
)
PREFIX = "oslo_messaging.tests.functional."
TESTS = 31
MODES = ("patched", "native")
DIRECTORIES = ("embedded", "redis")
JOBS = 4
"""Processes at a time, with two cores in mind: tests of the suite give a message half a second to arrive."""
LIST_S = 60.0
ALTERED = """
import base64, hashlib
from importlib.metadata import files
for file in files("oslo.messaging"):
    if "tests/functional/" in str(file) and file.suffix == ".py":
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.locate().read_bytes()).digest()).decode().rstrip("=")
        print(file, digest == file.hash.value)
"""
TEST_S = 100.0
"""A test that takes longer is ended by the suite itself (OS_TEST_TIMEOUT)."""
END_S = 30.0
"""A process that has run its tests has to end by itself."""
LOGGER_WEIGHT = 16
OTHER_WEIGHT = 5


@dataclass
class Outcome:
    """One test: ``passed``, ``failed``, ``skipped`` or ``unfinished``; ``text`` says why."""

    test: str
    outcome: str
    seconds: float = 0.0
    text: str = ""


@dataclass
class Run:
    """All of a run. ``hung`` are processes that did not end by themselves, ``counted`` is what the nodes saw."""

    mode: str
    directory: str
    version: str
    seconds: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)

    @property
    def passed(self) -> int:
        return sum(each.outcome == "passed" for each in self.outcomes)

    @property
    def wrong(self) -> list[str]:
        """What did not pass, with the end of its text, and processes that did not end."""
        told = [
            f"{each.test}: {each.outcome}\n{each.text[-3000:]}"
            for each in self.outcomes
            if each.outcome != "passed"
        ]
        return told + self.hung


@contextlib.contextmanager
def stage(folder: Path, directory: str, count: int) -> Iterator[tuple[str, list[str]]]:
    """Node proxies, as ``directory`` says: (transport URL, folder of each node)."""
    with contextlib.ExitStack() as stack:
        if directory == "redis":
            _process, port = stack.enter_context(redis_server(folder))
            redis = f"127.0.0.1:{port}"
            started = stack.enter_context(nodes(folder, count, directories=[], redis=[f"redis://{redis}/0"]))
            yield f"zmq+redis://{redis}/0", [str(proxy.folder) for proxy in started]
        else:
            started = stack.enter_context(nodes(folder, count))
            yield "zmq://", [str(proxy.folder) for proxy in started]


def dealt(tests: Sequence[str], jobs: int) -> list[list[str]]:
    """Tests for each process: the longest first, each to whoever has least."""
    weigh = {test: LOGGER_WEIGHT if "test_logger" in test else OTHER_WEIGHT for test in tests}
    hands: list[list[str]] = [[] for _ in range(jobs)]
    for test in sorted(tests, key=lambda each: (-weigh[each], each)):
        min(hands, key=lambda hand: sum(weigh[each] for each in hand)).append(test)
    return [hand for hand in hands if hand]


class Worker:
    """One process that runs some of the tests."""

    def __init__(
        self, folder: Path, number: int, python: str, tests: list[str], words: dict[str, Any]
    ) -> None:
        self.tests = tests
        self.report = folder / f"suite{number}.jsonl"
        self.log = folder / f"suite{number}.err"
        words = {**words, "tests": tests, "report": str(self.report)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [python, "-P", str(SIDE), json.dumps(words)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(python, words["url"]),
                cwd=folder,
            )

    def wait(self, seconds: float) -> str:
        """Wait for its end; "" or what was wrong with it."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"a process did not end within {seconds:.0f} s: {self.last_words()}"
        return f"a process ended with {code}: {self.last_words()}" if code else ""

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def outcomes(self) -> list[Outcome]:
        """What became of its tests; those it did not come to are unfinished."""
        lines = self.report.read_text().splitlines() if self.report.exists() else []
        told: dict[str, Outcome] = {}
        for line in lines:
            found = Outcome(**json.loads(line))
            before = told.get(found.test)
            if before is None or before.outcome in ("started", "passed"):
                told[found.test] = found  # a test may fail again when it cleans up: the first failure counts
        for test in self.tests:
            if test not in told or told[test].outcome == "started":
                told[test] = Outcome(test, "unfinished", text=self.last_words())
        return list(told.values())


def environment(python: str, url: str) -> dict[str, str]:
    """What the suite reads, and the environment's programs first: one test starts ``python3``."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OS_", "PYTHON", "VIRTUAL_ENV"))
    }
    return kept | {
        "RPC_TRANSPORT_URL": url,
        "NOTIFY_TRANSPORT_URL": url,
        "OS_TEST_TIMEOUT": f"{TEST_S:.0f}",
        "PATH": f"{Path(python).parent}:{os.environ.get('PATH', '')}",
        "PYTHONWARNINGS": "ignore",
    }


def names_of_tests(python: str, mode: str) -> list[str]:
    """Every test of the suite's two modules.

    Raises:
        subprocess.CalledProcessError: they cannot be imported.
    """
    words = json.dumps({"mode": mode})
    done = subprocess.run(
        [python, "-P", str(SIDE), words],
        stdout=subprocess.PIPE,
        env=environment(python, "zmq://"),
        timeout=LIST_S,
        check=True,
    )
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names


def as_shipped(python: str) -> dict[str, bool]:
    """The files of the suite, and whether each is what the wheel of oslo.messaging brought."""
    done = subprocess.run(
        [python, "-c", ALTERED], stdout=subprocess.PIPE, text=True, timeout=LIST_S, check=True
    )
    return {name: same == "True" for name, same in (line.split() for line in done.stdout.splitlines())}


def run_suite(
    folder: Path,
    *,
    mode: str = "patched",
    directory: str = "embedded",
    version: str = "",
    jobs: int = JOBS,
    only: str = "",
    count: int = 0,
) -> Run:
    """Run the suite, or the tests whose names contain ``only``; ``folder`` takes logs and sockets."""
    python = oslo_python(version)
    run = Run(mode, directory, version)
    began = time.monotonic()
    tests = [name for name in names_of_tests(python, mode) if only in name]
    with stage(folder, directory, count or (2 if directory == "redis" else 1)) as (url, folders):
        words = {"mode": mode, "url": url, "folders": folders}
        hands = dealt(tests, jobs)
        workers: list[Worker] = []
        try:
            for number, hand in enumerate(hands):
                workers.append(Worker(folder, number, python, hand, words))
            for worker in workers:
                trouble = worker.wait(
                    sum(TEST_S if "test_logger" in test else 40.0 for test in worker.tests) + END_S
                )
                run.hung += [trouble] if trouble else []
        finally:
            for worker in workers:
                worker.kill()
    run.outcomes = list(itertools.chain.from_iterable(worker.outcomes() for worker in workers))
    run.seconds = round(time.monotonic() - began, 1)
    return run


def main() -> int:
    """By hand; the exit code is 0 when everything passed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.live.oslo_suite", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--mode", choices=MODES, default="patched")
    parser.add_argument("--directory", choices=DIRECTORIES, default="embedded")
    parser.add_argument("--version", default="", help="environment .venv-oslo-VERSION; default .venv-oslo")
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--nodes", type=int, default=0)
    parser.add_argument("--only", default="", help="tests whose names contain this")
    parser.add_argument("--keep", type=Path, help="copy the logs there")
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    try:
        run = run_suite(
            folder,
            mode=words.mode,
            directory=words.directory,
            version=words.version,
            jobs=words.jobs,
            only=words.only,
            count=words.nodes,
        )
    except pytest.skip.Exception as missing:
        sys.exit(str(missing))
    finally:
        if words.keep:
            words.keep.mkdir(parents=True, exist_ok=True)
            for file in folder.iterdir():
                if file.suffix in (".err", ".jsonl", ".log"):
                    shutil.copy(file, words.keep)
        shutil.rmtree(folder, ignore_errors=True)
    if words.json:
        print(json.dumps({**asdict(run), "passed": run.passed}, indent=1))
    else:
        for each in sorted(run.outcomes, key=lambda outcome: outcome.test):
            print(f"{each.outcome:<10} {each.seconds:6.1f} s  {each.test.removeprefix(PREFIX)}")
        for each in run.wrong:
            print(f"\n{each}")
        print(
            f"\n{run.passed} of {len(run.outcomes)} passed in {run.seconds} s ({run.mode}, {run.directory})"
        )
    return 0 if run.outcomes and not run.wrong else 1


if __name__ == "__main__":
    sys.exit(main())
