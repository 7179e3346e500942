"""The build that is measured: the wheel that people get, or the sources alone where none was given.

A wheel is unpacked into a folder of its own, with a copy of these tests, and the benchmark runs again in there: all
that it starts, and what it does in its own process, is that build. ``Pure`` contenders run the sources beside it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from argparse import Namespace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = "HEADGATE_BENCH_SOURCES"
"""The variable that names the checkout while a wheel is measured."""


def inside() -> bool:
    """Whether this process runs from an unpacked wheel."""
    return SOURCES in os.environ


def pure() -> dict[str, str]:
    """The environment in which a program of ours runs from the sources."""
    return dict(os.environ, PYTHONPATH=os.environ[SOURCES])


def run_from(wheel: Path, chosen: Namespace) -> int:
    """Run this benchmark again with ``wheel`` in place of the sources; returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="hgb-wheel-") as name:
        place = Path(name)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place)
        shutil.copytree(ROOT / "tests", place / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        for each in ROOT.glob(".venv-*"):  # where NorFab and oslo.messaging are
            (place / each.name).symlink_to(each)
        paths = ["--json", str(chosen.json.absolute()), "--cache", str(chosen.cache.absolute())]
        if chosen.page is not None:
            paths += ["--page", str(chosen.page.absolute())]
        return subprocess.run(
            [sys.executable, "-m", "tests.bench", *sys.argv[1:], *paths],
            cwd=place,
            env=dict(os.environ, PYTHONPATH=name) | {SOURCES: str(ROOT)},
            check=False,
        ).returncode
