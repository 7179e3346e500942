"""What becomes of a run of CI: its second runs, its end, its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ci import verdict

pytestmark = pytest.mark.tools
ROOT = Path(__file__).parents[2]

WEATHER = """
import pathlib

def test_weather():
    seen = pathlib.Path("seen")
    before = seen.exists()
    seen.touch()
    assert before, "not seen yet"
"""


class Run:
    """A run of CI in a folder: steps that run pytest on small files, with the recording plugin, and its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ci"
        self.tests = folder / "tests"
        (self.folder / "records").mkdir(parents=True)
        (self.folder / "steps").touch()
        self.tests.mkdir()
        self.flaky = folder / "flaky.txt"
        self.flaky.touch()

    def step(self, name: str, code: int, log: str, seconds: int = 1) -> None:
        (self.folder / f"{name}.log").write_text(log)
        with (self.folder / "steps").open("a") as steps:
            steps.write(f"{name} {code} {seconds}\n")

    def run_pytest(self, name: str, text: str, *words: str) -> int:
        (self.tests / f"test_{name}.py").write_text(text)
        environment = {
            **os.environ,
            "HEADGATE_CI": "1",
            "HEADGATE_RECORDS": str(self.folder / "records"),
            "HEADGATE_STEP": name,
            "PYTEST_ADDOPTS": "-p tests.ci.record",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": str(ROOT),
        }
        words = ("-q", "-p", "no:cacheprovider", "--rootdir", ".", *words, f"test_{name}.py")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            env=environment, cwd=self.tests, capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.step(name, done.returncode, done.stdout + done.stderr)
        return done.returncode

    def end(self, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
        capsys.readouterr()
        code = verdict.main(self.folder, 1234, self.flaky)
        return code, capsys.readouterr().out.splitlines()


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_what_passes_at_the_second_time_is_flaky_and_no_failure(run, capsys):
    assert run.run_pytest("once", WEATHER + "def test_other(): pass\n") == 0
    code, lines = run.end(capsys)
    assert code == 0
    assert "FLAKY test_once.py::test_weather: AssertionError: not seen yet assert False" in lines
    assert "1 flaky: passed when run again, alone" in lines
    assert lines[-1] == "=========== 2 passed, 0 skipped in 1234.00s ==========="


TWICE = """
import pathlib, pytest
def broken():
    '''
    >>> 1 + 1
    3
    '''
def test_broken():
    assert 1 + 1 == 3
def test_other():
    pass
def test_skipped_then():
    seen = pathlib.Path("seen")
    if seen.exists(): pytest.skip("optional: rain")
    seen.touch()
    assert 0
"""


def test_what_fails_twice_fails_the_run(run, capsys):
    """A failed doctest is run again as a doctest, and a skip at the second time is not a pass."""
    assert run.run_pytest("twice", TWICE, "--doctest-modules") == 0
    code, lines = run.end(capsys)
    assert code == 1
    told = [line for line in lines if line.startswith("FAILED twice: ")]
    assert told == [
        "FAILED twice: test_twice.py::test_twice.broken (test_twice.py)",
        "FAILED twice: test_twice.py::test_broken (test_twice.py:9)",
        "FAILED twice: test_twice.py::test_skipped_then (test_twice.py:16)",
    ]
    assert lines[lines.index(told[1]) + 1] == "    assert (1 + 1) == 3"
    assert lines[-2:] == [
        "FAILED: tests: 3",
        "=========== 3 failed, 1 passed, 0 skipped in 1234.00s ===========",
    ]


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("import os\ndef test_gone(): os._exit(1)\n", ["-p", "xdist", "-n", "1"], "crashed while running"),
        ("import nowhere\n", [], "No module named 'nowhere'"),
        ("import pytest\ndef test_skipped(): pytest.skip('no such program')\n", [], "skipped in CI"),
    ],
    ids=["crash", "collection", "skip"],
)
def test_what_is_not_run_again(run, capsys, text, words, expected):
    (run.tests / "conftest.py").write_text("from tests.conftest import pytest_runtest_makereport\n")
    assert run.run_pytest("final", text, *words) != 0
    code, lines = run.end(capsys)
    assert code == 1
    assert "FAILED: step final" in lines
    assert not any(line.startswith("again: ") for line in lines)
    assert any(expected in line for line in lines[-10:])
    assert lines[-1].startswith("=========== 1 failed, 0 passed")


def record(folder: Path, failures: list[dict[str, object]], step: str = "test") -> None:
    told = {"step": step, "command": ["pytest"], "folder": ".", "environment": {}}
    counts = {"passed": 1, "failed": len(failures), "skipped": 2}
    text = json.dumps({**told, "counts": counts, "failures": failures})
    (folder / "records" / f"{step}.json").write_text(text)


def failed(number: int, lines: int = 20) -> dict[str, object]:
    reason = [f"assert {number} == {line}" for line in range(lines)]
    return {
        "test": f"tests/test_a.py::test_{number}",
        "again": True,
        "where": "tests/test_a.py:7",
        "reason": reason,
    }


