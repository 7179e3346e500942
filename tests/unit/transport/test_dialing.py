"""What dialers have in common."""

import asyncio
import errno
import socket

import pytest

from broker.errors import LinkBroken
from broker.transport import dialing
from broker.transport.zeromq import address
from broker.transport.zeromq.address import Endpoint


@pytest.fixture
def named(monkeypatch):
    """A name with two addresses, the first of which does not answer."""
    connected, cancelled = dialing._connected, []

    async def resolve(endpoint):
        return [endpoint._replace(host=host) for host in ("192.0.2.1", "127.0.0.1")]

    async def connect(host, port):
        if host == "127.0.0.1":
            return await connected(host, port)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(host)
            raise

    monkeypatch.setattr(address, "resolve", resolve)
    monkeypatch.setattr(dialing, "_connected", connect)
    monkeypatch.setattr(dialing, "NEXT_ADDRESS_S", 0.01)
    return cancelled


async def test_the_next_address_is_tried_beside_one_that_does_not_answer(named):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sock = await dialing.connect_tcp("twice", listening.getsockname()[1])
        assert sock.getpeername() == listening.getsockname()
        sock.close()
    assert named == ["192.0.2.1"]


async def test_a_name_without_address_and_a_port_without_listener_are_told_apart():
    with pytest.raises(LinkBroken, match="cannot resolve") as caught:
        await dialing.connect_tcp("no-such-host.invalid", 1, "wss")
    assert caught.value.errno == errno.EHOSTUNREACH
    assert Endpoint("wss", "::1", 1).text == "wss://[::1]:1"
    with pytest.raises(LinkBroken) as caught:
        async with dialing.attempt("mine://127.0.0.1:1", 5, "answer"):
            await dialing.connect_tcp("127.0.0.1", 1)
    assert caught.value.errno == errno.ECONNREFUSED


async def test_what_an_attempt_opened_is_closed_if_it_fails_and_kept_if_not():
    sock = socket.socket()
    with pytest.raises(LinkBroken, match="no answer within") as caught:
        async with dialing.attempt("mine://x", 0.01, "answer") as opened:
            opened.enter_context(sock)
            await asyncio.Event().wait()
    assert caught.value.errno == errno.ETIMEDOUT
    assert sock.fileno() < 0
    with socket.socket() as sock:
        async with dialing.attempt("mine://x", 0, "answer") as opened:
            opened.enter_context(sock)
        assert sock.fileno() >= 0
