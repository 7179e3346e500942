"""Records with named fields, in plain Python, and the numbers that are missing between them (``gap`` records).

The fields are the columns that ``columns`` makes.

::

    for record in records(directory, since_ns=t0):
        print(record.seq, record.peer, record.topic, record.payload)
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterator
from itertools import groupby
from struct import Struct as Layout
from typing import Final, Literal

import msgspec

from broker.errors import DecodeError
from broker.journal.layout import (
    BOTH_ENDS,
    CAPTURES,
    DICTIONARY,
    DIRECTION_NAMES,
    ENTRY,
    FLUX,
    GAP,
    HEADER_BYTES,
    KIND_AT,
    KIND_NAMES,
    OTHER,
    OUT,
    STATE,
    STRIPPED,
    TRANSPORT_NAMES,
    TYPE_NAMES,
)
from broker.journal.reading.blocks import Block, Damage, Damaged, SegmentFile
from broker.journal.reading.bodies import Place, located, overflows, part_at, wire_len
from broker.journal.reading.peers import Peers
from broker.journal.reading.segments import Segment, is_folder, segments
from broker.wire.decoding import from_parts
from broker.wire.message import EVENT, PAYLOAD, REQUEST, RESPONSE, Message
from broker.wire.parts import split_parts

_WORDS: Final = Layout(">BBBBIIII")
"""PROTO: magic, version, type, flags, userid, rolemask, two words (RFC 3, "Common Message Format")."""
UNNUMBERED_SEQ: Final = -1
"""Number of a record that has none."""

OnDamage = Callable[[Damage], None]


class Record(msgspec.Struct, kw_only=True, gc=False):
    """One record. ``body`` is its parts as they stand in the journal."""

    seq: int
    ts_ns: int
    rank: int
    writer: str
    run: str
    capture: str
    """in, both: what its writer was told to record."""
    peer: str
    """Who sent it, or whom it was for (OUT); empty for nobody, ``#NUMBER`` where the journal does not say."""
    peer_id: int
    role: str
    """Of that peer: client, child, parent, own, web, worker, server."""
    via: str
    via_id: int
    via_role: str
    transport: str
    direction: str
    reason: int
    kind: str
    type: str | None
    flags: int | None
    userid: int | None
    claimed: int
    rolemask: int | None
    nodeid: int | None
    """Of a request."""
    errnum: int | None
    """Of a response."""
    event_seq: int | None
    """Number of an event."""
    matchtag: int | None
    topic: str
    service: str
    origin: str | None
    routes: int
    payload_len: int
    wire_len: int
    delivered: int | None
    """Deliveries of an event that went out."""
    detail: str | None
    """The JSON of a record that is not flux."""
    stripped: bool
    """The payload was left out."""
    body: bytes

    def parts(self) -> list[bytes]:
        """The parts of the body."""
        return split_parts(self.body)

    @property
    def payload(self) -> bytes | None:
        """The payload of a Flux message, the encoded parts of the wire of another record.

        None where there is none, or it was left out.
        """
        if self.stripped:
            return None
        if self.kind != KIND_NAMES[FLUX]:
            at, size = part_at(self.body, 0)
            at, size = part_at(self.body, at + size)
            return self.body[at + size :] or None
        return self.parts()[-2] if (self.flags or 0) & PAYLOAD else None

    def message(self) -> Message:
        """The Flux message; where the payload was left out, without one.

        Raises:
            DecodeError: it is none, or its body is damaged.
        """
        if self.kind != KIND_NAMES[FLUX]:
            raise DecodeError(f"record {self.seq} is of kind {self.kind}, expected flux")
        parts = self.parts()
        if self.stripped and parts and len(parts[-1]) == _WORDS.size:
            proto = parts[-1]
            parts[-1] = proto[:3] + bytes([proto[3] & ~PAYLOAD]) + proto[4:]
        return from_parts(parts)


def records_of(block: Block, peers: Peers) -> Iterator[Record]:
    """The records of a block in order; DICTIONARY records are learned, not given out.

    Raises:
        Damaged: the block's CRC is right and an entry is wrong nevertheless.
    """
    peers.learn(block)
    bodies = block.bodies()
    first = block.first_seq
    for index, fields in enumerate(ENTRY.iter_unpack(block.entries)):
        seq = first + index if block.numbered else UNNUMBERED_SEQ
        try:
            if fields[1] + fields[2] > len(bodies):
                text = f"body of {fields[2]} bytes at {fields[1]}, the block has {len(bodies)}"
                raise DecodeError(text)
            if fields[9] != DICTIONARY:
                yield _record(block, bodies, fields, seq, peers)
        except DecodeError as error:
            raise block.damaged(f"record {index} of the block: {error}") from None


