"""What all tests share: the policies on skips and on time, the profiles of hypothesis, a short directory for sockets.

Skips. A test may be skipped where something is missing that a person may well not have. In CI
(`HEADGATE_CI=1`) that would hide a test for good, so a skip fails there unless its reason begins with
`optional:`. Reasons are shown in every run (`-rfEs`).

Time. A test that needs real time is marked `patient` and left to `make test-patient`; the few stories without which
`make test` would not have seen a part of the product are marked `smoke` and run there. Any other test that takes longer
than `FAST_S` is named at the end of a run. It is no failure: a machine may stand still for seconds, which no test sees.

Workers. Each collects all tests, which costs as much as a thousand tests do: there are no more of them than keep the
cores busy, and a file whose tests are all of a tier that is not asked for is not imported. In a fresh clone, rewriting
the assertions of all tests takes twice as long as the rest of it: each worker imports another part of the files first,
and the others read what it compiled.
"""

import atexit
import contextlib
import gc
import importlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings, strategies
from hypothesis.internal.conjecture import providers

from tests.live import guard
from tests.live.own_log import own_log

OPTIONAL = "optional:"
"""How the reason of a skip begins that even CI may pass over."""

FAST_S = 2.0
"""The seconds that a test may take that has none of the markers of `UNHURRIED`; its fixtures are not counted."""

UNHURRIED = ("patient", "smoke", "slow", "interop", "spark", "bench", "containers")
"""The markers of tests that may take longer."""

CAPTURED_LINES_MAX = 100
"""What a report of a failure shows of each output at the most: hypothesis replays a failure hundreds of times."""

settings.register_profile("fast", deadline=None, max_examples=30)
settings.register_profile("ci", settings.get_profile("fast"), derandomize=True, print_blob=True)
# `make soak` has more of them, and others each time
settings.register_profile("thorough", settings.get_profile("fast"), max_examples=300, print_blob=True)
settings.register_profile(
    "soak", deadline=None, max_examples=20_000, suppress_health_check=[HealthCheck.too_slow]
)


WORKERS_PER_CORE = {"auto": 1.5, "logical": 2}
"""What `--numprocesses` says: `auto` for tests that wait a third of their time, `logical` for those that mostly wait:
another worker fills the pauses of the first."""


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there are no workers
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return min(int(WORKERS_PER_CORE[config.option.numprocesses] * len(os.sched_getaffinity(0))), 16)


SESSIONS = ("cli", "cluster", "killed", "plain", "readme", "tables", "up")
"""Tests of Spark that start a session each, about half of their time; the others share one."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Keep tests that share something in one worker (`--dist loadgroup`): those of a file, whose fixtures run real
    peers for minutes, and those of Spark, whose sessions take a gigabyte each: two at a time. The tricks share nothing.
    The suite of oslo.messaging is a group for each of its runs: one is four processes, and mostly waits.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Grouped(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file == "tests/interop/test_oslo_suite.py":
                return f"suite: {nodeid.partition('[')[2].partition('-')[0]} {nodeid.endswith('-]')}"
            if file == "tests/interop/test_oslo_trickier.py":
                return nodeid
            if not file.startswith("tests/spark/"):
                return file
            name = file.removeprefix("tests/spark/test_").removesuffix(".py").partition("_")[0]
            return f"spark: {'apart' if name in SESSIONS else 'shared'}"

    return Grouped(config, log)


def pytest_configure(config: pytest.Config) -> None:
    guard.begin()
    keep_out_of_the_home()
    draw_no_constants_of_modules()
    if os.environ.get("HEADGATE_SOAK") == "1":
        settings.load_profile("soak")
    else:
        settings.load_profile(os.environ.get("HEADGATE_EXAMPLES") or ("ci" if skips_fail() else "fast"))


def pytest_collection(session: pytest.Session) -> None:
    """Import what will be collected, each worker from another file on: what one has compiled the others read."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    if worker["workerid"] == "gw0":
        strategies.text().validate()  # writes down which characters there are: three seconds of each that finds no file
    gc.disable()  # collection makes no garbage
    names = list(modules(session.config))
    first = len(names) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for name in names[first:] + names[:first]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collection meets it again, and tells
            importlib.import_module(name)


