"""A pytest plugin for CI: what each run of pytest did is written down, and what failed is left to the second run.

``.ci/run`` loads it into every run of pytest of every step. A run whose failures can all be run again ends as if they
had passed, so that its step goes on; ``verdict`` runs them again when all steps have ended, and decides. A crash of a
worker, a collection error and a skip that CI refuses are not run again: they fail their step as ever.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = "HEADGATE_RECORDS"
"""The variable that names the folder for records; without it, nothing is written down."""

STEP = "HEADGATE_STEP"
"""The variable that names the step of CI."""

REASON_LINES_MAX = 12
LINE_MAX = 300

ENVIRONMENT = dict(os.environ)  # as it was before any plugin or test changed it


def pytest_configure(config: pytest.Config) -> None:
    folder = os.environ.get(FOLDER)
    if folder and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(folder)))
        # a pytest that a test starts is a matter of that test
        os.environ.pop(FOLDER)
        os.environ.pop("PYTEST_ADDOPTS", None)


class Recorder:
    """Writes one JSON file when a run of pytest ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._outcomes: dict[str, str] = {}
        self._failures: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._fail(report, again=str(report.when) != "???" and not hasattr(report, "refused"))
        elif report.skipped or report.when == "call":
            self._outcomes.setdefault(report.nodeid, report.outcome)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._fail(report, again=False)

    def _fail(self, report: pytest.TestReport | pytest.CollectReport, *, again: bool) -> None:
        self._outcomes[report.nodeid] = "failed"
        self._failures.append(
            {"test": report.nodeid, "again": again, "where": place(report), "reason": reason(report)}
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the record; leave failures that can be run again out of the exit code."""
        outcomes = list(self._outcomes.values())
        record = {
            "step": ENVIRONMENT.get(STEP, ""),
            "command": [
                sys.executable, "-m", "pytest", "-p", "no:cacheprovider",
                *(["--doctest-modules"] if session.config.option.doctestmodules else []),
                *(f"-W{each}" for each in session.config.known_args_namespace.pythonwarnings or ()),
            ],
            "folder": os.getcwd(),
            "environment": ENVIRONMENT,
            "counts": {each: outcomes.count(each) for each in ("passed", "failed", "skipped")},
            "failures": self._failures,
        }  # fmt: skip
        with tempfile.NamedTemporaryFile(
            "w", dir=self._folder, prefix="run-", suffix=".json", delete=False
        ) as file:
            json.dump(record, file)
        whole = (
            self._failures and not session.shouldfail and not session.shouldstop
        )  # with -x the rest was not run
        if (
            session.exitstatus == pytest.ExitCode.TESTS_FAILED
            and whole
            and all(each["again"] for each in self._failures)
        ):
            session.exitstatus = pytest.ExitCode.OK


def reason(report: pytest.TestReport | pytest.CollectReport) -> list[str]:
    """Return the assertion or error of a failure, without its traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    lines = [line.rstrip()[:LINE_MAX] for line in text.splitlines() if line.strip()]
    return lines[:REASON_LINES_MAX] if crash else lines[-REASON_LINES_MAX:]


def place(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return ``file:line`` of the last frame in the file of the test, else of the last one of all."""
    file = report.nodeid.partition("::")[0]
    frames = list(_frames(report.longrepr))
    own = [each for each in frames if each.startswith(f"{file}:")]
    return [file, *frames[-1:], *own[-1:]][-1]


def _frames(longrepr: object) -> Iterator[str]:
    for entry in getattr(getattr(longrepr, "reprtraceback", None), "reprentries", ()):
        location = getattr(entry, "reprfileloc", None)
        if location is not None:
            yield f"{location.path}:{location.lineno}"
