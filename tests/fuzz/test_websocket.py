"""A mutation fuzzer over WebSocket streams of clients: damaged anywhere, cut anywhere.

Fixed seeds as in ``test_framing``; a failure prints the number of its input. Whether wsproto agrees is asked in
``tests/property/test_websocket.py``; here it is whether every cut of the same bytes means the same, how much is held,
and whether one client's rubbish is another's trouble.
"""

import os
from random import Random

from broker.wire.message import event, request
from gateway.closes import MEANINGS
from gateway.websocket.reader import Reader
from tests.fuzz import mutate
from tests.unit.gateway.websocket.house import house, masked

INPUTS = int(os.environ.get("HEADGATE_FUZZ_INPUTS", "30000")) // 10
SEED = int(os.environ.get("HEADGATE_FUZZ_SEED", "0"))
MAX_BYTES = 2000


def frames(dice: Random) -> bytes:
    """One to four frames as a client may send them, some of them in fragments."""
    out = b""
    for _ in range(dice.randint(1, 4)):
        payload = dice.choice(
            (
                b"",
                "grüße €".encode(),
                b'{"type":"ping"}',
                bytes(dice.randrange(300)),
                request("a.b", b"x\0").framed(),
            )
        )
        kind = dice.choice((1, 2, 2, 2, 8, 9, 10))
        if kind > 2:
            out += masked(kind, b"\x03\xe8" if kind == 8 else payload[:125], mask=dice.randbytes(4))
        elif dice.random() < 0.3:
            at = dice.randrange(len(payload) + 1)
            out += masked(kind, payload[:at], first=kind, mask=dice.randbytes(4))
            out += masked(0, payload[at:], mask=dice.randbytes(4))
        else:
            out += masked(kind, payload, mask=dice.randbytes(4))
    return out


def test_every_cut_means_the_same():
    for number in range(INPUTS):
        dice = Random(SEED * 1_000_003 + number)
        data = mutate.body(frames(dice), dice)
        whole, cut = Reader(MAX_BYTES), Reader(MAX_BYTES)
        expected = whole.feed(data)
        found = []
        for piece in mutate.pieces(data, dice):
            found += cut.feed(piece)
            assert cut.pending_bytes <= MAX_BYTES + 14 + len(piece), number
        assert found == expected, number
        assert cut.failure == whole.failure, number
        assert cut.pending_bytes == whole.pending_bytes, number


async def test_rubbish_of_one_client_is_no_trouble_of_another(aiohttp_server):
    async with house(aiohttp_server) as one:
        good = await one.connect()
        for number in range(60):
            dice = Random(SEED + number)
            peer = await one.connect(token=dice.choice(("good", None)))
            peer.write(mutate.body(b"".join(frames(dice) for _ in range(5)), dice) + masked(8, b"\x03\xe8"))
            peer.writer.write_eof()
            _, code, _ = await peer.closing()
            assert code in MEANINGS or code in (1005, 1006, *range(3000, 5000)), number
            assert await peer.ended(), number
            good.write(masked(2, request("echo", b"still here\0", matchtag=number + 1).framed()))
            assert b"still here" in (await good.frame())[1], number
        await one.until(lambda: len(one.sessions.by_id) == 1)
        one.sessions.opened[0].link.send(event("fine"))
        assert b"fine" in (await good.frame())[1]
