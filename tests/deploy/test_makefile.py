"""The Makefile can be read, and each of its targets is there."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.deploy.paths import ROOT

pytestmark = pytest.mark.tools

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.M)[0].split()


def made(*words: str) -> subprocess.CompletedProcess[str]:
    make = shutil.which("make")
    if make is None:
        pytest.skip("optional: no make")
    return subprocess.run(
        [make, "--dry-run", "--no-print-directory", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )


def test_every_target_has_a_recipe_and_only_one() -> None:
    assert set(TARGETS) - set(re.findall(r"^([a-z-]+):", MAKEFILE, re.M)) == set()
    told = made(*TARGETS)
    assert (told.returncode, told.stderr) == (0, "")  # a second recipe is a warning


def test_lint_runs_every_checker() -> None:
    said = made("lint").stdout
    for words in ("ruff check .", "ruff format --check .", "-m mypy", "lint-imports", "-m tests.deploy"):
        assert words in said


def test_what_ci_asks_for_is_there() -> None:
    asked = re.findall(r"\bmake (?:-k )?([\w-]+)$", (ROOT / ".ci/run").read_text(), re.M)
    assert asked
    assert set(asked) <= set(TARGETS)
