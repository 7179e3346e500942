"""Nodes in short paths, ports that are closed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.oslo.client.session import ClientSession
from broker.oslo.proxy import pending
from tests.live.oslo_raw import Node
from tests.unit.oslo.client.nodes import settings_at, whole_node


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closed last."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def folder(rundir: Path) -> Path:
    """Of a node."""
    path = rundir / "s"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def run_node(folder: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Node]:
    """Start a real node; it soon forgets a call whose time is over."""
    monkeypatch.setattr(pending, "GRACE_S", 0.05)
    return lambda **changes: stack.enter_context(Node(whole_node(changes.pop("folder", folder), **changes)))


@pytest.fixture
def node(run_node: Callable[..., Node]) -> Node:
    """Every room in one thread."""
    return run_node()


@pytest.fixture
def open_session(folder: Path, stack: ExitStack) -> Callable[..., ClientSession]:
    """Make a port; it is closed at the end."""

    def make(**changes: object) -> ClientSession:
        port = ClientSession(settings_at(changes.pop("folder", folder), **changes))
        stack.callback(port.close)
        return port

    return make


@pytest.fixture
def descriptors() -> Callable[[], int]:
    """How many files this process has open."""
    return lambda: len(os.listdir("/proc/self/fd"))
