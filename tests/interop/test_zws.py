"""``ZWS2.0`` over a raw socket, byte by byte as RFC 45 has it, against a live gateway and broker."""

import asyncio
import contextlib
import errno
from pathlib import Path

import pytest

from broker.wire import message as wire
from broker.wire.decoding import from_parts
from broker.wire.message import event, request
from broker.wire.payload import any_text, decode_json, encode_json
from tests.live.gateways import Live, live, run

pytestmark = pytest.mark.interop

LAST, MORE, COMMAND = b"\0", b"\1", b"\2"


async def until(condition) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


def subscribed(gateway: Live, prefix: bytes) -> bool:
    return any(prefix in session.subscriptions for session in gateway.gateway.sessions.by_id.values())


class Peer:
    """A ZeroMQ peer with nothing but a socket; its mask is four zero bytes, which masks nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        self.reader, self.writer, self.head = reader, writer, head

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, gateway: Live, offer: str = "ZWS2.0", user: str | None = "ada"):
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        token = f"Authorization: Bearer {gateway.tokens[user]}\r\n" if user else ""
        writer.write(
            f"GET /v1/ws HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\n{token}"
            f"Sec-WebSocket-Protocol: {offer}\r\n\r\n".encode()
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        try:
            yield cls(reader, writer, head)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def write(self, data: bytes) -> None:
        size = len(data)
        length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
        self.writer.write(b"\x82" + length + bytes(4) + data)

    def send(self, parts: list[bytes]) -> None:
        for part in parts[:-1]:
            self.write(MORE + part)
        self.write(LAST + parts[-1])

    async def frame(self) -> tuple[int, bytes]:
        first, size = await self.reader.readexactly(2)
        if size == 126:
            size = int.from_bytes(await self.reader.readexactly(2), "big")
        return first, await self.reader.readexactly(size)

    async def parts(self) -> list[bytes]:
        found = []
        while True:
            first, data = await self.frame()
            assert first == 0x82
            found.append(data[1:])
            if data[:1] == LAST:
                return found

    async def ask(self, message: wire.Message) -> wire.Message:
        self.send(message.parts())
        return from_parts(await self.parts())


def test_a_dealer_calls_a_broker():
    async def body(folder: Path) -> None:
        async with live(folder) as gateway, Peer.connected(gateway) as peer:
            assert "Sec-WebSocket-Protocol: ZWS2.0\r\n" in peer.head
            assert await peer.frame() == (0x82, LAST)
            peer.write(LAST + b"a-routing-id")
            answer = await peer.ask(request("attr.get", encode_json({"name": "size"}), nodeid=0, matchtag=7))
            assert (answer.matchtag, answer.routes) == (7, [])
            assert decode_json(answer.payload)["value"] == "1"
            refused = await peer.ask(request("no.such", None, matchtag=8))
            assert refused.errnum == errno.ENOSYS

    run(body)


def test_events_reach_a_dealer_that_subscribed():
    async def body(folder: Path) -> None:
        async with live(folder) as gateway, Peer.connected(gateway) as peer:
            await peer.frame()
            peer.write(LAST)
            answer = await peer.ask(request("event.subscribe", encode_json({"topic": "job."}), matchtag=1))
            assert answer.errnum == 0
            peer.send(event("job.new", b"{}\0").parts())
            heard = from_parts(await peer.parts())
            assert (heard.type, heard.topic, heard.payload) == (wire.EVENT, "job.new", b"{}\0")
            assert (heard.userid, heard.rolemask & 1) == (1001, 1)

    run(body)


def test_a_sub_socket_gets_events_whose_first_part_is_the_topic():
    async def body(folder: Path) -> None:
        async with live(folder) as gateway, Peer.connected(gateway) as sub, Peer.connected(gateway) as dealer:
            for peer in (sub, dealer):
                await peer.frame()
                peer.write(LAST)
            sub.write(LAST + b"\1job.")
            await until(lambda: subscribed(gateway, b"job."))
            for topic in ("other", "job.new"):
                dealer.send(event(topic, b"{}\0").parts())
            topic, payload, proto = await sub.parts()
            assert (topic, payload) == (b"job.new", b"{}\0")
            assert from_parts([topic, payload, proto]).sequence > 0

    run(body)


def test_null_mechanism_and_heartbeat():
    async def body(folder: Path) -> None:
        async with live(folder) as gateway, Peer.connected(gateway, "ZWS2.0/NULL,ZWS2.0") as peer:
            assert "Sec-WebSocket-Protocol: ZWS2.0/NULL\r\n" in peer.head
            assert (await peer.frame())[1].startswith(COMMAND + b"\x05READY")
            peer.write(COMMAND + b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER")
            peer.write(COMMAND + b"\x04PING\0\x64ctx")
            assert await peer.frame() == (0x82, COMMAND + b"\x04PONGctx")
            answer = await peer.ask(request("attr.get", encode_json({"name": "rank"}), matchtag=7))
            assert decode_json(answer.payload)["value"] == "0"

    run(body)


def test_without_a_credential_in_the_handshake_there_is_no_way_in():
    async def body(folder: Path) -> None:
        async with live(folder) as gateway, Peer.connected(gateway, user=None) as peer:
            assert peer.head.startswith("HTTP/1.1 401 ")

    run(body)


def test_forged_routes_and_stamps_are_replaced():
    async def body(folder: Path) -> None:
        async with live(folder) as gateway, Peer.connected(gateway, user="bob") as peer:
            await peer.frame()
            peer.write(LAST)
            forged = request("broker.info", None, matchtag=3, userid=0, rolemask=1)
            forged.push_route(b"somebody-else")
            answer = await peer.ask(forged)
            assert answer.routes == []
            refused = await peer.ask(request("secret.call", None, matchtag=4, userid=0, rolemask=1))
            assert refused.errnum == errno.EPERM
            assert "role" in any_text(refused.payload)

    run(body)


@pytest.mark.parametrize("data", [b"", b"\5x", LAST + b"no message", COMMAND + b"\x04PING\0\0"])
def test_what_breaks_the_protocol_closes_with_4503(data):
    async def body(folder: Path) -> None:
        async with live(folder) as gateway, Peer.connected(gateway) as peer:
            await peer.frame()
            peer.write(LAST)
            peer.write(data)
            first, payload = await peer.frame()
            assert (first, int.from_bytes(payload[:2], "big")) == (0x88, 4503)

    run(body)
