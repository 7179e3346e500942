"""The reader alone: every rule of RFC 6455 that a client may break, and bytes that come in pieces."""

import struct
import tracemalloc

from gateway.websocket.reader import MAX_FRAGMENTS, Reader, may_be_sent
from tests.tables import for_each
from tests.unit.gateway.websocket.house import masked

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
MASK = b"\x11\x22\x33\x44"


def read(*pieces: bytes, max_bytes: int = 1 << 20):
    reader = Reader(max_bytes)
    out = [found for piece in pieces for found in reader.feed(piece)]
    return out, reader


def header(first: int, second: int, rest: bytes = b"") -> bytes:
    return bytes((first, second)) + rest


GOOD = {
    "empty binary": (masked(BINARY), [(BINARY, b"")]),
    "empty text": (masked(TEXT), [(TEXT, b"")]),
    "text": (masked(TEXT, "grüß".encode()), [(TEXT, "grüß".encode())]),
    "125": (masked(BINARY, bytes(125)), [(BINARY, bytes(125))]),
    "126": (masked(BINARY, bytes(126)), [(BINARY, bytes(126))]),
    "65535": (masked(BINARY, bytes(65535)), [(BINARY, bytes(65535))]),
    "65536": (masked(BINARY, bytes(65536)), [(BINARY, bytes(65536))]),
    "mask of zeros": (masked(BINARY, b"abc", mask=bytes(4)), [(BINARY, b"abc")]),
    "several": (
        masked(BINARY, b"a") + masked(TEXT, b"b") + masked(PING, b"c"),
        [(BINARY, b"a"), (TEXT, b"b"), (PING, b"c")],
    ),
    "fragments": (
        masked(0, b"ab", first=0x02) + masked(0, b"", first=0x00) + masked(0, b"c"),
        [(BINARY, b"abc")],
    ),
    "ping between fragments": (
        masked(0, b"ab", first=0x01) + masked(PING, b"!") + masked(0, b"c"),
        [(PING, b"!"), (TEXT, b"abc")],
    ),
    "message after fragments": (
        masked(0, b"a", first=0x02) + masked(0, b"b") + masked(TEXT, b"c"),
        [(BINARY, b"ab"), (TEXT, b"c")],
    ),
    "ping of 125": (masked(PING, bytes(125)), [(PING, bytes(125))]),
    "pong nobody asked for": (masked(PONG, b"x"), [(PONG, b"x")]),
    "close": (masked(CLOSE, b"\x03\xe8bye"), [(CLOSE, b"\x03\xe8bye")]),
    "close without code": (masked(CLOSE), [(CLOSE, b"")]),
    "close inside fragments": (masked(0, b"a", first=0x01) + masked(CLOSE), [(CLOSE, b"")]),
}

