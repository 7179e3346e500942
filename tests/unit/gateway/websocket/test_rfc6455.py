"""RFC 6455 on a raw socket: what a client may do wrong, the close code it gets, and that the connection then ends."""

import asyncio
import struct

import msgspec
import pytest

from broker.wire.message import request
from gateway.closes import MEANINGS
from tests.tables import for_each
from tests.unit.gateway.websocket.house import masked
from tests.unit.gateway.websocket.test_reader import BAD

BINARY, TEXT, CLOSE, PING, PONG = 2, 1, 8, 9, 10


def flux(topic="echo", matchtag=7, payload=b"hi\0") -> bytes:
    return request(topic, payload, matchtag=matchtag).framed()


@for_each("name", BAD)
async def test_a_broken_rule_ends_the_connection_with_its_code(house, name):
    data, code = BAD[name]
    peer = await house.connect()
    peer.write(masked(BINARY, flux()) + data + masked(BINARY, flux("later")))
    before, seen, reason = await peer.closing()
    assert await peer.ended()
    session = house.sessions.opened[-1]
    await house.until(lambda: session.ends)
    assert [message.topic for message in session.messages] == ["echo"]
    assert seen == code
    assert reason
    assert [first for first, _ in before] == [0x82, 0x81], "the answer to what came in front, then why"
    told = msgspec.json.decode(before[1][1])
    assert told == {
        "type": "error",
        "code": code,
        "name": MEANINGS[code].name,
        "text": told["text"],
        "reconnect": False,
    }
    assert told["text"].startswith(reason)


@for_each("size", [0, 1, 60, 61, 90, 125, 126, 300, 65400, 65536, 1 << 19])
async def test_messages_of_every_length_come_back(house, size):
    peer = await house.connect()
    data = flux(payload=b"x" * size + b"\0")
    peer.write(masked(BINARY, data))
    first, payload = await peer.frame()
    assert first == 0x82
    assert payload[-21 - size - 1 : -21] == b"x" * size + b"\0"
    assert len(payload) == len(data)


@pytest.mark.parametrize("step", [1, 7])
async def test_bytes_in_small_pieces(house, step):
    peer = await house.connect()
    data = masked(0, flux()[:9], first=0x02) + masked(PING, b"?") + masked(0, flux()[9:])
    for at in range(0, len(data), step):
        peer.write(data[at : at + step])
        await asyncio.sleep(0)
    assert await peer.frame() == (0x80 | PONG, b"?")
    assert (await peer.frame())[0] == 0x82


async def test_pings_are_answered_in_order_with_their_payload(house):
    peer = await house.connect()
    wanted = [b"", b"a", bytes(125)]
    peer.write(b"".join(masked(PING, each) for each in wanted) + masked(PONG, b"unasked"))
    assert [await peer.frame() for _ in wanted] == [(0x80 | PONG, each) for each in wanted]


@for_each("payload", [b"", b"\x03\xe8", b"\x03\xe9going away", b"\x0b\xb8", b"\x13\x87", b"\x03\xf4"])
async def test_a_close_frame_is_answered_with_its_code(house, payload):
    peer = await house.connect()
    peer.write(masked(BINARY, flux()) + masked(CLOSE, payload) + masked(BINARY, flux("later")))
    before, code, reason = await peer.closing()
    assert len(before) == 1, "what came before the close frame is answered"
    assert (code, reason) == (struct.unpack(">H", payload[:2])[0] if payload else 1005, "")
    assert await peer.ended()
    session = house.sessions.opened[-1]
    assert [message.topic for message in session.messages] == ["echo"]
    await house.until(lambda: session.ends)
    assert "LinkEnded" in repr(session.ends)


async def test_an_end_without_a_close_frame(house):
    peer = await house.connect()
    peer.writer.write_eof()
    assert await peer.ended()
    (session,) = house.sessions.opened
    await house.until(lambda: session.ends)
    assert "LinkEnded" in repr(session.ends)
    assert not house.sessions.by_id


@for_each(
    ("subprotocol", "first", "payload"),
    [
        ("flux.v1", TEXT, b"no json"),
        ("flux.v1", TEXT, b'{"type":"unknown"}'),
        ("flux.v1", BINARY, b""),
        ("flux.v1", BINARY, b"\xff" * 40),
        ("flux.v1", BINARY, flux()[:-1]),
        ("flux.v1.json", BINARY, b"{}"),
        ("flux.v1.json", TEXT, b"{"),
        ("ZWS2.0", TEXT, b""),
    ],
)
async def test_bytes_that_are_no_message_of_the_subprotocol(house, subprotocol, first, payload):
    peer = await house.connect(subprotocol)
    peer.write(masked(first, payload))
    before, code, reason = await peer.closing()
    assert code == 4503
    assert reason
    said = [msgspec.json.decode(data) for kind, data in before if kind == 0x81]
    assert [each["code"] for each in said] == ([] if subprotocol == "ZWS2.0" else [4503])
    peer.write(masked(CLOSE, b"\x03\xe8"))
    assert await peer.ended()


async def test_messages_in_front_of_a_bad_one_are_delivered(house):
    peer = await house.connect()
    good = (
        masked(BINARY, flux("a") + flux("b")) + masked(TEXT, b'{"type":"ping"}') + masked(BINARY, flux("c"))
    )
    peer.write(good + masked(BINARY, b"bad") + masked(BINARY, flux("d")))
    _, code, _ = await peer.closing()
    assert code == 4503
    assert house.sessions.opened[0].order == ["a", "b", "ping", "c"]


async def test_a_fault_of_the_gateway_ends_one_connection(house):
    peer, other = await house.connect(), await house.connect()
    peer.write(masked(BINARY, flux("fail")))
    _, code, _ = await peer.closing()
    assert code == 4001
    other.write(masked(BINARY, flux()))
    assert (await other.frame())[0] == 0x82
