import tracemalloc

import pytest

from broker.errors import DecodeError, MessageTooLarge
from broker.wire import message as m
from broker.wire.decoding import decode, decode_large
from broker.wire.framing import LARGE_BYTES, Splitter, frame
from broker.wire.message import MAGIC_DEPLOYED, MAGIC_TEXT
from tests.tables import for_each
from tests.vectors import local

PING = m.request("broker.ping", b'{"seq":1}\0', matchtag=1)
PONG = m.response(PING, b'{"seq":1}\0')
BAD = bytes.fromhex("00 00 00 00 00 00 00 00")


def header(size: int, magic: bytes = MAGIC_DEPLOYED) -> bytes:
    return magic + size.to_bytes(4, "big")


def in_pieces(data: bytes, size: int, splitter: Splitter) -> list[m.Message]:
    out = []
    for at in range(0, len(data), size):
        out += splitter.feed(data[at : at + size])
    return out


# -- any split ---------------------------------------------------------------------------------------------


def test_every_cut_of_every_captured_frame() -> None:
    """Two frames, so that the cut also falls between them and before the second's end."""
    for record in local():
        if len(record.frame) > 600:
            continue
        stream = record.frame + PONG.framed()
        whole = Splitter().feed(stream)
        assert len(whole) == 2
        for cut in range(len(stream) + 1):
            splitter = Splitter()
            assert splitter.feed(stream[:cut]) + splitter.feed(stream[cut:]) == whole
            assert splitter.pending_bytes == 0


@for_each("size", [1, 3, 8, 64, 65536])
def test_all_captured_frames_in_equal_pieces(size: int) -> None:
    frames = [record.frame for record in local()]
    splitter = Splitter()
    out = in_pieces(b"".join(frames), size, splitter)
    assert splitter.failure is None
    assert [message.encode() for message in out] == [Splitter().feed(one)[0].encode() for one in frames]


def outcome(splitter: Splitter, data: bytes) -> tuple[list[bytes], type | None]:
    """What is read, encoded, and how it fails."""
    return [message.encode() for message in splitter.feed(data)], type(splitter.failure)


def test_a_frame_behind_one_like_it_is_read_as_it_is_alone() -> None:
    """Its measure is that of the one before only if nothing else can be meant."""
    event = m.event("job.state", b"x" * 300).framed()
    at = event.index(b"\xff\x00\x00\x01\x2c") + 4
    odd = event.replace(b".", b"\0")
    pairs = {
        "payloads of a byte, and of another": (
            m.event("job.state", b"a").framed(),
            m.event("job.state", b"b").framed(),
        ),
        "payloads of 300 bytes": (event, event.replace(b"x" * 300, b"y" * 300)),
        "a payload that says 299 of 300": (event, event[:at] + b"\x2b" + event[at + 1 :]),
        "a topic that is cut at its NUL": (odd, odd),
    }
    alone = {name: outcome(Splitter(), second) for name, (_, second) in pairs.items()}
    behind = {}
    for name, (first, second) in pairs.items():
        (read, *more), failure = outcome(Splitter(), first + second)
        assert read == Splitter().feed(first)[0].encode()
        behind[name] = (more, failure)
    assert behind == alone


def test_empty_reads_change_nothing() -> None:
    splitter = Splitter()
    data = PING.framed()
    assert splitter.feed(b"") == []
    assert splitter.feed(data[:20]) == []
    assert splitter.feed(b"") == []
    assert splitter.feed(data[20:]) == [PING]


# -- magic -------------------------------------------------------------------------------------------------


def test_the_peers_magic_is_remembered() -> None:
    splitter = Splitter()
    assert splitter.magic == MAGIC_DEPLOYED
    assert splitter.feed(frame(PING, MAGIC_TEXT)) == [PING]
    assert splitter.magic == b"\xff\xee\x00\x12"
    assert splitter.feed(PING.framed()) == [PING]
    assert splitter.magic == MAGIC_DEPLOYED