BAD = {
    "RSV1": (masked(TEXT, b"a", first=0xC1), 1002),
    "RSV2": (masked(TEXT, b"a", first=0xA1), 1002),
    "RSV3": (masked(TEXT, b"a", first=0x91), 1002),
    "RSV1 on a ping": (masked(PING, b"a", first=0xC9), 1002),
    **{f"opcode {code}": (masked(code, b"a"), 1002) for code in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)},
    "unmasked": (b"\x82\x01a", 1002),
    "unmasked and empty": (b"\x81\x00", 1002),
    "ping of 126": (masked(PING, bytes(126)), 1002),
    "close of 126": (masked(CLOSE, b"\x03\xe8" + bytes(124)), 1002),
    "ping in 64 bits": (header(0x89, 0xFF, bytes(8) + MASK), 1002),
    "fragmented ping": (masked(PING, b"a", first=0x09), 1002),
    "fragmented close": (masked(CLOSE, b"", first=0x08), 1002),
    "continuation of nothing": (masked(0, b"a"), 1002),
    "unfinished continuation of nothing": (masked(0, b"a", first=0x00), 1002),
    "message inside fragments": (masked(0, b"a", first=0x01) + masked(TEXT, b"b"), 1002),
    "first fragment inside fragments": (masked(0, b"a", first=0x02) + masked(0, b"b", first=0x02), 1002),
    "length 125 in 16 bits": (header(0x82, 0xFE, struct.pack(">H", 125) + MASK + bytes(125)), 1002),
    "length 65535 in 64 bits": (header(0x82, 0xFF, struct.pack(">Q", 65535) + MASK), 1002),
    "top bit of 64": (header(0x82, 0xFF, struct.pack(">Q", 1 << 63) + MASK), 1002),
    "all 64 bits": (header(0x82, 0xFF, b"\xff" * 8 + MASK), 1002),
    "largest length": (header(0x82, 0xFF, struct.pack(">Q", (1 << 63) - 1) + MASK), 1009),
    "close of one byte": (masked(CLOSE, b"\x03"), 1002),
    "close reason no UTF-8": (masked(CLOSE, b"\x03\xe8\xff"), 1007),
    "close reason cut in a character": (masked(CLOSE, b"\x03\xe8" + "é".encode()[:1]), 1007),
    **{
        f"close {code}": (masked(CLOSE, struct.pack(">H", code)), 1002)
        for code in (0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)
    },
    "text no UTF-8": (masked(TEXT, b"ok \xff"), 1007),
    "text cut in a character": (masked(TEXT, "€".encode()[:2]), 1007),
    "surrogate": (masked(TEXT, b"\xed\xa0\x80"), 1007),
    "overlong": (masked(TEXT, b"\xc0\xaf"), 1007),
    "beyond U+10FFFF": (masked(TEXT, b"\xf4\x90\x80\x80"), 1007),
}


@for_each("name", GOOD)
@for_each("step", [0, 1, 3, 4096])
def test_good(name, step):
    data, expected = GOOD[name]
    out, reader = read(*pieces(data, step))
    assert out == expected
    assert reader.failure is None
    assert reader.closed == (expected[-1][0] == CLOSE)
    assert reader.pending_bytes == 0


@for_each("name", BAD)
@for_each("step", [0, 1, 3, 4096])
def test_bad(name, step):
    data, code = BAD[name]
    front = masked(BINARY, b"in front")
    out, reader = read(*pieces(front + data + masked(BINARY, b"behind"), step))
    assert out[0] == (BINARY, b"in front"), "what came before is still delivered"
    assert (BINARY, b"behind") not in out
    assert reader.failure is not None
    assert reader.failure.code == code
    assert reader.failure.text
    assert reader.pending_bytes == 0
    assert reader.feed(masked(BINARY, b"later")) == []


def test_a_finished_message_has_no_continuation():
    for message in (masked(TEXT, b"a"), masked(0, b"a", first=0x01) + masked(0, b"b")):
        out, reader = read(message + masked(0, b"c"))
        assert len(out) == 1
        assert reader.failure is not None
        assert reader.failure.code == 1002


def pieces(data: bytes, step: int) -> list[bytes]:
    return [data[at : at + step] for at in range(0, len(data), step)] if step else [data]


@for_each(
    ("data", "code"),
    [
        (b"\xc2", 1002),
        (b"\x83", 1002),
        (b"\x09", 1002),
        (b"\x00", 1002),
        (b"\x82\x01", 1002),
        (b"\x89\xfe", 1002),
    ],
)
def test_what_is_wrong_is_told_at_the_first_byte_that_shows_it(data, code):
    _, reader = read(data)
    assert reader.failure is not None
    assert reader.failure.code == code


def test_codes_that_may_be_sent():
    allowed = [code for code in range(65536) if may_be_sent(code)]
    assert [*allowed[:4], *allowed[4:12]] == [*range(1000, 1004), *range(1007, 1015)]
    assert allowed[12:] == list(range(3000, 5000))


SAMPLE = "aé€𝄞z".encode()


