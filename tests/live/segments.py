"""Segments of a journal made from Python objects: an oracle that shares nothing with the product's writer but the text
of ``broker.journal.layout`` (and its numbers of kinds, directions, transports).

::

    who = peer(1, "unix:7", role="client", uid=1000)                      # a DICTIONARY record
    said = flux(T0, request("kvs.get", b"{}", matchtag=5), peer=1)        # any Message, or parts as bytes
    lost = note(T0 + 1, "gap", {"records": 2, "first": 1, "last": 2, "cause": "shed"})
    path = write(tmp_path, "rank0", [who, said, lost], first_seq=0, per_block=2, codec="zstd")

A ``Rec`` holds what should come out again: ``expected()`` gives it as the columns of a row.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from broker.journal.layout import (
    DICTIONARY,
    DIRECTION_NAMES,
    FLUX,
    IN,
    KIND_NAMES,
    STATE,
    TRANSPORT_NAMES,
    TYPE_NAMES,
    UNIX,
)
from broker.wire.message import Message

RUN = bytes(range(16))
"""Uuid of the run where no other is named."""
T0 = 1_767_225_600_000_000_000
"""2026-01-01 00:00 UTC, in ns."""
CODEC_NUMBERS = {"none": 0, "zstd": 1, "lz4": 2}


@dataclass(frozen=True, kw_only=True)
class Rec:
    """One record: its parts as the wire had them, and what stands around them."""

    ts: int
    parts: tuple[bytes, ...]
    kind: int = FLUX
    transport: int = UNIX
    direction: int = IN
    reason: int = 0
    peer: int = 0
    via: int = 0
    claimed: int = 0
    stripped: bool = False

    def with_(self, **changes: Any) -> Rec:
        """A copy with some fields changed."""
        return replace(self, **changes)

    # -- what is in the parts, found here by a walk of our own --

    def proto(self) -> bytes:
        return self.parts[-1] if self.kind == FLUX else bytes(20)

    def routes(self) -> list[bytes]:
        """Route ids in front of the delimiter, most recent hop first."""
        if self.kind != FLUX or not self.proto()[3] & 8:
            return []
        return list(self.parts[: self.parts.index(b"")])

    def _topic_at(self) -> int | None:
        """Index of the topic part."""
        if self.kind == DICTIONARY:
            return None
        if self.kind != FLUX:
            return 0
        flags = self.proto()[3]
        if not flags & 1:
            return None
        return len(self.routes()) + 1 if flags & 8 else 0

    def topic(self) -> bytes:
        at = self._topic_at()
        return b"" if at is None else self.parts[at]

    def _payload_range(self) -> tuple[int, int]:
        """Indexes of the parts that are left out when payloads are not kept."""
        if self.kind == DICTIONARY:
            return 1, 1
        if self.kind != FLUX:
            return 2, len(self.parts)
        end = len(self.parts) - 1
        return (end - 1, end) if self.proto()[3] & 2 else (end, end)

    def payload_len(self) -> int:
        first, end = self._payload_range()
        return sum(map(len, self.parts[first:end]))

    def kept(self) -> tuple[bytes, ...]:
        """The parts that stand in the body."""
        first, end = self._payload_range()
        return self.parts[:first] + self.parts[end:] if self.stripped else self.parts

    def body(self) -> bytes:
        return b"".join(map(part, self.kept()))

    def entry(self, body_offset: int) -> bytes:
        """The 64 bytes; a field that its value does not fit says so with all bits set."""
        topic_at, origin_at = 0, 0
        routes, at = self.routes(), self._topic_at()
        if at is not None:
            topic_at = _data_at(self.kept(), at)
        if routes:
            origin_at = _data_at(self.kept(), len(routes) - 1)
        return struct.pack(
            "<qIIIHHHBBBBBBII20sI",
            self.ts,
            body_offset,
            len(self.body()),
            self.peer,
            min(topic_at, 0xFFFF),
            min(len(self.topic()), 0xFFFF),
            min(origin_at, 0xFFFF),
            min(len(routes[-1]), 0xFF) if routes else 0,
            min(len(routes), 0xFF),
            self.kind,
            self.transport,
            self.direction | (0x80 if self.stripped else 0),
            min(self.reason, 255),
            self.payload_len(),
            self.claimed,
            self.proto(),
            self.via,
        )

    def expected(self, seq: int, rank: int = 0, writer: str = "rank0", run: bytes = RUN) -> dict[str, Any]:
        """What a reader should make of it: every column but the names of peers, ``dt`` and ``payload``."""
        flux, proto, routes = self.kind == FLUX, self.proto(), self.routes()
        word = [int.from_bytes(proto[at : at + 4], "big") for at in (4, 8, 12, 16)]
        topic = self.topic().decode("utf-8", "surrogateescape")
        detail = None if flux else self.parts[1]
        if flux:
            first, end = self._payload_range()
            cut = sum(len(part(each)) for each in self.parts[first:end])
        else:
            cut = self.payload_len()
        return {
            "seq": seq,
            "ts": self.ts // 1000,
            "ts_ns": self.ts,
            "rank": rank,
            "writer": writer,
            "run": run.hex(),
            "capture": "in",
            "peer_id": self.peer,
            "via_id": self.via,
            "transport": TRANSPORT_NAMES[self.transport],
            "direction": DIRECTION_NAMES[self.direction],
            "reason": self.reason if self.reason < 255 else 255,
            "kind": KIND_NAMES[self.kind],
            "type": TYPE_NAMES[proto[2]] if flux else None,
            "flags": proto[3] if flux else None,
            "userid": word[0] if flux else _uid(detail),
            "claimed": self.claimed,
            "rolemask": word[1] if flux else None,
            **{
                name: word[2] if flux and proto[2] == kind else None
                for name, kind in (("nodeid", 1), ("errnum", 2), ("event_seq", 4))
            },
            "matchtag": word[3] if flux else None,
            "topic": topic,
            "service": topic.partition(".")[0],
            "origin": routes[-1].decode("utf-8", "surrogateescape") if routes else None,
            "routes": len(routes),
            "payload_len": self.payload_len(),
            "wire_len": len(self.body()) + (cut if self.stripped else 0),
            "delivered": self.via if flux and proto[2] == 4 and self.direction == 1 else None,
            "detail": None if detail is None else detail.decode(),
        }


def _uid(detail: bytes | None) -> int | None:
    value = json.loads(detail or b"null")
    uid = value.get("uid") if isinstance(value, dict) else None
    return uid if type(uid) is int and 0 <= uid < 1 << 63 else None


def part(data: bytes) -> bytes:
    """Size and data (RFC 3, "Message Framing and Security")."""
    head = bytes([len(data)]) if len(data) < 255 else b"\xff" + struct.pack(">I", len(data))
    return head + data


def _data_at(parts: Sequence[bytes], index: int) -> int:
    """Offset of the data of part ``index`` in the encoded body."""
    before = sum(len(part(each)) for each in parts[:index])
    return before + (1 if len(parts[index]) < 255 else 5)


# -- records -------------------------------------------------------------------------------------


def flux(ts: int, message: Message | Sequence[bytes], **around: Any) -> Rec:
    """A Flux message, as a Message or as its parts (PROTO last)."""
    parts = message.parts() if isinstance(message, Message) else message
    return Rec(ts=ts, parts=tuple(parts), **around)


def note(
    ts: int, topic: str, facts: dict[str, Any], wire: Iterable[bytes] = (), kind: int = STATE, **around: Any
) -> Rec:
    """A record of kind STATE (default), NFP or OSLO."""
    parts = (topic.encode("utf-8", "surrogateescape"), json.dumps(facts).encode(), *wire)
    return Rec(ts=ts, parts=parts, kind=kind, **around)


def peer(
    number: int, name: str, transport: int = UNIX, role: str = "client", ts: int = T0, **facts: Any
) -> Rec:
    """A DICTIONARY record: peer ``number`` of this run is ``name``."""
    told = {"id": number, "name": name, "transport": TRANSPORT_NAMES[transport], "role": role, **facts}
    return Rec(ts=ts, parts=(json.dumps(told).encode(),), kind=DICTIONARY, transport=transport, peer=number)


# -- blocks and segments -------------------------------------------------------------------------


def compress(codec: str, data: bytes) -> bytes:
    """``data`` as the codec stores it: one zstd frame, or one lz4 frame."""
    if codec == "zstd":
        import zstandard

        return zstandard.ZstdCompressor(level=1).compress(data)
    if codec == "lz4":
        import lz4.frame

        return lz4.frame.compress(data)
    return data


def block(
    records: Sequence[Rec],
    first_seq: int = 0,
    *,
    codec: str = "none",
    unnumbered: bool = False,
    rank: int = 0,
    between: int = 0,
) -> bytes:
    """One block; ``between`` bytes of rubbish stand in front of each body, as they may."""
    bodies, entries = bytearray(), bytearray()
    for record in records:
        bodies += b"\xa5" * between
        entries += record.entry(len(bodies))
        bodies += record.body()
    stored = compress(codec, bytes(bodies))
    rest = bytes(entries) + stored
    rest += bytes(-len(rest) % 8)
    times = [record.ts for record in records] or [0]
    tail = struct.pack(
        "<BBHIIQqqII8x",
        CODEC_NUMBERS[codec],
        1,
        1 if unnumbered else 0,
        len(records),
        len(bodies),
        first_seq,
        min(times),
        max(times),
        rank,
        len(stored),
    )
    return struct.pack("<4sII", b"FJBK", 64 + len(rest), zlib.crc32(tail + rest)) + tail + rest


def header(
    first_seq: int = 0,
    *,
    rank: int = 0,
    run: bytes = RUN,
    created_ns: int = T0,
    base: int = 0,
    flags: int = 1,
    version: int = 1,
) -> bytes:
    """The 64 bytes in front of the blocks."""
    start = struct.pack("<4sHHI4x16sQQQ4x", b"FLXJ", version, flags, rank, run, first_seq, created_ns, base)
    return start + struct.pack("<I", zlib.crc32(start))


def name_of(writer: str, first_seq: int) -> str:
    """Name of a segment's file."""
    return f"{writer}-{first_seq:020d}.fj"


