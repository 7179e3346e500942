"""The functional test suite that ships inside oslo.messaging passes over ``zmq://``."""

from pathlib import Path

import pytest

from tests.live.oslo import OLDER, oslo_python
from tests.live.oslo_suite import DIRECTORIES, MODES, MODULES, PREFIX, TESTS, Worker, as_shipped, run_suite

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

GATING = [("native", "redis", ""), ("patched", "embedded", OLDER[0])]
"""The newest and the oldest version, both ways of threading, both directories; tricks have it the other way round."""


@pytest.mark.parametrize(
    ("mode", "directory", "version"),
    [
        *GATING,
        *(
            pytest.param(*each, marks=pytest.mark.between)
            for each in [
                *((mode, directory, "") for mode in MODES for directory in DIRECTORIES),
                *(("patched", "embedded", version) for version in OLDER),
                # what the newest and the oldest do with threads, those between do, too
                ("native", "embedded", OLDER[0]),
            ]
            if each not in GATING
        ),
    ],
)
def test_the_shipped_suite(rundir: Path, mode: str, directory: str, version: str) -> None:
    """Z1: all its tests, as shipped (patched by eventlet) and with threads; none may be skipped."""
    run = run_suite(rundir, mode=mode, directory=directory, version=version)
    assert not run.wrong, "\n\n".join(run.wrong)
    assert run.passed == TESTS, "Z1: driver of oslo.messaging, API unchanged"


@pytest.mark.parametrize(
    "version", ["", OLDER[0], *(pytest.param(each, marks=pytest.mark.between) for each in OLDER[1:])]
)
def test_the_suite_is_as_shipped(version: str) -> None:
    """Z24: not one of its files was touched."""
    files = as_shipped(oslo_python(version))
    assert {f"{module}.py" for module in MODULES} <= set(files)
    assert all(files.values()), "Z24: unit tests; functional tests unchanged; trickier cases"


def test_the_runner_sees_what_fails(rundir: Path) -> None:
    """A driver that does not exist: nothing passes, the two tests without their guard are not skipped."""
    tests = [
        f"{PREFIX}test_functional.CallTestCase.{name}"
        for name in ("test_monitor_long_call", "test_exception")
    ]
    words = {"mode": "native", "url": "nosuch://", "folders": ["unused"]}
    worker = Worker(rundir, 0, oslo_python(), [*tests, "of.another.suite"], words)
    assert worker.wait(60) == ""
    assert [each.outcome for each in worker.outcomes()] == ["failed", "failed", "unfinished"]
    assert all("nosuch" in each.text for each in worker.outcomes()[:2])
