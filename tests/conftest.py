"""What all tests share: the policies on skips and on time, the profiles of hypothesis, a short directory for sockets.

Skips. A test may be skipped where something is missing that a person may well not have. In CI
(`HEADGATE_CI=1`) that would hide a test for good, so a skip fails there unless its reason begins with
`optional:`. Reasons are shown in every run (`-rs`).

Time. A test that needs real time is marked `patient` and left to `make test-all`; the few stories without which `make
test` would not have seen a part of the product are marked `smoke` and run in both. In CI any other test that takes
longer than `FAST_S` fails. The time for which the test was ready and another process had its core is not counted.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.live import guard

OPTIONAL = "optional:"
"""How the reason of a skip begins that even CI may pass over."""

FAST_S = 2.0
"""The seconds that a test may take that has none of the markers of `UNHURRIED`; its fixtures are not counted."""

UNHURRIED = ("patient", "smoke", "slow", "interop", "spark", "bench", "containers")
"""The markers of tests that may take longer."""

CAPTURED_LINES_MAX = 100
"""What a report of a failure shows of each output at the most: hypothesis replays a failure hundreds of times."""

settings.register_profile("fast", deadline=None, max_examples=100)
settings.register_profile("ci", deadline=None, max_examples=200, derandomize=True, print_blob=True)
settings.register_profile(
    "soak", deadline=None, max_examples=20_000, suppress_health_check=[HealthCheck.too_slow]
)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return two workers a core, for most tests wait rather than compute."""
    return min(2 * len(os.sched_getaffinity(0)), 16)


def pytest_configure(config: pytest.Config) -> None:
    guard.begin()
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


def waited_for_a_core() -> float:
    """Return the seconds for which this thread was ready to run and did not (`/proc/thread-self/schedstat`)."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


WAITED = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item):
    before = waited_for_a_core()
    try:
        return (yield)
    finally:
        item.stash[WAITED] = waited_for_a_core() - before


def refuse_slow(item: pytest.Item, report: pytest.TestReport) -> None:
    """Turn a test of the fast tier that is not fast into a failure of CI."""
    if not skips_fail() or report.when != "call" or not report.passed:
        return
    took = report.duration - item.stash.get(WAITED, 0.0)
    if took > FAST_S and not any(item.get_closest_marker(each) for each in UNHURRIED):
        report.outcome = "failed"
        report.longrepr = (
            f"took {took:.1f} s: beyond {FAST_S} s take the wait away, or mark the test 'patient'"
        )


def readable(captured: str) -> str:
    """Return the end of what a test wrote, as text that every encoding of a report can hold."""
    lines = captured.encode(errors="backslashreplace").decode().splitlines(keepends=True)
    if len(lines) <= CAPTURED_LINES_MAX:
        return "".join(lines)
    return f"... {len(lines) - CAPTURED_LINES_MAX} lines before\n" + "".join(lines[-CAPTURED_LINES_MAX:])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    refuse_skip(report)
    refuse_slow(item, report)
    report.sections = [(name, readable(text)) for name, text in report.sections]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    refuse_skip(report)
    return report


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """A private directory whose path is short enough for UNIX sockets, which hold 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def rundir() -> Iterator[Path]:
    """A ``short_directory`` for one test."""
    with short_directory() as path:
        yield path


@pytest.fixture(scope="module")
def module_rundir() -> Iterator[Path]:
    """A ``short_directory`` for a whole file."""
    with short_directory() as path:
        yield path


@pytest.fixture(scope="session")
def flux_prefix() -> Path:
    """The install prefix of a real flux-core; without one the test is skipped, in CI too."""
    prefix = os.environ.get("FLUX_PREFIX")
    if not prefix:
        pytest.skip(f"{OPTIONAL} FLUX_PREFIX does not name a flux-core")
    return Path(prefix)
