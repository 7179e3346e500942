"""A port whose newest socket gets what comes."""

import contextlib
import select
import socket

import pytest

from broker.errors import ConfigError
from broker.oslo.reactor.binding import ReusedPort
from broker.testing.harness import PATIENCE_S


def reached(address, *listening) -> list[socket.socket]:
    """Which of them get new connections."""
    found = []
    for _ in range(8):
        with socket.create_connection(address, PATIENCE_S):
            there, _, _ = select.select(listening, [], [], PATIENCE_S)
            found += there
            for each in there:
                each.accept()[0].close()
    return found


def test_each_further_socket_gets_all_that_comes():
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = ReusedPort()
        port.take(first.fileno())
        there = [first]
        for _ in range(2):
            there.append(stack.enter_context(socket.socket(fileno=port.open())))
            port.take(there[-1].fileno())
            assert reached(first.getsockname(), *there) == [there[-1]] * 8


def test_what_is_closed_cannot_be_listened_at_again():
    port = ReusedPort()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port.take(closed.fileno())
    with pytest.raises(ConfigError, match="second time"):
        port.open()
