"""Segments read with nothing but struct and a loop, and chunks made by hand: what the tests of the writer share."""

import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from broker.journal import marks
from broker.journal.layout import FLUX, IN, UNIX
from broker.journal.options import JournalOptions
from broker.journal.writer.intake import Chunk
from broker.wire.message import request

RUN = "0123456789abcdef0123456789abcdef"
T0 = 1_767_225_600_000_000_000


@dataclass
class Row:
    seq: int | None
    ts: int
    peer: int
    topic_at: int
    topic_len: int
    origin_at: int
    origin_len: int
    routes: int
    kind: int
    transport: int
    direction: int
    reason: int
    payload_len: int
    claimed: int
    proto: bytes
    via: int
    body: bytes

    @property
    def parts(self) -> list[bytes]:
        """By a loop of our own."""
        found, at = [], 0
        while at < len(self.body):
            size, at = self.body[at], at + 1
            if size == 255:
                size, at = int.from_bytes(self.body[at : at + 4], "big"), at + 4
            assert at + size <= len(self.body)
            found.append(self.body[at : at + size])
            at += size
        return found

    @property
    def topic(self) -> bytes:
        assert self.topic_at != 0xFFFF
        return self.body[self.topic_at : self.topic_at + self.topic_len]

    @property
    def origin(self) -> bytes:
        assert self.origin_at != 0xFFFF
        return self.body[self.origin_at : self.origin_at + self.origin_len]


@dataclass
class Read:
    """A block."""

    offset: int
    length: int
    flags: int
    codec: int
    first_seq: int
    first_ts: int
    last_ts: int
    rank: int
    rows: list[Row] = field(default_factory=list)


def block_at(data: bytes, at: int) -> Read:
    magic, length, crc = struct.unpack_from("<4sII", data, at)
    assert magic == b"FJBK", magic
    assert at + length <= len(data), "torn"
    assert zlib.crc32(data[at + 12 : at + length]) == crc
    codec, version, flags, count, bodies_len = struct.unpack_from("<BBHII", data, at + 12)
    first_seq, first_ts, last_ts, rank, stored = struct.unpack_from("<QqqII", data, at + 24)
    assert version == 1
    assert length % 8 == 0
    entries_at = at + 64
    bodies = data[entries_at + 64 * count :][:stored]
    if codec == 1:
        import zstandard

        bodies = zstandard.ZstdDecompressor().decompress(bodies)
    elif codec == 2:
        import lz4.frame

        bodies = lz4.frame.decompress(bodies)
    assert len(bodies) == bodies_len
    block = Read(at, length, flags, codec, first_seq, first_ts, last_ts, rank)
    for number in range(count):
        ts, body_at, body_len, *rest = struct.unpack_from(
            "<qIIIHHHBBBBBBII20sI", data, entries_at + 64 * number
        )
        assert body_at + body_len <= len(bodies)
        seq = None if flags & 1 else first_seq + number
        block.rows.append(Row(seq, ts, *rest, bodies[body_at : body_at + body_len]))
    return block


def blocks(data: bytes, at: int = 64) -> list[Read]:
    """All of a segment's bytes; an assertion fails at the first that is not whole."""
    found = []
    while at < len(data):
        found.append(block_at(data, at))
        at += found[-1].length
    return found


def header(data: bytes) -> dict:
    magic, version, flags, rank, run, first_seq, created, base, crc = struct.unpack_from(
        "<4sHHI4x16sQQQ4xI", data
    )
    assert (magic, version, crc) == (b"FLXJ", 1, zlib.crc32(data[:60]))
    return {
        "flags": flags, "rank": rank, "run": run.hex(), "first_seq": first_seq, "created": created, "base": base
    }  # fmt: skip


def rows(directory: Path, writer: str = "rank0") -> list[Row]:
    """All numbered records of a writer, in order of its segments."""
    found = []
    for path in sorted(directory.glob(f"{writer}-*.fj")):
        for block in blocks(path.read_bytes()):
            found += [row for row in block.rows if row.seq is not None]
    return found


def item(frame: bytes, kind: int = FLUX, direction: int = IN, **more: int) -> bytes:
    return marks.mark(kind, more.pop("transport", UNIX), direction, **more) + frame


def called(number: int, payload: bytes = b"{}\0") -> bytes:
    """A mark and a request whose matchtag is ``number``, as far as it fits."""
    message = request("kvs.get", payload, matchtag=number % (1 << 32), userid=1000, rolemask=1)
    message.push_route(b"client-%d" % (number % 5))
    return item(message.framed(), peer=1 + number % 5, via=9, claimed=0xFFFFFFFF)


def chunk(first: int, items: list[bytes], ts: int = T0, cause: int = 0) -> Chunk:
    return Chunk(first, len(items), cause, b"".join(items) + marks.time_mark(ts))


def calls(first: int, count: int, ts: int = T0, cause: int = 0, payload: bytes = b"{}\0") -> Chunk:
    return chunk(first, [called(number, payload) for number in range(first, first + count)], ts, cause)


def encoded(said: Chunk) -> bytes:
    """As the recorder sends it."""
    head = marks.CHUNK_HEAD.pack(marks.CHUNK_MAGIC, len(said.data), said.first, said.records, said.cause)
    return head + said.data


def options(directory: object = "unused", **more) -> JournalOptions:
    return JournalOptions(directory=str(directory), writer="rank0", **{"run": RUN, **more})


def tags(found: list[Row]) -> list[int]:
    """Matchtags of the Flux records."""
    return [int.from_bytes(row.proto[16:], "big") for row in found if row.kind == FLUX]
