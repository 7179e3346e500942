"""permessage-deflate: agreed on where it is on, bounded, read by an independent library."""

import asyncio
import json
import zlib

import aiohttp
import pytest
from websockets.asyncio.client import connect as ws_connect

import broker.client
from broker.transport.link import Options
from gateway.closes import INVALID_TEXT, PROTOCOL, TOO_BIG
from gateway.websocket import deflate
from gateway.websocket.frames import BINARY, PING, TEXT, frame, head
from gateway.websocket.reader import Reader
from tests.live.gateways import live, run

ON = "[gateway]\ndeflate = true\n"
TEXTS = [{"n": number, "state": "running", "host": f"node-{number % 7}"} for number in range(40)]


def masked(first, payload):
    """A client's frame with the mask 0."""
    form = bytearray(head(first & 0x0F, len(payload)))
    form[0], form[1] = first, form[1] | 0x80
    return bytes(form) + bytes(4) + payload


def read(*frames, limit=1000, inflates=True):
    reader = Reader(limit, inflates=inflates)
    return reader.feed(b"".join(frames)), reader.failure


@pytest.mark.parametrize(
    ("offer", "taken"),
    [
        ("permessage-deflate", True),
        ("permessage-deflate; client_max_window_bits", True),
        ("permessage-deflate; client_max_window_bits=10; server_no_context_takeover", True),
        ('permessage-deflate; server_max_window_bits="15"', True),
        ("permessage-deflate; server_max_window_bits=10", False),
        ("permessage-deflate; server_max_window_bits=10, permessage-deflate", True),
        ("permessage-deflate; server_max_window_bits", False),
        ("permessage-deflate; something_else", False),
        ("permessage-deflate; client_max_window_bits; client_max_window_bits", False),
        ("x-webkit-deflate-frame", False),
        ("", False),
    ],
)
def test_offers(offer, taken):
    assert deflate.agreed([offer]) is taken


def test_what_is_packed_is_the_same_and_small_messages_stay():
    small, large = frame(TEXT, b"x" * 100), frame(BINARY, b"abc" * 30_000)
    noise = frame(BINARY, bytes(range(256)))
    form = deflate.packed(small + large + frame(PING, b"?") + noise)
    assert form.startswith(small)
    assert form.endswith(frame(PING, b"?") + noise)
    assert len(form) < len(small) + len(noise) + 1000
    size = int.from_bytes(form[len(small) + 2 : len(small) + 4], "big")
    body = form[len(small) + 4 :][:size]
    assert deflate.inflate(body, 1 << 20) == b"abc" * 30_000


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
def test_whole_and_fragmented_messages_are_inflated(opcode):
    text = "ä and so on ".encode() * 20
    small = deflate.deflate(text)
    whole = masked(0xC0 | opcode, small)
    parts = (
        masked(0x40 | opcode, small[:5])
        + masked(0x89, b"")
        + masked(0x00, small[5:-1])
        + masked(0x80, small[-1:])
    )
    plain = masked(0x80 | opcode, text)
    found, failure = read(whole, parts, plain)
    assert failure is None
    assert [payload for kind, payload in found if kind == opcode] == [text] * 3


@pytest.mark.parametrize("fragmented", [False, True])
def test_a_bomb_is_refused_before_it_is_made(fragmented):
    bomb = deflate.deflate(bytes(1 << 26))
    frames = [masked(0xC2, bomb)]
    if fragmented:
        frames = [masked(0x42, bomb[:9]), masked(0x80, bomb[9:])]
    found, failure = read(*frames, limit=1 << 17)
    assert (found, failure.code) == ([], TOO_BIG)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([masked(0xC1, b"\xff\xff\xff\xff")], PROTOCOL),
        ([masked(0xC9, b"")], PROTOCOL),
        ([masked(0x41, b""), masked(0xC0, b"")], PROTOCOL),
        ([masked(0xA1, b"x")], PROTOCOL),
        ([masked(0xC1, deflate.deflate(b"\xff\xfe"))], INVALID_TEXT),
        ([masked(0x41, deflate.deflate(b"\xff")), masked(0x80, b"")], INVALID_TEXT),
    ],
)
def test_what_is_wrong(frames, code):
    assert read(*frames)[1].code == code


def test_without_the_agreement_the_bit_is_a_fault():
    assert read(masked(0xC1, deflate.deflate(b"x")), inflates=False)[1].code == PROTOCOL


def test_no_window_is_kept():
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    first = packer.compress(b"again and again " * 9) + packer.flush(zlib.Z_SYNC_FLUSH)
    second = packer.compress(b"again and again " * 9) + packer.flush(zlib.Z_SYNC_FLUSH)
    assert deflate.inflate(first[:-4], 1000) == b"again and again " * 9
    with pytest.raises(ValueError, match="cannot be read"):
        deflate.inflate(second[:-4], 1000)


@pytest.mark.parametrize(("extra", "on"), [(ON, True), ("", False)])
def test_an_independent_client_and_ours_side_by_side(extra, on):
    async def work(folder):
        async with live(folder, extra) as gateway:
            options = Options(extra={"token": gateway.tokens["ada"], "deflate": True})
            headers = gateway.bearer("bob")
            async with (
                broker.client.connect(gateway.ws, options=options) as ours,
                ours.subscribe("job.") as events,
                ws_connect(
                    gateway.ws, subprotocols=["flux.v1.json"], additional_headers=headers, proxy=None
                ) as ws,
            ):
                await ws.recv()
                assert bool(ws.protocol.extensions) is on
                ask = {
                    "type": "request",
                    "topic": "event.subscribe",
                    "matchtag": 1,
                    "payload": {"topic": "job."},
                }
                await ws.send(json.dumps(ask | {"flags": [], "userid": 0, "rolemask": 0}))
                await ws.recv()
                await ours.publish("job.rows", {"rows": TEXTS})
                assert (await anext(events)).json() == {"rows": TEXTS}
                heard = json.loads(await ws.recv())
                assert (heard if isinstance(heard, dict) else heard[0])["payload"] == {"rows": TEXTS}
                answer = await ours.rpc("attr.get", {"name": "size", "pad": "x" * 1000})
                assert answer.json()["value"] == "1"

    run(work)


def test_a_bomb_from_a_live_client_ends_its_connection_alone():
    async def work(folder):
        async with (
            live(folder, f"{ON}[limits]\nmessage_bytes = 65536\n") as gateway,
            aiohttp.ClientSession() as http,
        ):
            options = Options(extra={"token": gateway.tokens["ada"]})
            async with (
                broker.client.connect(gateway.ws, options=options) as other,
                http.ws_connect(
                    gateway.ws, protocols=("flux.v1.json",), headers=gateway.bearer("bob"), compress=15
                ) as ws,
            ):
                await ws.receive_json()
                assert ws.compress
                await ws.send_str(" " * (1 << 22))
                async with asyncio.timeout(20):
                    while not ws.closed:
                        await ws.receive()
                assert ws.close_code == TOO_BIG
                assert await other.size() == 1

    run(work)
