"""Nodes in short paths."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.oslo.proxy import pending
from tests.live.oslo_raw import Node, node_at


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a node; its path is short enough for sockets."""
    return tmp_path_factory.mktemp("n") / "s"


@pytest.fixture
def run_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Node]]:
    """Start a node with settings; it soon forgets a call whose time is over."""
    monkeypatch.setattr(pending, "GRACE_S", 0.05)
    with ExitStack() as stack:
        yield lambda **changes: stack.enter_context(node_at(changes.pop("folder", folder), **changes))


@pytest.fixture
def node(run_node: Callable[..., Node]) -> Node:
    """CALL and CAST in one process."""
    return run_node()