@for_each("size", [1, 5, 8, 1000])
def test_orders_may_change_between_frames(size: int) -> None:
    splitter = Splitter()
    stream = frame(PING, MAGIC_TEXT) + frame(PONG) + frame(PING, MAGIC_TEXT)
    assert in_pieces(stream, size, splitter) == [PING, PONG, PING]
    assert splitter.magic == MAGIC_TEXT


def test_frame_in_both_orders() -> None:
    assert frame(PING) is PING.framed()
    assert frame(PING, MAGIC_TEXT) == bytes.fromhex("ff ee 00 12") + PING.framed()[4:]


# -- bad frames --------------------------------------------------------------------------------------------


@for_each("size", [1, 3, 8, 50, 10_000])
@for_each(
    "bad",
    [
        BAD,
        header(0),
        header(20) + bytes(20),
        header(21) + bytes(21),
        header(0xFFFFFFFF),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["magic", "zero length", "no room for PROTO", "no PROTO", "giant", "another protocol"],
)
def test_messages_in_front_of_a_bad_frame_are_delivered_and_none_behind(bad: bytes, size: int) -> None:
    splitter = Splitter()
    assert in_pieces(PING.framed() + PONG.framed() + bad + PING.framed(), size, splitter) == [PING, PONG]
    assert splitter.failure is not None
    assert splitter.pending_bytes == 0
    assert splitter.feed(PING.framed()) == []


@for_each("size", [8, 9, 10, 40, 5000])
@for_each("front", [b"", PING.framed(), m.event("e", bytes(300)).framed()])
def test_zeros_are_no_frame_whatever_came_before(front: bytes, size: int) -> None:
    splitter = Splitter()
    assert len(splitter.feed(front + bytes(size))) == bool(front)
    assert isinstance(splitter.failure, DecodeError)


def test_failure_says_what_was_seen_and_what_was_expected() -> None:
    splitter = Splitter()
    splitter.feed(b"GET / HTTP/1.1\r\n")
    assert isinstance(splitter.failure, DecodeError)
    assert "47 45 54 20" in str(splitter.failure)
    assert "12 00 ee ff" in str(splitter.failure)


# -- caps --------------------------------------------------------------------------------------------------


@for_each("over", [0, 1, 20, 21, 22])
@for_each("pieces", [1, 7, 10_000])
def test_the_cap_is_exact_however_the_bytes_arrive(over: int, pieces: int) -> None:
    data = m.request("a", bytes(1000)).framed()
    splitter = Splitter(max_bytes=len(data) - 8 - over)
    out = in_pieces(data, pieces, splitter)
    if over:
        assert out == []
        assert isinstance(splitter.failure, MessageTooLarge)
    else:
        assert len(out) == 1
        assert splitter.failure is None


def test_nothing_is_allocated_on_announcement() -> None:
    tracemalloc.start()
    try:
        splitters = [Splitter(256 << 20) for _ in range(50)]
        before = tracemalloc.get_traced_memory()[0]
        for splitter in splitters:
            splitter.feed(header(256 << 20))
            splitter.feed(b"x" * 100)
        grown = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert all(splitter.pending_bytes == 108 for splitter in splitters)
    assert grown < 50 * 1024


def test_a_partial_frame_holds_no_more_than_what_came() -> None:
    splitter = Splitter()
    splitter.feed(PING.framed() * 1000 + header(1000) + b"abc")
    assert splitter.pending_bytes == 11


# -- large frames ------------------------------------------------------------------------------------------

ODD_LARGE = {
    "payload": ([b""], b"a.b", bytes(range(256)) * 400),
    "no topic": ([b""], None, b"x" * 70_000),
    "no routes": (None, b"a.b", b"x" * 70_000),
    "payload alone": (None, None, b"x" * 70_000),
    "routes": ([b"r" * 36] * 16 + [b""], b"a.b", b"x" * 70_000),
    "routes past the head": ([b"r" * 36] * 400 + [b""], b"a.b", b"x" * 70_000),
    "long topic": ([b""], b"t" * 7000, b"x" * 70_000),
    "topic past the head": ([b""], b"t" * 9000, b"x" * 70_000),
    "large topic and no payload": ([b""], b"t" * 70_000, None),
    "long route": ([b"r" * 300, b""], b"a", b"x" * 70_000),
    "NUL in route and topic": ([b"r\0x", b""], b"a\0b", b"x" * 70_000),
}


def large_body(routes: list[bytes] | None, topic: bytes | None, payload: bytes | None) -> bytes:
    flags = 8 * (routes is not None) | (topic is not None) | 2 * (payload is not None)
    parts = [*(routes or []), *(part for part in (topic, payload) if part is not None)]
    proto = bytes([0x8E, 1, 1, flags]) + bytes(16)
    return b"".join(m.encode_part(part) for part in [*parts, proto])


@for_each("what", ODD_LARGE)
def test_large_frames_decode_as_small_ones_do(what: str) -> None:
    body = large_body(*ODD_LARGE[what])
    assert len(body) > LARGE_BYTES
    expected = decode(body, 0, len(body))
    assert decode_large(memoryview(bytearray(b"????" + body)), 4, 4 + len(body)) == expected
    for pieces in (1000, 65_536, len(body)):
        splitter = Splitter()
        (message,) = in_pieces(header(len(body)) + body, pieces, splitter)
        assert message == expected
        assert message.parts() == expected.parts()
        assert message.framed() == expected.framed()


def test_a_route_across_the_head_that_looks_like_a_payload() -> None:
    """8 KiB into the frame stands, inside a route, what would be the size of a payload up to PROTO."""
    routes = [b"r" * 254] * 32
    at = 8192 - 32 * 255 - 1
    hidden = [b"s" * at + b"\xff????" + b"s" * 50, b""]
    size = len(large_body(routes + hidden, None, b"x" * 70_000)) - 8192 - 5 - 21
    hidden[0] = hidden[0].replace(b"????", size.to_bytes(4, "big"))
    body = large_body(routes + hidden, None, b"x" * 70_000)
    expected = decode(body, 0, len(body))
    assert expected.payload == b"x" * 70_000
    assert decode_large(memoryview(body), 0, len(body)) == expected


def test_the_payload_of_a_large_frame_is_not_copied() -> None:
    body = large_body([b""], b"a", b"x" * 100_000)
    splitter = Splitter()
    (message,) = in_pieces(header(len(body)) + body, 65_536, splitter)
    assert isinstance(message.payload_part, memoryview)
    assert isinstance(message.front, bytes)
    assert isinstance(message.head + message.tag, bytes)
    message.push_route(b"hop")
    message.set_credentials(1000, 2)
    again = decode(message.encode(), 0, message.size)
    assert (again.routes, again.userid, again.payload) == ([b"hop"], 1000, b"x" * 100_000)


@for_each("at", [-1, -20, -21, 0, 1])
def test_damaged_large_frames_are_refused_as_small_ones_are(at: int) -> None:
    body = bytearray(large_body([b"hop", b""], b"a", b"x" * 70_000))
    body[at] ^= 0xFF
    try:
        expected = decode(bytes(body), 0, len(body))
    except DecodeError:
        with pytest.raises(DecodeError):
            decode_large(memoryview(body), 0, len(body))
    else:
        assert decode_large(memoryview(body), 0, len(body)) == expected


def test_a_large_frame_whose_payload_lost_its_long_mark_is_refused() -> None:
    whole = bytearray(m.request("broker.ping", b"x" * 70_000).encode())
    whole[whole.index(b"\xff")] = 20  # the size byte of the payload: what follows was its long size
    with pytest.raises(DecodeError):
        decode_large(memoryview(whole), 0, len(whole))
