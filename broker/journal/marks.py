"""What the corridor hands to the writer: chunks of marks and frames (sans I/O).

::

    chunk   magic HGJC | length u32 (of all marks and frames behind this head) | first number u64 | records u32
            cause u32
    mark    16 bytes: kind u8 | transport u8 | direction u8 | reason u8 | peer u32 | via u32 | claimed userid u32
    frame   behind each mark, as the stream framing has it: magic (deployed order), size u32 big-endian, parts
    time    a mark of kind 0 without a frame: 8 bytes of zeros, ns i64; it dates the records in front of it, back to the
            time before

Numbers count the records of this run from 0; a chunk that begins above the number expected follows a loss, and
``cause`` says of which kind. The constants of ``layout`` stand in the fields.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Final

import msgspec

from broker.wire.message import MAGIC_DEPLOYED
from broker.wire.parts import encode_part

CHUNK_MAGIC: Final = b"HGJC"
CHUNK_HEAD: Final = Struct("<4sIQII")
"""magic, length, first number, records, cause."""
CHUNK_MAX_BYTES: Final = 512 << 20
"""More is no chunk: two of the largest messages. All lengths of a block made of it stay below 2^32."""
MARK: Final = Struct("<BBBBIII")
"""kind, transport, direction, reason, peer, via, claimed userid."""
MARK_BYTES: Final = 16
TIME_MARK: Final = Struct("<8xq")
TIME: Final = 0
"""Kind of a mark that dates the records before it."""

NOTHING_LOST: Final = 0
SHED: Final = 1
WRITER_DIED: Final = 2
CAPTURE_OFF: Final = 3
CAUSES: Final = {
    NOTHING_LOST: "unknown",
    SHED: "the writer did not keep up",
    WRITER_DIED: "the writer died",
    CAPTURE_OFF: "capture was off",
}
"""Why numbers are missing in front of a chunk."""

READY: Final = 1
WRITTEN: Final = 2
OFF: Final = 3
REPORT: Final = Struct("<IIQQ")
"""What the writer says: READY (0, next seq, 0), WRITTEN (0, records of this run on disk, bytes on disk) or OFF (errno,
records, bytes): capture has ended."""


def mark(
    kind: int, transport: int, direction: int, reason: int = 0, peer: int = 0, via: int = 0, claimed: int = 0
) -> bytes:
    """The 16 bytes in front of a frame; ``reason`` above 254 becomes 255."""
    return MARK.pack(kind, transport, direction, min(reason, 255), peer, via, claimed)


def time_mark(now_ns: int) -> bytes:
    """Dates the records in front of it: ns since 1970, UTC."""
    return TIME_MARK.pack(now_ns)


def framed(parts: list[bytes]) -> bytes:
    """A frame of any parts."""
    body = b"".join(map(encode_part, parts))
    return MAGIC_DEPLOYED + len(body).to_bytes(4, "big") + body


def note(topic: str, facts: dict[str, object], wire: list[bytes] | tuple[bytes, ...] = ()) -> bytes:
    """The frame of a record of kind NFP, OSLO or STATE: topic, facts as JSON, the parts of the wire."""
    return framed([_bytes_of(topic), _json_of(facts), *wire])


def entry_of_dictionary(facts: dict[str, object]) -> bytes:
    """The frame of a DICTIONARY record."""
    return framed([_json_of(facts)])


def _bytes_of(topic: str) -> bytes:
    """Bytes that were no UTF-8 become what they were; surrogates that stand for no byte become ``?``."""
    try:
        return topic.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return topic.encode("utf-8", "replace")


def _json_of(facts: dict[str, object]) -> bytes:
    """JSON that any reader takes: paths and texts of others may hold surrogates, which no UTF-8 has; they become
    ``?``.
    """
    try:
        return msgspec.json.encode(facts)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(facts, str_keys=True)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
