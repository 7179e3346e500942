"""Peers of these tests keep their keys where no broker of the person who runs them has its own."""

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("home")))
