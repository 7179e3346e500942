"""What dialers have in common: names, the addresses of one, a time for it all."""

import asyncio
import errno
import os
import socket
import threading
from contextlib import closing

import pytest

from broker.endpoints import Endpoint, parse
from broker.errors import ConfigError, LinkBroken, LinkRefused
from broker.sockets import tcp_address
from broker.transport import dialing, tls
from broker.transport.dialing import attempt, open_first, resolve
from broker.transport.link import Options

SILENT, OPEN = "192.0.2.1", "127.0.0.1"


async def keep(sock):
    return sock


@pytest.fixture
def silent(monkeypatch):
    """One address does not answer; who gave it up."""
    connected, cancelled = dialing.connect, []

    async def connect(place, *, proven=False):
        if place.host != SILENT:
            return await connected(place, proven=proven)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(place.host)
            raise

    monkeypatch.setattr(dialing, "connect", connect)
    monkeypatch.setattr(dialing, "NEXT_ADDRESS_S", 0.01)
    return cancelled


async def test_the_next_address_is_tried_beside_one_that_does_not_answer(silent):
    with socket.create_server((OPEN, 0)) as listening:
        places = [Endpoint("tcp", host, listening.getsockname()[1]) for host in (SILENT, OPEN)]
        with await open_first(places, keep) as sock:
            assert sock.getpeername() == listening.getsockname()
    assert silent == [SILENT]


async def test_a_race_that_is_cancelled_at_its_end_leaves_no_socket(monkeypatch):
    """Found with jobs of NFP: whoever had won was forgotten."""
    made = []

    async def race(tries, _delay):
        await tries[0]()
        made.append(len(os.listdir("/proc/self/fd")))
        raise asyncio.CancelledError

    monkeypatch.setattr(dialing, "staggered_race", race)
    with socket.create_server((OPEN, 0)) as listening:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(asyncio.CancelledError):
            await open_first([Endpoint("tcp", *listening.getsockname())], keep)
        assert (made, len(os.listdir("/proc/self/fd"))) == ([before + 1], before)


@pytest.mark.parametrize("fault", ["silence", "an end"])
async def test_the_next_address_is_tried_where_a_handshake_fails(monkeypatch, fault):
    """TLS and WebSockets gave up where ZeroMQ went on."""
    monkeypatch.setattr(dialing, "ADDRESS_S", 0.05)
    socks = []

    async def shake(sock):
        socks.append(sock)
        if sock.getpeername()[0] == "127.0.0.2":
            if fault == "silence":
                await asyncio.Event().wait()
            raise ConnectionResetError(errno.ECONNRESET, "hung up")
        return sock

    with socket.create_server((OPEN, 0)) as there:
        port = there.getsockname()[1]
        with socket.create_server(("127.0.0.2", port)):
            places = [Endpoint("tls", host, port) for host in ("127.0.0.2", OPEN)]
            with await open_first(places, shake) as sock:
                assert sock.getpeername()[0] == OPEN
    assert [each.fileno() for each in socks] == [-1, -1]
    assert len(socks) == 2


