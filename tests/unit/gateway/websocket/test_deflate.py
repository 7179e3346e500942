"""permessage-deflate: agreed on where it is on, bounded, read by an independent library."""

import asyncio
import json
import zlib

import aiohttp
import pytest
from websockets.asyncio.client import connect as ws_connect

import broker.client
from broker.transport.link import Options
from broker.wire.framing import Splitter
from broker.wire.message import request
from gateway.closes import BUSY, INVALID_TEXT, PROTOCOL, TOO_BIG
from gateway.identity.hook import Verdict
from gateway.websocket import deflate
from gateway.websocket.frames import BINARY, PING, TEXT, frame, head
from gateway.websocket.link import TURN_BYTES, Turn
from gateway.websocket.reader import MESSAGE_BYTES, Reader
from tests.live.gateways import live, run
from tests.tables import for_each
from tests.unit.gateway.websocket.house import flux

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


@for_each(
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


@for_each("opcode", [TEXT, BINARY])
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


@for_each("fragmented", [False, True])
def test_a_bomb_is_refused_before_it_is_made(fragmented):
    bomb = deflate.deflate(bytes(1 << 26))
    frames = [masked(0xC2, bomb)]
    if fragmented:
        frames = [masked(0x42, bomb[:9]), masked(0x80, bomb[9:])]
    found, failure = read(*frames, limit=1 << 17)
    assert (found, failure.code) == ([], TOO_BIG)


@for_each(
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


def numbered(count, size):
    """Compressed messages that differ, a ping between them, and a close frame behind all."""
    texts = [str(number).encode().rjust(size) for number in range(count)]
    frames = [masked(0xC2, deflate.deflate(each)) for each in texts]
    frames.insert(count // 2, masked(0x89, b"?"))
    return texts, b"".join([*frames, masked(0x88, b"")])


@for_each("split", [1, 7, 1000, 1 << 20])
def test_so_much_is_inflated_at_a_time(split):
    texts, data = numbered(20, 1000)
    reader, found = Reader(1 << 20, inflates=True), []
    for at in range(0, len(data), split):
        found += reader.feed(data[at : at + split], 0)
        assert found == []
    while reader.rest:
        part = reader.feed(b"", 2500)
        assert sum(len(payload) for _, payload in part) <= 3000 + len(b"?")
        found += part
    assert [payload for kind, payload in found if kind == BINARY] == texts
    assert [kind for kind, _ in found].index(PING) == 10
    assert reader.closed
    assert reader.pending_bytes == 0


def test_short_messages_take_their_part_and_who_is_deaf_inflates_nothing():
    _texts, data = numbered(50, 2)
    reader = Reader(1 << 20, inflates=True)
    assert len(reader.feed(data, 10 * MESSAGE_BYTES)) == 10
    reader.deaf = True
    rest = reader.feed(b"", 0)
    assert [payload for kind, payload in rest if kind == BINARY] == [b""] * 40
    assert reader.closed


async def heard_by_turns(house, pairs, count):
    """Bytes of messages in each turn of the loop in which any came, until there are ``count``."""
    turns, loop, going = [0], asyncio.get_running_loop(), True

    def turn():
        if going:
            turns.append(0)
            loop.call_soon(turn)

    def received(_link, messages):
        turns[-1] += sum(len(message.payload) for message in messages)
        got.extend(int(message.payload[:-1]) for message in messages)

    got = []
    for _peer, session in pairs:
        session.received = received
    turn()
    try:
        await house.until(lambda: len(got) == count)
    finally:
        going = False
    return [each for each in turns if each], got


@pytest.mark.parametrize("clients", [1, 8])
async def test_a_turn_of_the_loop_takes_a_part_of_a_batch(open_house, clients):
    """The bound is of the loop, whoever sends; each client's messages stay in order, a ping behind them is answered."""
    count, size = 120 // clients, 40_000
    house = await open_house(deflates=True)
    frames = [
        masked(0xC2, deflate.deflate(flux(payload=str(number).encode().rjust(size) + b"\0")))
        for number in range(count)
    ]
    peers = [await house.connect(offer=deflate.NAME) for _ in range(clients)]
    pairs = list(zip(peers, house.sessions.opened, strict=True))
    for peer in peers:
        peer.write(b"".join(frames) + masked(0x89, b"?"))
    turns, got = await heard_by_turns(house, pairs, clients * count)
    assert sum(turns) == clients * count * (size + 1)
    assert max(turns) <= TURN_BYTES + size + 1
    assert sorted(got) == sorted([*range(count)] * clients)
    if clients == 1:
        assert got == [*range(count)]
    for peer, session in pairs:
        assert await peer.frame() == (0x8A, b"?")
        assert not session.link.reader.rest


async def test_a_batch_waits_while_its_link_is_held_and_its_end_costs_nothing(open_house):
    house = await open_house(deflates=True)
    frames = [masked(0xC2, deflate.deflate(flux(payload=b" " * 40_000 + b"1\0"))) for _ in range(20)]
    peer = await house.connect(offer=deflate.NAME)
    session = house.sessions.opened[0]
    got = []

    def received(link, messages):
        got.extend(messages)
        link.pause()

    session.received = received
    peer.write(b"".join(frames) + masked(0x88, b"\x03\xe8"))
    for number in range(1, 4):
        await house.until(lambda number=number: len(got) == number)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(got) == number
        session.link.resume()
    session.link.close_with(BUSY)
    assert (await peer.closing())[1] == BUSY
    assert await peer.ended()
    assert len(got) == 3, "what waits goes nowhere"
    assert not session.link.reader.rest


class SlowHook:
    """An authorisation hook that answers when it is told to."""

    def __init__(self):
        self.asked, self.open = asyncio.Event(), asyncio.Event()

    def known(self, _mine, _kind, _topic):
        return Verdict(True) if self.open.is_set() else None

    async def ask(self, _mine, _kind, _topic):
        self.asked.set()
        await self.open.wait()
        return Verdict(True)


def test_what_waits_for_the_authorisation_hook_is_what_a_turn_took():
    size, count = 20_000, 100

    async def work(folder):
        async with live(folder, ON) as gateway, aiohttp.ClientSession() as http:
            hook = gateway.gateway.sessions.hook = SlowHook()
            async with http.ws_connect(
                gateway.ws, protocols=("flux.v1",), headers=gateway.bearer("bob"), compress=15
            ) as ws:
                await ws.receive_json()
                asked = json.dumps({"name": "size", "pad": "x" * size}).encode() + b"\0"
                for number in range(1, count + 1):
                    await ws.send_bytes(request("attr.get", asked, matchtag=number).framed())
                await hook.asked.wait()
                (session,) = gateway.gateway.sessions.by_id.values()
                for _ in range(20):
                    await asyncio.sleep(0)
                assert 1 <= len(session.link.receiver._waiting) <= TURN_BYTES // size + 1
                hook.open.set()
                answered = []
                while len(answered) < count:
                    answered += Splitter().feed((await ws.receive()).data)
                assert [each.matchtag for each in answered] == [*range(1, count + 1)]

    run(work)


def test_without_the_agreement_the_bit_is_a_fault():
    assert read(masked(0xC1, deflate.deflate(b"x")), inflates=False)[1].code == PROTOCOL


def test_no_window_is_kept():
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    first = packer.compress(b"again and again " * 9) + packer.flush(zlib.Z_SYNC_FLUSH)
    second = packer.compress(b"again and again " * 9) + packer.flush(zlib.Z_SYNC_FLUSH)
    assert deflate.inflate(first[:-4], 1000) == b"again and again " * 9
    with pytest.raises(ValueError, match="cannot be read"):
        deflate.inflate(second[:-4], 1000)


@for_each(("extra", "on"), [(ON, True), ("", False)])
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


async def test_who_waits_goes_on_though_nobody_else_reads():
    """A turn may be used up by one who has nothing more to come: the next one comes all the same."""
    turn, went_on = Turn(), []

    class Waiting:
        def __init__(self, number):
            self.number = number

        def continue_reading(self):
            went_on.append(self.number)
            turn.taken += TURN_BYTES

    for number in range(3):
        turn.later(Waiting(number))
    for count in range(1, 4):
        await asyncio.sleep(0)
        assert went_on == [*range(count)]
