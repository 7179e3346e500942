"""RFC 6455 as a codec, without sockets: against the other side of the library, cut anywhere, damaged anywhere."""

import json
from random import Random

import pytest
from websockets.frames import Opcode

from broker.errors import LinkEnded, ProtocolError
from broker.transport.websocket.codec import OWED_MAX
from broker.wire.framing import Splitter
from broker.wire.message import event, request
from tests.fuzz import mutate
from tests.unit.transport.upgraded import Upgraded

PIECE = 256 << 10


def speech(gateway, dice):
    """Some frames of a gateway."""
    server = gateway.server
    for number in range(dice.randint(1, 6)):
        framed = event(f"n.{number}", bytes(dice.randrange(300))).framed()
        kind = dice.choice(("message", "object", "fragments", "ping"))
        if kind == "message":
            server.send_binary(framed * dice.randint(1, 3))
        elif kind == "object":
            server.send_text(json.dumps({"type": "gap", "lost": number}).encode())
        elif kind == "fragments":
            at = dice.randrange(len(framed))
            server.send_binary(framed[:at], fin=False)
            server.send_ping(b"between")
            server.send_continuation(framed[at:], fin=True)
        else:
            server.send_ping(b"?")
    if dice.random() < 0.3:
        server.send_close(4000, "leaving")
    return gateway.said()


@pytest.mark.parametrize("damaged", [False, True])
async def test_every_cut_means_the_same(damaged):
    for number in range(150):
        dice = Random(number)
        whole, cut = Upgraded(), Upgraded()
        data = speech(whole, dice)
        if damaged:
            data = mutate.body(data, dice)
        expected, found = list(whole.take(data)), []
        for piece in mutate.pieces(data, dice):
            if cut.codec.failure is None:
                found += cut.take(piece)
        assert found == expected, number
        assert (type(cut.codec.failure), str(cut.codec.failure)) == (
            type(whole.codec.failure),
            str(whole.codec.failure),
        ), number
        assert damaged or isinstance(whole.codec.failure, LinkEnded | None), number


async def test_a_large_message_leaves_in_fragments_and_objects_wait_for_its_end():
    gateway, small, large = Upgraded(), event("small"), request("large", bytes(700_000))
    form = memoryview(large.framed())
    seen = gateway.frames(gateway.codec.encode([small.framed(), small.framed()]))
    assert seen == [(Opcode.BINARY, True, small.framed() * 2)]
    seen = gateway.frames(gateway.codec.encode([form[:PIECE]]))
    gateway.talk.send(b'{"type":"refresh"}')
    assert not gateway.codec.owed, "nothing may come between but a control frame"
    seen += gateway.frames(gateway.codec.encode([form[PIECE : 2 * PIECE]]))
    seen += gateway.frames(gateway.codec.encode([form[2 * PIECE :], small.framed()]))
    assert gateway.codec.owed
    seen += gateway.frames(gateway.codec.encode(()))
    assert [(opcode, fin) for opcode, fin, _ in seen] == [
        (Opcode.BINARY, False),
        (Opcode.CONT, False),
        (Opcode.CONT, True),
        (Opcode.BINARY, True),
        (Opcode.TEXT, True),
    ]
    assert Splitter().feed(b"".join(data for opcode, _, data in seen[:-1])) == [large, small]


async def test_who_pings_and_reads_no_answer_is_cut_off():
    gateway = Upgraded()
    for _ in range(OWED_MAX + 1):
        gateway.server.send_ping(b"")
    gateway.take(gateway.said())
    assert isinstance(gateway.codec.failure, ProtocolError)


async def test_the_last_words_are_one_close_frame():
    gateway = Upgraded()
    data = gateway.codec.goodbye("ä" * 100)
    assert gateway.codec.goodbye("again") == b""
    assert [opcode for opcode, *_ in gateway.frames(data)] == [Opcode.CLOSE]
    assert gateway.server.close_rcvd.reason == "ä" * 61
    assert gateway.codec.encode([event("late").framed()]) == b""


async def test_what_came_by_half_is_let_go_of():
    gateway = Upgraded()
    gateway.server.send_binary(bytes(5000), fin=False)
    half = gateway.said()
    gateway.server.send_continuation(bytes(9000), fin=True)
    gateway.take(half + gateway.said()[:4000])
    assert (gateway.codec._fragments, len(gateway.codec._protocol.reader.buffer)) != ([], 0)
    gateway.codec.forget()
    assert (gateway.codec._fragments, len(gateway.codec._protocol.reader.buffer)) == ([], 0)