async def test_a_refusal_counts_and_the_last_failure_is_told():
    async def refuse(sock):
        asked.append(sock)
        raise LinkRefused("no", errno.EPERM)

    async def fail(sock):
        asked.append(sock)
        raise LinkBroken(str(len(asked)))

    with socket.create_server((OPEN, 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_server(("127.0.0.2", port)):
            places = [Endpoint("tls", host, port) for host in ("127.0.0.2", OPEN)]
            asked: list[socket.socket] = []
            with pytest.raises(LinkRefused, match="no"):
                await open_first(places, refuse)
            with pytest.raises(LinkBroken, match="3"):
                await open_first(places, fail)
    assert [each.fileno() for each in asked] == [-1, -1, -1]


async def test_a_name_without_address_and_a_port_without_listener_are_told_apart():
    with pytest.raises(LinkBroken, match=r"wss://no-such-host\.invalid:1: cannot resolve") as caught:
        await resolve(Endpoint("wss", "no-such-host.invalid", 1))
    assert caught.value.errno == errno.EHOSTUNREACH
    with pytest.raises(
        LinkBroken, match=r"cannot connect to mine://127\.0\.0\.1:1: Connection refused"
    ) as caught:
        async with attempt("mine://127.0.0.1:1", 5, "answer"):
            await open_first([Endpoint("mine", OPEN, 1)], keep)
    assert caught.value.errno == errno.ECONNREFUSED


async def test_a_name_that_no_name_server_can_be_asked_for_has_no_address():
    """It ended in an error of the codec for such names."""
    with pytest.raises(LinkBroken, match="cannot resolve") as caught:
        await resolve(parse(f"tcp://{'x' * 64}.example:1"))
    assert caught.value.errno == errno.EHOSTUNREACH


async def test_link_local_addresses_of_a_name_keep_their_interface(monkeypatch):
    """Without it they lead nowhere."""
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1", 0, 0, 1))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_wanted, **_more: found)
    assert await resolve(parse("tcp://node0:1")) == [Endpoint("tcp", "fe80::1%1", 1)]
    assert tcp_address("fe80::1%1", 5) == (socket.AF_INET6, ("fe80::1", 5, 0, 1))


async def test_an_address_that_is_none_is_a_matter_of_the_configuration():
    """TLS, of which a dialer may be told what nobody has checked, ended in a ValueError."""
    for uri in ("tls://127.0.0.1", "tls://127.0.0.1:port"):
        with pytest.raises(ConfigError, match="expected"):
            await tls.open_session(uri, Options(), None)


async def test_what_an_attempt_opened_is_closed_if_it_fails_and_kept_if_not():
    sock = socket.socket()
    with pytest.raises(LinkBroken, match="no answer within") as caught:
        async with attempt("mine://x", 0.01, "answer") as opened:
            opened.enter_context(sock)
            await asyncio.Event().wait()
    assert caught.value.errno == errno.ETIMEDOUT
    assert sock.fileno() < 0
    with pytest.raises(LinkBroken, match="cannot connect to mine://x: Connection timed out"):
        async with attempt("mine://x", 0, "answer"):
            raise OSError(
                errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)
            )  # what the system says has no limit of ours
    with closing(socket.socket()) as sock:
        async with attempt("mine://x", 0, "answer") as opened:
            opened.enter_context(sock)
        assert sock.fileno() >= 0


# -- names ------------------------------------------------------------------------------------------


async def test_names_are_resolved_and_numbers_left_alone():
    assert await resolve(parse("tcp://*:1")) == [Endpoint("tcp", "*", 1)]
    assert await resolve(parse("tcp://[::1]:1")) == [Endpoint("tcp", "::1", 1)]
    assert all(endpoint.is_local for endpoint in await resolve(parse("tcp://localhost:1")))
    with pytest.raises(LinkBroken, match="cannot resolve"):
        await resolve(parse("tcp://no-such-host.invalid:1"))


def test_a_name_that_appears_while_a_name_server_keeps_silent_is_found(monkeypatch, caplog):
    end, asked = threading.Event(), []

    def late(*_wanted, **_more):
        asked.append(1)
        if len(asked) == 1:
            end.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("192.0.2.1", 1))]

    monkeypatch.setattr(socket, "getaddrinfo", late)
    monkeypatch.setattr(dialing, "LOOK_AGAIN_S", 0.01)
    try:
        assert asyncio.run(resolve(parse("tcp://broker-1:1"))) == [Endpoint("tcp", "192.0.2.1", 1)]
    finally:
        end.set()
    assert "no name server has answered yet where broker-1 is" in caplog.text


def test_who_leaves_waits_for_no_name_server(monkeypatch):
    """A worker whose broker is gone took as long to leave as the name server took not to answer."""
    asked, end = threading.Event(), threading.Event()
    answered = []

    def never(*_wanted, **_more):
        asked.set()
        answered.append(end.wait(60))
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    async def leave():
        looking = asyncio.get_running_loop().create_task(resolve(parse("tcp://broker:1")), name="look")
        await asyncio.to_thread(asked.wait)
        looking.cancel()

    monkeypatch.setattr(socket, "getaddrinfo", never)
    try:
        asyncio.run(leave())
        assert not answered
    finally:
        end.set()
