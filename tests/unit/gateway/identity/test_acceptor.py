"""Connections that begin with a PROXY header, through real sockets: aiohttp behind it, with TLS and without."""

import asyncio
import contextlib
import socket

import pytest

from gateway.identity import acceptor as room
from gateway.identity.acceptor import Acceptor
from gateway.identity.proxies import Networks
from gateway.settings.schema import ListenEntry
from tests.unit.gateway.identity import doorway
from tests.unit.gateway.identity.authority import Authority, common
from tests.unit.gateway.identity.doorway import Answer, ask, client_tls, settings_in
from tests.unit.gateway.identity.test_proxyheader import v2

V1 = b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 443\r\n"
HEADERS = {"v1": V1, "v2": v2(), "v2 with TLVs": v2(tlvs=b"\x04\x00\x02ab")}


def plain(tmp_path, **more):
    listen = ListenEntry(
        url="http://127.0.0.1:0", proxy_protocol=True, trusted_proxies=("127.0.0.0/8",), **more
    )
    return settings_in(tmp_path / "state", listen=listen)


def secure(tmp_path, **more):
    authority = Authority()
    authority.server(tmp_path / "server.pem")
    authority.save(tmp_path / "ca.pem")
    (tmp_path / "alice.pem").write_bytes(authority.leaf(common("alice"))[0])
    listen = ListenEntry(
        url="https://127.0.0.1:0",
        proxy_protocol=True,
        trusted_proxies=("127.0.0.0/8",),
        cert=str(tmp_path / "server.pem"),
        client_ca=str(tmp_path / "ca.pem"),
        client_cert="optional",
        **more,
    )
    return settings_in(tmp_path / "state", listen=listen)


@pytest.mark.parametrize("kind", HEADERS)
async def test_the_client_is_known(open_door, tmp_path, kind):
    door = await open_door(plain(tmp_path))
    answer = (await ask(door.port, first=HEADERS[kind])).json()
    assert answer["address"] == answer["remote"] == "192.0.2.7"
    assert answer["peer"] == "127.0.0.1"
    assert not answer["local"]


@pytest.mark.parametrize("kind", HEADERS)
async def test_the_client_is_known_behind_tls(open_door, tmp_path, kind):
    door = await open_door(secure(tmp_path))
    tls = client_tls(tmp_path / "ca.pem", tmp_path / "alice.pem")
    answer = (await ask(door.port, first=HEADERS[kind], tls=tls)).json()
    assert (answer["address"], answer["peer"], answer["scheme"]) == (
        "192.0.2.7",
        "127.0.0.1",
        "https",
    )
    assert (answer["name"], answer["kind"]) == ("alice", "tls")
    # a renewed certificate is served here, too
    door.tls.reload()
    assert (await ask(door.port, first=HEADERS[kind], tls=tls)).status == 200


async def test_a_header_without_a_source_means_the_peer(open_door, tmp_path):
    door = await open_door(plain(tmp_path))
    for header in (b"PROXY UNKNOWN\r\n", v2(command=0x20, block=b"")):
        answer = (await ask(door.port, first=header)).json()
        assert answer["address"] == answer["peer"] == "127.0.0.1"


async def test_all_in_one_write_and_byte_by_byte(open_door, tmp_path):
    door = await open_door(plain(tmp_path))
    request = f"GET /who HTTP/1.1\r\nHost: 127.0.0.1:{door.port}\r\nConnection: close\r\n\r\n".encode()
    for header in HEADERS.values():
        for step in (1, len(header + request)):
            reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            whole = header + request
            for at in range(0, len(whole), step):
                writer.write(whole[at : at + step])
                await asyncio.sleep(0)
            assert Answer(await reader.read()).json()["address"] == "192.0.2.7"
            writer.close()
            await writer.wait_closed()


async def silence(port, sent, *, shut=False):
    """Send something; returns all that comes back before the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    if shut:
        writer.write_eof()
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 1 99999\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100,
        V1[:-1] + b"x" * 200,
        v2(block=b"x"),
    ],
)
async def test_a_trusted_proxy_without_a_good_header_is_cut_off(open_door, tmp_path, sent):
    door = await open_door(plain(tmp_path))
    assert await silence(door.port, sent) == b""
    assert (await ask(door.port, first=V1)).status == 200


@pytest.mark.parametrize("sent", [b"", b"PROXY", v2()[:20]])
async def test_a_header_that_ends_early(open_door, tmp_path, sent):
    door = await open_door(plain(tmp_path))
    assert await silence(door.port, sent, shut=True) == b""


async def test_a_header_that_never_ends(open_door, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "HEADER_S", 0.05)
    door = await open_door(plain(tmp_path))
    assert await silence(door.port, b"PROXY TCP4 ") == b""


async def test_a_handshake_that_never_ends(open_door, tmp_path):
    door = await open_door(secure(tmp_path))
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    listening = Acceptor(sock, asyncio.Protocol, Networks(["127.0.0.0/8"]), tls=door.tls, handshake_s=0.05)
    assert await silence(port, V1 + b"\x16\x03\x01") == b""
    listening.close()
    await listening.wait_closed()


@pytest.mark.parametrize("header", [V1, b"PROXY UNKNOWN\r\n", v2()])
async def test_from_others_a_header_is_refused(open_door, tmp_path, header):
    """A peer outside the networks is served without one, and gets nowhere with one."""
    listen = ListenEntry(url="http://127.0.0.1:0", proxy_protocol=True, trusted_proxies=("10.0.0.0/8",))
    door = await open_door(settings_in(tmp_path / "state", listen=listen))
    assert (await ask(door.port)).json()["address"] == "127.0.0.1"
    answer = await silence(door.port, header + b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer == b"" or Answer(answer).status == 400


async def test_pending_connections_are_bounded(open_door, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "PENDING", 2)
    monkeypatch.setattr(room, "HEADER_S", 0.2)
    door = await open_door(plain(tmp_path))
    idle = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(4)]
    # they wait for room, and get it when the first two have had their time
    assert (await ask(door.port, first=V1)).status == 200
    for _reader, writer in idle:
        writer.close()


async def test_closing_drops_who_is_not_served_yet(tmp_path):
    async with doorway.open_door(plain(tmp_path)) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        await ask(door.port, first=V1)  # what came before it was accepted, too
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", door.port)