def _record(
    block: Block, bodies: bytes | memoryview, fields: tuple[int, ...], seq: int, peers: Peers
) -> Record:
    ts, offset, length, peer, topic_at, topic_len, origin_at, origin_len, routes, kind = fields[:10]
    transport, direction, reason, payload_len, claimed, proto, via = fields[10:]
    body = bytes(bodies[offset : offset + length])
    flux, stripped = kind == FLUX, bool(direction & STRIPPED)
    _magic, _version, kind_of, flags, userid, rolemask, word, matchtag = _WORDS.unpack(proto)  # type: ignore[arg-type]
    place = Place(topic_at, topic_len, origin_at, origin_len, routes)
    if overflows(*place):
        place = located(body, kind, flags)
    check(place, length)
    topic = _text(body, place.topic_at, place.topic_len)
    detail = None if flux else detail_of(body, place)
    segment, way = block.segment, direction & ~STRIPPED
    other_end = 0 if _counts(flux, kind_of, way) else via
    return Record(
        seq=seq,
        ts_ns=ts,
        rank=block.rank,
        writer=segment.writer,
        run=segment.run,
        capture=CAPTURES[bool(segment.flags & BOTH_ENDS)],
        peer=peers.name(segment, peer),
        peer_id=peer,
        role=peers.role(segment, peer),
        via=peers.name(segment, other_end),
        via_id=via,
        via_role=peers.role(segment, other_end),
        transport=peers.scheme(segment, peer)
        if transport == OTHER
        else TRANSPORT_NAMES.get(transport, f"#{transport}"),
        direction=DIRECTION_NAMES.get(way, f"#{way}"),
        reason=reason,
        kind=KIND_NAMES.get(kind, f"#{kind}"),
        type=TYPE_NAMES.get(kind_of, f"#{kind_of}") if flux else None,
        flags=flags if flux else None,
        userid=userid if flux else uid_of(detail),
        claimed=claimed,
        rolemask=rolemask if flux else None,
        nodeid=word if flux and kind_of == REQUEST else None,
        errnum=word if flux and kind_of == RESPONSE else None,
        event_seq=word if flux and kind_of == EVENT else None,
        matchtag=matchtag if flux else None,
        topic=topic,
        service=topic.partition(".")[0],
        origin=_text(body, place.origin_at, place.origin_len) if place.origin_len else None,
        routes=place.routes,
        payload_len=payload_len,
        wire_len=wire_len(kind, flags, length, payload_len, stripped),
        delivered=via if _counts(flux, kind_of, way) else None,
        detail=detail,
        stripped=stripped,
        body=body,
    )


def _counts(flux: bool, kind: int, direction: int) -> bool:
    """Whether ``via`` is a number of deliveries."""
    return flux and kind == EVENT and direction == OUT


def check(place: Place, length: int) -> None:
    """Accept a place within a body of ``length`` bytes.

    Raises:
        DecodeError: topic or origin end behind it.
    """
    if place.topic_at + place.topic_len > length:
        raise DecodeError(f"topic of {place.topic_len} bytes at {place.topic_at}, the body has {length}")
    if place.origin_at + place.origin_len > length:
        raise DecodeError(f"origin of {place.origin_len} bytes at {place.origin_at}, the body has {length}")


def _text(body: bytes, at: int, size: int) -> str:
    return body[at : at + size].decode("utf-8", "surrogateescape")


def detail_of(body: bytes | memoryview, place: Place) -> str:
    """The JSON of a record that is not flux; bytes that are not UTF-8 are replaced.

    Raises:
        DecodeError: the part is missing or runs past the end.
    """
    at, size = part_at(body, place.topic_at + place.topic_len)
    return bytes(body[at : at + size]).decode("utf-8", "replace")


class _Who(msgspec.Struct, gc=False):
    uid: object = None


_WHO: Final = msgspec.json.Decoder(_Who)
_USERID_LIMIT: Final = 1 << 63


def uid_of(detail: str | bytes | None) -> int | None:
    """``uid`` in the JSON of a record that is not flux; None where there is no number."""
    if detail is None:
        return None
    try:
        uid = _WHO.decode(detail).uid
    except (msgspec.DecodeError, UnicodeError):
        return None
    return uid if type(uid) is int and 0 <= uid < _USERID_LIMIT else None


