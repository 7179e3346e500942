"""A process that expects another node's name says so once: its folder may be that of another node."""

import logging

import pytest

from broker.oslo.contract import Address
from tests.live.oslo_raw import PATIENCE_S, until


@pytest.mark.parametrize(("expected", "lines"), [("", 0), ("n1", 0), ("n2", 1)])
def test_the_name_of_the_node(run_node, open_session, caplog, expected: str, lines: int) -> None:
    run_node(node="n1")
    with caplog.at_level(logging.WARNING):
        port = open_session(node=expected)
        inbox = port.listen(Address("x", "t", "s"))
        port.cast(Address("x", "t"), b"")
        assert inbox.get(PATIENCE_S) is not None
        # the name comes from the directory, which may be behind what the node itself sends
        until(lambda: len(said(caplog)) >= lines)
    assert len(said(caplog)) == lines
    assert all("'n1', expected 'n2'" in line for line in said(caplog))


def said(caplog) -> list[str]:
    return [line for line in caplog.messages if "calls itself" in line]
