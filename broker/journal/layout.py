"""The bytes of a segment, little-endian: one header, then blocks of entries and bodies.

::

    segment header (64)   0 magic FLXJ | 4 version u16 | 6 flags u16 | 8 rank u32 | 12 reserved 4 | 16 run uuid 16
                          32 first seq u64 | 40 created ns u64 | 48 base u64 | 56 reserved 4 | 60 CRC-32 of bytes 0..59
    block header (64)     0 magic FJBK | 4 length u32 (header, entries, bodies, padding) | 8 CRC-32 of bytes 12..length
                          12 codec u8 | 13 version u8 | 14 flags u16 | 16 records u32
                          20 bytes of bodies, uncompressed u32 | 24 first seq u64
                          32 first ts i64 | 40 last ts i64 (smallest and largest, ns) | 48 rank u32
                          52 bytes of bodies as stored u32 | 56 reserved 8
    entry (64), one a record, never compressed
                          0 ts i64 | 8 body offset u32 | 12 body length u32 | 16 peer u32 | 20 topic offset u16
                          22 topic length u16 | 24 origin offset u16 | 26 origin length u8 | 27 routes u8 | 28 kind u8
                          29 transport u8 | 30 direction u8 | 31 reason u8 | 32 payload length u32
                          36 claimed userid u32 | 40 PROTO 20, stamped (zeros if not flux) | 60 via u32
    bodies                regions that entries point into, then zeros up to a multiple of 8

Record i of a block has the number ``first seq + i``; a number that never comes was lost. The writer puts a record of
kind STATE and topic ``gap`` in the place of the last one lost: ``{"records", "first", "last", "cause"}``. The records
of an UNNUMBERED block (peers repeated at the begin of a segment, so that it stands alone) have no numbers.

A body is the message's parts as RFC 3 frames them (size byte or 255 and u32, data), without the eight bytes in front;
offsets of topic and origin count from the body's begin and point at data, not at sizes. Bodies need not be adjacent:
what lies between them means nothing.

Kinds other than flux have no PROTO. Their parts: topic, a JSON object, then the parts of the wire (NFP, oslo);
DICTIONARY has the JSON object alone: ``{"id", "name", "transport", "role", ...}`` of the peer whose number is ``peer``.

``peer`` is who sent it (direction IN, DENIED) or whom it is for (OUT); ``via`` is the other end of the broker, 0 where
there is none; of an event that went OUT it is the number of deliveries, and the claimed userid that of those among
them that went to other brokers of the tree.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

SUFFIX: Final = ".fj"
SEGMENT_MAGIC: Final = b"FLXJ"
BLOCK_MAGIC: Final = b"FJBK"
VERSION: Final = 1
HEADER_BYTES: Final = 64
"""Length of the segment header, of a block header and of an entry."""
ALIGN: Final = 8

SEGMENT_HEADER: Final = Struct("<4sHHI4x16sQQQ4xI")
"""magic, version, flags, rank, run uuid, first seq, created ns, base, CRC."""
BLOCK_HEADER: Final = Struct("<4sIIBBHIIQqqII8x")
"""magic, length, CRC, codec, version, flags, records, body bytes, first seq, first ts, last ts, rank, stored bytes."""
BLOCK_CRC_FROM: Final = 12
ENTRY: Final = Struct("<qIIIHHHBBBBBBII20sI")
"""ts, body offset, body length, peer, topic offset, topic length, origin offset, origin length, routes, kind,
transport, direction, reason, payload length, claimed userid, PROTO, via."""

UNNUMBERED: Final = 1
"""Flag of a block: its records have no numbers; ``first seq`` is that of the next block."""

PAYLOADS: Final = 1
"""Flag of a segment: payloads were captured."""
BOTH_ENDS: Final = 2
"""Flag of a segment: deliveries were captured, too (``capture = both``)."""
CAPTURES: Final = ("in", "both")
"""What is captured, without that flag and with it."""

JUMP_MAX: Final = 1 << 32
"""Where a block is looked for behind damage and headers do not lead on, its number is at most so far ahead."""

CODECS: Final = ("none", "zstd", "lz4")
"""By number."""

FLUX: Final = 1
NFP: Final = 2
OSLO: Final = 3
STATE: Final = 4
DICTIONARY: Final = 255
KIND_AT: Final = 28
"""Where an entry has its kind, for whoever looks for one kind in all entries of a block."""
KIND_NAMES: Final = {FLUX: "flux", NFP: "nfp", OSLO: "oslo", STATE: "state", DICTIONARY: "dictionary"}

LINK_UP: Final = "link.up"
LINK_DOWN: Final = "link.down"
DROP: Final = "drop"
DENIED_LINK: Final = "denied.link"
LEFT_OUT: Final = "denied.left_out"
GAP: Final = "gap"
CAPTURE: Final = "capture"
"""Topics of STATE records: a peer came or went (``{"peer", ...}``), events that a slow subscriber missed (``{"peer",
"events", "since_ns"}``), who was not let in (``{"address", "uid", "errno", "reason"}``), refusals that are counted and
not recorded (``{"records", ...}``), numbers that were lost (see above), capture on or off (``{"state", ...}``)."""

CURVE: Final = 1
UNIX: Final = 2
WEBSOCKET: Final = 3
PLAIN: Final = 4
INPROC: Final = 5
OTHER: Final = 6
"""A transport that another package brings: a reader names it by the scheme of the peer's address."""
TRANSPORT_NAMES: Final = {
    0: "none",
    CURVE: "curve",
    UNIX: "unix",
    WEBSOCKET: "websocket",
    PLAIN: "plain",
    INPROC: "inproc",
    OTHER: "other",
}

IN: Final = 0
OUT: Final = 1
DENIED: Final = 2
DIRECTION_NAMES: Final = {IN: "in", OUT: "out", DENIED: "denied"}
STRIPPED: Final = 0x80
"""Added to ``direction``: the payload (or the parts of the wire) was left out of the body."""

TYPE_NAMES: Final = {1: "request", 2: "response", 4: "event", 8: "control"}
"""Of PROTO's third byte."""

OVERFLOW16: Final = 0xFFFF
"""Offset or length that does not fit: walk the parts of the body instead."""
OVERFLOW8: Final = 0xFF
"""The same for an origin's length and for the number of routes; reason 255 is an errno above 254."""


def padded(size: int) -> int:
    """``size`` rounded up to a multiple of 8."""
    return size + -size % ALIGN