def test_three_flaky_tests_are_borne_and_a_fourth_is_not(run, capsys, monkeypatch):
    monkeypatch.setattr(verdict, "_passes", lambda failure, limit_s: True)
    record(run.folder, [failed(number, 1) for number in range(3)])
    code, lines = run.end(capsys)
    assert code == 0
    assert lines[-2:] == [
        "3 flaky: passed when run again, alone",
        "=========== 4 passed, 2 skipped in 1234.00s ===========",
    ]
    record(run.folder, [failed(3, 1)], "patient")
    code, lines = run.end(capsys)
    assert code == 1
    assert "FLAKY tests/test_a.py::test_3: assert 3 == 0" in lines
    assert lines[-2] == "FAILED: more than 3 flaky tests"


def test_what_was_flaky_before_fails_the_run(run, capsys, monkeypatch):
    monkeypatch.setattr(verdict, "_passes", lambda failure, limit_s: True)
    run.flaky.write_text("# a comment\ntests/test_a.py::test_0 | 2026-11-28 | rain\n")
    record(run.folder, [failed(0)])
    code, lines = run.end(capsys)
    assert code == 1
    assert lines[-2] == "FAILED: flaky again, mend it: tests/test_a.py::test_0 (rain)"


@pytest.mark.parametrize("count", [11, 25, 40, 200])
def test_a_failing_run_ends_with_sixty_lines_at_most(run, capsys, count):
    record(run.folder, [failed(number) for number in range(count)])
    run.step("lint", 2, "\n".join(f"a.py:{line}:1: F401 unused" for line in range(100)))
    run.step("test", 0, "SKIPPED [1] a.py: optional: none\n" * 100)
    code, lines = run.end(capsys)
    end = lines[lines.index("SKIPPED [1] a.py: optional: none") + 1 :]
    assert code == 1
    assert len(end) <= verdict.LINES_MAX
    assert "    a.py:0:1: F401 unused" in end
    assert any(line.startswith("FAILED test: tests/test_a.py::test_0") for line in end)
    if count <= 25:
        assert sum(line.startswith("FAILED test: ") for line in end) == count
    assert end[-1] == f"=========== {count} failed, 1 passed, 2 skipped in 1234.00s ==========="


LOGS = {
    "ruff": ("a/b.py:1:8: F401 `os` imported but unused", "Found 1 error.\n"),
    "ruff format": ("Would reformat: a/b.py", "1 file would be reformatted\n"),
    "mypy": ("a/b.py:3: error: Name 'x' is not defined  [name-defined]", "a/b.py:3: note: more\n"),
    "import-linter": ("only cli imports typer BROKEN", "Contracts: 1 broken.\n"),
    "deploy": ("bad   0.31 s  Dockerfile: hadolint", "ok   0.10 s  compose.yaml\n"),
    "mkdocs": ("WARNING -  Doc file 'a.md' contains a link 'b.md'", "INFO    -  Building\n"),
    "package": ("package: FAILED: twine check", "=== build\n"),
    "pip": ("ERROR: No matching distribution found for nothing", "Collecting nothing\n"),
    "compiler": ("build/x.c:12:3: error: expected ';'", "In file included from y.h\n"),
    "python": ("ModuleNotFoundError: No module named 'build'", '  File "a.py", line 3\n'),
}


@pytest.mark.parametrize("name", LOGS)
def test_what_is_wrong_is_found_in_an_output(name):
    line, beside = LOGS[name]
    found = verdict.problem_lines(f"{beside}{line}\nmake: *** [Makefile:1: lint] Error 1\n", 9)
    assert found == [line, "make: *** [Makefile:1: lint] Error 1"]


def test_an_output_without_a_known_line_is_shown_from_its_end():
    assert verdict.problem_lines("one\ntwo\nthree\nmake: *** [x] Error 1\n", 3) == [
        "two",
        "three",
        "make: *** [x] Error 1",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tests/a.py::test_b yesterday\n", "expected NAME"),
        ("tests/a.py::test_b | 2026-11-28 | \n", "expected NAME"),
        ("tests/a.py::test_b | 2026-11-28 | rain\n" * 11, "11 lines, at most 10"),
    ],
)
def test_a_list_of_flaky_tests_is_short_and_has_a_form(tmp_path, run, capsys, text, expected):
    run.flaky.write_text(text)
    with pytest.raises(ValueError, match=expected):
        verdict.listed(run.flaky)
    code, lines = run.end(capsys)
    assert code == 1
    assert any(expected in line for line in lines)


def test_the_list_names_tests_that_are_there():
    for name in verdict.listed():
        file, _, function = name.partition("[")[0].partition("::")
        found = [
            path for path in (ROOT / file, ROOT / "docs/examples/headgate-token" / file) if path.is_file()
        ]
        assert found, name
        # the example of a docstring is called by its module: broker.wire.topic.method_of
        assert file.startswith("broker/") or f"def {function.rpartition('::')[2]}(" in found[0].read_text(), (
            name
        )


def test_a_run_that_stops_early_or_runs_nothing_is_no_success(run, capsys):
    text = "def test_a(): assert 0\ndef test_b(): assert 0\n"
    assert run.run_pytest("early", text, "-x") != 0
    assert run.end(capsys)[0] == 1


def test_no_test_at_all_is_a_failure(run, capsys):
    code, lines = run.end(capsys)
    assert code == 1
    assert "FAILED: no test was run" in lines