def write(
    directory: Path,
    writer: str,
    records: Sequence[Rec],
    first_seq: int = 0,
    *,
    per_block: int = 4096,
    codec: str = "none",
    between: int = 0,
    peers: Sequence[Rec] = (),
    tail: bytes = b"",
    **of_header: Any,
) -> Path:
    """One segment; returns its path.

    Args:
        records: numbered from ``first_seq`` on.
        per_block: records in one block.
        peers: DICTIONARY records for an unnumbered block at the begin.
        tail: bytes behind the last block.
        of_header: as ``header`` takes them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rank = of_header.get("rank", 0)
    data = [header(first_seq, **of_header)]
    if peers:
        data.append(block(peers, first_seq, codec=codec, unnumbered=True, rank=rank, between=between))
    for at in range(0, len(records), per_block):
        some = records[at : at + per_block]
        data.append(block(some, first_seq + at, codec=codec, rank=rank, between=between))
    path = directory / name_of(writer, first_seq)
    path.write_bytes(b"".join(data) + tail)
    path.chmod(0o600)
    return path


def write_many(
    directory: Path, writer: str, records: Sequence[Rec], per_segment: int, first_seq: int = 0, **how: Any
) -> list[Path]:
    """The same, cut into segments of ``per_segment`` records, each with ``peers`` repeated at its begin."""
    return [
        write(directory, writer, records[at : at + per_segment], first_seq + at, **how)
        for at in range(0, len(records), per_segment)
    ]