# -- many ----------------------------------------------------------------------------------------


def records(
    where: str | os.PathLike[str],
    since_ns: int | None = None,
    until_ns: int | None = None,
    *,
    writer: str | None = None,
    peers: Peers | None = None,
    on_damage: OnDamage | None = None,
) -> Iterator[Record]:
    """The records of a segment or of a directory, those of several writers merged by time.

    Args:
        where: a segment or a directory.
        since_ns: ns since 1970, the first that counts; None: from the begin.
        until_ns: the first that counts no more; None: to the end.
        writer: of this one only.
        peers: who is known; grows.
        on_damage: called with each damage, which is stepped over; None raises it.

    Raises:
        Damaged: see ``on_damage``.
        ConfigError: no such directory, or a codec's library is not installed.
        FileNotFoundError: no such segment.
    """
    known = Peers() if peers is None else peers
    files = segments(where, writer) if is_folder(os.fspath(where)) else [Segment(where)]
    streams = [
        _of_writer(list(some), since_ns, until_ns, known, on_damage)
        for _writer, some in groupby(files, key=lambda segment: segment.writer)
    ]
    return heapq.merge(*streams, key=lambda record: record.ts_ns)


def _of_writer(
    found: list[Segment], since_ns: int | None, until_ns: int | None, peers: Peers, on_damage: OnDamage | None
) -> Iterator[Record]:
    for segment in found:
        try:
            file = SegmentFile(segment.path)
        except FileNotFoundError:
            continue  # deleted since the listing
        with file:
            for block in file.salvage(HEADER_BYTES, file.size()):
                if isinstance(block, Damage):
                    _report(block, on_damage)
                    continue
                try:
                    peers.learn(block)
                    if _misses(block, since_ns, until_ns):
                        continue
                    for record in records_of(block, peers):
                        if (since_ns is None or record.ts_ns >= since_ns) and (
                            until_ns is None or record.ts_ns < until_ns
                        ):
                            yield record
                except Damaged as error:
                    _report(error.damage, on_damage)


def _misses(block: Block, since_ns: int | None, until_ns: int | None) -> bool:
    return (since_ns is not None and block.last_ts < since_ns) or (
        until_ns is not None and block.first_ts >= until_ns
    )


def _report(damage: Damage, on_damage: OnDamage | None) -> None:
    if on_damage is None:
        raise Damaged(*damage)
    on_damage(damage)


_GAP: Final = GAP.encode()
_STATE: Final = bytes([STATE])

Why = Literal["counted", "damaged", "missing segment", "unknown"]


class Gap(msgspec.Struct):
    """Numbers ``first`` to ``last`` of one writer, whose records are not there."""

    writer: str
    first: int
    last: int
    cause: str
    """In words."""
    why: Why
    """``counted``: the writer says so. ``damaged``: they stood in a damaged block. ``missing segment``: between two
    segments. ``unknown``: anything else.
    """


def gaps_of(block: Block) -> dict[int, Gap]:
    """The ``gap`` records of a block by their number.

    Raises:
        Damaged: the bodies do not unpack, or such a record is not what it should be.
    """
    entries, causes = block.entries, {}
    kinds = bytes(entries[KIND_AT::HEADER_BYTES])
    index = kinds.find(_STATE) if block.numbered else -1
    while index >= 0:
        fields = ENTRY.unpack_from(entries, index * HEADER_BYTES)
        body = block.bodies()[fields[1] : fields[1] + fields[2]]
        seq = block.first_seq + index
        try:
            gap = _gap(block.segment.writer, seq, body)
        except (DecodeError, UnicodeDecodeError, msgspec.MsgspecError) as error:
            raise block.damaged(f"record {index} of the block: {error}") from None
        if gap is not None:
            causes[seq] = gap
        index = kinds.find(_STATE, index + 1)
    return causes


class _Told(msgspec.Struct):
    """The JSON of a ``gap`` record."""

    first: int
    last: int
    cause: str | int = "unknown"


def _gap(writer: str, seq: int, body: bytes | memoryview) -> Gap | None:
    at, size = part_at(body, 0)
    if body[at : at + size] != _GAP:
        return None
    at, size = part_at(body, at + size)
    facts = msgspec.json.decode(body[at : at + size], type=_Told)
    first = min(seq, max(0, seq - (facts.last - facts.first)))  # on disk: its own number is the last one lost
    return Gap(writer, first, seq, str(facts.cause), "counted")