LEFT_OUT = re.compile(r"not \(([a-z ]+)\)( and (\w+|\(.*\)))?")
"""How `-m` of the fast tiers begins: the markers whose tests are left out."""
MARKED = re.compile(r"^pytestmark = (?:\[[^]]*\]|.*)", re.MULTILINE)
FOLDERS = {"spark": "spark", "containers": "slow"}
"""Folder -> the marker that its conftest.py gives to all of its tests."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file whose tests are all left out: a sixth of them, and some of the dearest imports."""
    named = collection_path in places(config)
    return True if not named and collection_path.is_file() and is_left_out(collection_path, config) else None


def is_left_out(path: Path, config: pytest.Config) -> bool:
    """Tell whether all tests of a file have a marker that `-m` leaves out."""
    asked = LEFT_OUT.fullmatch(config.option.markexpr)
    if asked is None or not path.name.startswith("test_"):
        return False
    marked = MARKED.search(path.read_text())
    names = re.findall(r"mark\.(\w+)", marked[0]) if marked else []
    return not {FOLDERS.get(path.parent.name), *names}.isdisjoint(asked[1].split(" or "))


def places(config: pytest.Config) -> list[Path]:
    """Return the files and folders that a run was asked for."""
    return [config.invocation_params.dir / each.partition("::")[0] for each in config.args]


def modules(config: pytest.Config) -> Iterator[str]:
    """Yield the names of the test modules that a run was asked for; pytest itself names those of packages."""
    ignored = [config.invocation_params.dir / each for each in config.option.ignore or ()]
    for place in places(config):
        for path in [place] if place.is_file() else sorted(place.rglob("test_*.py")):
            if any(map(path.is_relative_to, ignored)) or (path != place and is_left_out(path, config)):
                continue
            if path.is_relative_to(config.rootpath) and not (path.parent / "__init__.py").exists():
                yield ".".join(path.relative_to(config.rootpath).with_suffix("").parts)


def pytest_collection_finish(session: pytest.Session) -> None:
    """From here on garbage is looked for, but not among the tens of thousands of tests themselves."""
    if not gc.isenabled():
        gc.enable()
        gc.freeze()


def keep_out_of_the_home() -> None:
    """Let what a test keeps by default, such as the jobs of a named client, be this run's: nothing of its user's."""
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="headgate-state-")
    atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)


def draw_no_constants_of_modules() -> None:
    """Let hypothesis draw what a test says, and not the constants of whatever modules are loaded beside it.

    To find those it reads all our files, four seconds of each worker in a fresh clone; and a test that runs alone would
    have other examples than in a whole run.
    """
    if hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = lambda: providers._local_constants


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
        report.refused = True  # to run it again would say the same: tests/ci/record.py
        report.longrepr = (
            f"skipped in CI: {reason!r}; a skip is allowed here only with a reason '{OPTIONAL} ...'"
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that take longer than their marker allows, the slowest first; they fail nobody."""
    slow = [report for report in terminalreporter.getreports("passed") if is_slow(report)]
    for report in sorted(slow, key=lambda each: -each.duration):
        terminalreporter.write_line(f"SLOW [{report.duration:.1f} s] {report.nodeid}")
    if slow:
        terminalreporter.write_line(f"beyond {FAST_S} s take the wait away, or mark the test 'patient'")


def is_slow(report: pytest.TestReport) -> bool:
    """Tell whether a test took longer than its tier has; one of hypothesis takes as long as its examples do."""
    return report.duration > FAST_S and not {*UNHURRIED, "hypothesis"} & report.keywords.keys()


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
    report.sections = [(name, readable(text)) for name, text in report.sections]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    refuse_skip(report)
    return report


@pytest.fixture(autouse=True)
def log_of_one_test() -> Iterator[None]:
    """What a command sets up for its process, such as a gate for floods, ends with the test that ran it in this one."""
    with own_log():
        yield


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
