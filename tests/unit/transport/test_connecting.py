"""Connections, as every transport has them."""

import errno
import socket

import pytest

from broker.endpoints import Endpoint
from broker.errors import LinkBroken
from broker.transport import dialing


async def test_a_host_that_does_not_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(dialing, "CONNECT_S", 0.05)
    with socket.socket() as full:  # a queue for one, and two who fill it: others are not answered
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first, second = (socket.socket() for _ in range(2))
        with first, second:
            for sock in (first, second):
                sock.setblocking(False)
                sock.connect_ex(full.getsockname())
            with pytest.raises(
                LinkBroken, match=r"tcp://127\.0\.0\.1:\d+: no answer within 0\.05 s"
            ) as caught:
                await dialing.connect(Endpoint("tcp", *full.getsockname()))
    assert caught.value.errno == errno.ETIMEDOUT


async def test_every_connection_ends_when_the_other_machine_is_gone():
    """That of a WebSocket waited for ever."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        await dialing.connect(Endpoint("ws", *listening.getsockname())) as sock,
    ):
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