@for_each("cut", range(len(SAMPLE) + 1))
def test_text_may_be_cut_anywhere(cut):
    one = masked(0, SAMPLE[:cut], first=0x01) + masked(0, SAMPLE[cut:])
    assert read(one)[0] == [(TEXT, SAMPLE)]
    whole = masked(TEXT, SAMPLE)
    assert read(whole[: 6 + cut], whole[6 + cut :])[0] == [(TEXT, SAMPLE)]


@for_each("cut", range(1, 4))
def test_bad_text_fails_at_its_fragment_not_at_the_end(cut):
    bad = b"\xf4\x90\x80\x80"
    _, reader = read(masked(0, b"fine", first=0x01) + masked(0, bad[:1], first=0))
    assert reader.failure is None, "a lead byte alone may still become a character"
    reader.feed(masked(0, bad[1 : 1 + cut], first=0))
    assert reader.failure is not None
    assert reader.failure.code == 1007


def test_binary_fragments_are_not_looked_at_as_text():
    assert read(masked(0, b"\xff", first=0x02) + masked(0, b"\xfe"))[0] == [(BINARY, b"\xff\xfe")]


# -- limits ------------------------------------------------------------------------------------


@for_each("size", [100, 200, 70000])
def test_the_limit_is_exact(size):
    frame = masked(BINARY, bytes(size))
    assert read(frame, max_bytes=size)[0] == [(BINARY, bytes(size))]
    out, reader = read(frame, max_bytes=size - 1)
    assert out == []
    assert reader.failure is not None
    assert reader.failure.code == 1009
    assert str(size - 1) in reader.failure.text


@for_each(("size", "form"), [(200, ">H"), (65536, ">Q"), (1 << 40, ">Q")])
def test_oversize_is_refused_by_its_header(size, form):
    head = header(0x82, 0xFE if form == ">H" else 0xFF, struct.pack(form, size))
    _, reader = read(head, max_bytes=199)
    assert reader.failure is not None
    assert reader.failure.code == 1009


def test_the_sum_of_fragments_counts():
    out, reader = read(masked(0, bytes(60), first=0x02) + masked(0, bytes(40)), max_bytes=100)
    assert out == [(BINARY, bytes(100))]
    assert reader.failure is None
    out, reader = read(masked(0, bytes(60), first=0x02) + header(0x80, 0x80 | 41), max_bytes=100)
    assert out == []
    assert reader.failure is not None
    assert reader.failure.code == 1009


def test_control_frames_are_below_any_limit():
    assert read(masked(PING, bytes(125)), max_bytes=10)[0] == [(PING, bytes(125))]


def test_the_limit_may_rise_and_fall_between_frames():
    reader = Reader(10)
    assert reader.feed(masked(BINARY, bytes(10))) == [(BINARY, bytes(10))]
    reader.max_bytes = 1000
    assert reader.feed(masked(BINARY, bytes(1000))) == [(BINARY, bytes(1000))]
    reader.max_bytes = 10
    assert reader.feed(masked(BINARY, bytes(11))) == []
    assert reader.failure is not None


def test_fragments_are_bounded_even_when_empty():
    reader = Reader(10)
    reader.feed(masked(0, b"", first=0x02))
    more = masked(0, b"", first=0x00)
    for _ in range(MAX_FRAGMENTS - 1):
        reader.feed(more)
    assert reader.failure is None
    reader.feed(more)
    assert reader.failure is not None
    assert reader.failure.code == 1009


def test_nothing_is_allocated_on_announcement():
    reader = Reader(1 << 31)
    head = header(0x82, 0xFF, struct.pack(">Q", 1 << 30) + MASK)
    tracemalloc.start()
    reader.feed(head + bytes(1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 24  # far below what was announced; other threads allocate, too
    assert reader.pending_bytes == 1000


def test_a_close_ends_reading():
    out, reader = read(masked(CLOSE, b"\x03\xe8") + b"\xff\xff\xff\xff")
    assert out == [(CLOSE, b"\x03\xe8")]
    assert reader.failure is None
    assert reader.closed
    assert reader.feed(masked(BINARY, b"later")) == []
