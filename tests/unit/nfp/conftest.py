"""Peers of these tests keep their keys where no broker of the person who runs them has its own."""

from itertools import count
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def homes(tmp_path_factory):
    """Folders for tests, none of which is made before somebody keeps something in it."""
    folder: Path = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in count())


@pytest.fixture(autouse=True)
def home(homes, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(next(homes)))
