"""The link below TLS, and opposite a client that others wrote."""

import asyncio
import ssl

import msgspec
import pytest
import websockets
from websockets.asyncio.client import connect

from broker.errors import LinkEnded
from broker.transport.tls.layer import HeldContext
from broker.wire.framing import Splitter
from broker.wire.message import event, request
from gateway.closes import SHUTDOWN
from gateway.events.run import Run
from tests.unit.gateway.identity.authority import Authority
from tests.unit.gateway.websocket.house import LARGE, is_gone, masked, request_head

BINARY, CLOSE, PING = 2, 8, 9


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    """TLS contexts of server and client."""
    place, authority = tmp_path_factory.mktemp("tls"), Authority()
    authority.server(place / "server.pem")
    authority.save(place / "ca.pem")
    server = HeldContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(place / "server.pem")
    return server, ssl.create_default_context(cafile=str(place / "ca.pem"))


def flux(size=3, tag=7) -> bytes:
    return request("echo", b"x" * size + b"\0", matchtag=tag).framed()


@pytest.mark.interpreter
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_over_tls(open_house, contexts, monkeypatch, version):
    """The session goes on in our hands: with what was read behind the handshake, and to both goodbyes."""
    monkeypatch.setattr(contexts[1], "maximum_version", version)
    house = await open_house(tls=contexts)
    peer = await house.connect(behind=masked(BINARY, flux()))
    assert (await peer.frame())[0] == 0x82
    for size in (10, 200, 70_000, 900_000):
        peer.write(masked(BINARY, flux(size)))
        first, payload = await peer.frame()
        assert (first, len(payload)) == (0x82, len(flux(size)))
    peer.write(masked(PING, b"beat") + masked(CLOSE, b"\x03\xe8"))
    assert await peer.frame() == (0x8A, b"beat")
    assert await peer.frame() == (0x88, b"\x03\xe8")
    assert await peer.ended()


@pytest.mark.parametrize("secure", [False, True])
async def test_an_answer_that_was_not_read_is_not_lost_for_an_upgrade(open_house, contexts, secure):
    """Who asks for both at once gets the answer whole, and behind it a refusal, or the WebSocket where it was read."""
    house = await open_house(tls=contexts if secure else None)
    peer = await house.raw()
    peer.writer.transport.pause_reading()
    peer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" + request_head(Authorization="Bearer good"))
    await asyncio.sleep(0.05)
    peer.read_again()
    await peer.head()
    assert await peer.reader.readexactly(len(LARGE)) == LARGE
    assert (await peer.head()).startswith((b"HTTP/1.1 101 ", b"HTTP/1.1 400 "))


async def test_a_goodbye_of_tls_alone_ends_the_link(open_house, contexts):
    house = await open_house(tls=contexts)
    peer = await house.connect()
    peer.writer.transport.close()
    await house.until(lambda: house.sessions.opened[0].ends)
    assert isinstance(house.sessions.opened[0].ends[0], LinkEnded)
    assert is_gone(house.sessions.opened[0].link)


async def test_pressure_over_tls(open_house, contexts):
    house = await open_house(tls=contexts, outbox_bytes=50_000, slow_policy="drop")
    peer, link = await house.stalled()
    numbers = range(1, 200)
    for number in numbers:
        made = event("e", bytes(1000))
        made.set_aux1(number)
        link.send_run(Run([made]))
    dropped = link.outbox.dropped_events
    assert dropped > 100
    peer.read_again()
    seen, gap = [], None
    while gap is None:
        first, payload = await peer.frame()
        if first == 0x82:
            seen += [each.sequence for each in Splitter().feed(payload)]
        else:
            said = msgspec.json.decode(payload)
            gap = said if said["type"] == "gap" else None
    assert seen == list(numbers)[: len(numbers) - dropped]
    assert gap["lost"] == dropped
    link.close_with(SHUTDOWN)
    assert (await peer.closing())[1] == SHUTDOWN


async def test_a_broken_rule_over_tls(open_house, contexts):
    house = await open_house(tls=contexts)
    peer = await house.connect()
    peer.write(b"\x82\x01a")
    before, code, _ = await peer.closing()
    assert code == 1002
    assert b"masked" in before[0][1]


@pytest.mark.parametrize("secure", [False, True])
async def test_the_websockets_library(open_house, contexts, secure):
    house = await open_house(tls=contexts if secure else None, ping_s=0.1)
    host, port = house.server.host, house.server.port
    url = f"{'wss' if secure else 'ws'}://{'localhost' if secure else host}:{port}/v1/ws"
    headers = {"Authorization": "Bearer good"}
    async with connect(
        url,
        host=host,
        port=port,
        subprotocols=["other", "flux.v1"],
        additional_headers=headers,
        ssl=contexts[1] if secure else None,
    ) as client:
        assert client.subprotocol == "flux.v1"
        assert msgspec.json.decode(await client.recv())["type"] == "welcome"
        await client.send(flux(100))
        assert len(await client.recv()) == len(flux(100))
        await client.send([flux(300)[:50], flux(300)[50:100], flux(300)[100:]])
        assert len(await client.recv()) == len(flux(300))
        await (await client.ping())
        await asyncio.sleep(0.3)
        house.sessions.opened[0].link.close_with(SHUTDOWN, "restarting")
        assert msgspec.json.decode(await client.recv())["code"] == SHUTDOWN
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            await client.recv()
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (SHUTDOWN, "restarting")
        await client.wait_closed()
    await house.until(lambda: is_gone(house.sessions.opened[0].link))
