"""What all tests share: the policy on skips, the profiles of hypothesis, a short directory for sockets.

Skips. A test may be skipped where something is missing that a person may well not have. In CI
(`HEADGATE_CI=1`) that would hide a test for good, so a skip fails there unless its reason begins with
`optional:`. Reasons are shown in every run (`-rs`).
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

OPTIONAL = "optional:"
"""How the reason of a skip begins that even CI may pass over."""

settings.register_profile("fast", deadline=None, max_examples=100)
settings.register_profile("ci", deadline=None, max_examples=200, derandomize=True, print_blob=True)
settings.register_profile(
    "soak", deadline=None, max_examples=20_000, suppress_health_check=[HealthCheck.too_slow]
)


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("HEADGATE_SOAK") == "1":
        settings.load_profile("soak")
    else:
        settings.load_profile("ci" if skips_fail() else "fast")


def skips_fail() -> bool:
    return os.environ.get("HEADGATE_CI") == "1"


def refused_reason(longrepr: object) -> str | None:
    """Return the reason of a skip that CI does not accept."""
    reason = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
    reason = reason.removeprefix("Skipped: ")
    return None if reason.startswith(OPTIONAL) else reason


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip that CI does not accept into a failure."""
    if not skips_fail() or not report.skipped:
        return
    reason = refused_reason(report.longrepr)
    if reason is not None:
        report.outcome = "failed"
        report.longrepr = (
            f"skipped in CI: {reason!r}; a skip is allowed here only with a reason '{OPTIONAL} ...'"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    refuse_skip(report)
    return report


@pytest.fixture
def rundir() -> Iterator[Path]:
    """A private directory whose path is short enough for UNIX sockets, which hold 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def flux_prefix() -> Path:
    """The install prefix of a real flux-core; without one the test is skipped, in CI too."""
    prefix = os.environ.get("FLUX_PREFIX")
    if not prefix:
        pytest.skip(f"{OPTIONAL} FLUX_PREFIX does not name a flux-core")
    return Path(prefix)
