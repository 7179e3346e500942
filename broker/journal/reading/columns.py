"""Blocks as numpy columns, whole blocks at a time.

::

    for some in batches(walk(path)):
        columns = decode(some, peers)      # {"seq": ndarray, "topic": Text, "kind": Coded, "flags": Nullable, ...}

Theory of operation. Entries are transposed once, eight words of 8 bytes a record, so that every field is a slice of
contiguous memory; text is never copied: a ``Text`` points into the bodies. Fields of an entry that could not hold their
value send their rows, and no others, through the walk of ``bodies``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from broker.errors import DecodeError
from broker.journal.layout import (
    BOTH_ENDS,
    CAPTURES,
    DIRECTION_NAMES,
    KIND_NAMES,
    OTHER,
    STRIPPED,
    TRANSPORT_NAMES,
    TYPE_NAMES,
)
from broker.journal.reading.blocks import Block
from broker.journal.reading.bodies import PROTO_PART_BYTES, part_at
from broker.journal.reading.entries import Array, Coded, Column, Entries, Nullable, Text, signed
from broker.journal.reading.peers import Peers
from broker.journal.reading.records import UNNUMBERED_SEQ, uid_of
from broker.wire.message import EVENT, PAYLOAD, REQUEST, RESPONSE

__all__ = ["COLUMNS", "Array", "Coded", "Column", "Nullable", "Text", "batches", "decode", "rows_of"]

BATCH_ROWS: Final = 16_384
"""Blocks are put together up to so many records: with fewer Python takes longer between arrays, with more the columns
no longer fit the cache.
"""


_KEPT_BYTES: Final = 16 << 20


def _keep_memory() -> None:
    """Let the C library keep what arrays give back, twice ``_KEPT_BYTES`` at most.

    glibc takes the largest piece it was ever given back as the measure of what is worth keeping; until then each batch
    gives its memory to the kernel and has it cleared again: a sixth of the time. Nothing is touched here.
    """
    np.empty(_KEPT_BYTES, np.uint8)


_keep_memory()


COLUMNS: Final = (
    "seq", "ts", "ts_ns", "rank", "writer", "run", "capture", "peer", "peer_id", "role", "via", "via_id",
    "via_role", "transport", "direction", "reason", "kind", "type", "flags", "userid", "claimed", "rolemask", "nodeid",
    "errnum", "event_seq", "matchtag", "topic", "origin", "routes", "payload_len", "wire_len", "delivered",
    "detail", "dt",
)  # fmt: skip
"""Names in order; ``payload`` follows where it is asked for.

Numbers are int64 (reason, flags, routes: int32); ``ts`` is microseconds and ``dt`` days (int32) since 1970, UTC."""


def batches(blocks: Iterable[Block], rows: int = BATCH_ROWS) -> Iterator[list[Block]]:
    """Blocks of one segment put together to lists of about ``rows`` records, in order."""
    waiting: list[Block] = []
    count = 0
    for block in blocks:
        if waiting and (count + block.count > rows or block.segment is not waiting[0].segment):
            yield waiting
            waiting, count = [], 0
        waiting.append(block)
        count += block.count
    if waiting:
        yield waiting


def decode(
    blocks: Sequence[Block], peers: Peers, *, payload: bool = False, wanted: Collection[str] | None = None
) -> dict[str, Column]:
    """The records of ``blocks`` as columns; DICTIONARY records are learned and are no rows.

    Args:
        blocks: of one segment, in order.
        peers: who is known; grows. Names that stand in front of these blocks only must be known already.
        payload: add the column ``payload`` (bytes): of a Flux message the payload, of another record the encoded parts
            of the wire; null where there is none or it was left out.
        wanted: names of columns, others are not made; None: all.

    Raises:
        Damaged: a block's CRC is right and an entry is wrong nevertheless, or bodies do not unpack; no row is given.
        ConfigError: the library for a codec is not installed.
        ValueError: blocks of several segments, or an unknown column.
    """
    names = [*COLUMNS, "payload"] if payload else list(COLUMNS)
    if wanted is not None:
        if unknown := set(wanted) - set(names):
            raise ValueError(f"column {min(unknown)!r}, expected some of {', '.join(names)}")
        names = [name for name in names if name in wanted]
    batch = Batch(blocks, peers)
    return {name: getattr(batch, name) for name in names}


def rows_of(columns: dict[str, Column]) -> int:
    """How many rows."""
    for column in columns.values():
        return len(column if isinstance(column, np.ndarray) else column[0])
    return 0


_DAY_NS: Final = 86_400 * 10**9
_CODE_WINDOW: Final = 4096
"""Peer numbers of a batch that span no more are looked up as a window; others one by one."""


class Batch(Entries):
    """The columns of some blocks; each is an attribute of its name, made when it is asked for."""

    @cached_property
    def seq(self) -> Array:
        """Numbers; -1 where a block has none."""
        every, at = np.empty(sum(self._counts), np.int64), 0
        for block in self._blocks:
            first = block.first_seq
            every[at : at + block.count] = (
                np.arange(first, first + block.count) if block.numbered else UNNUMBERED_SEQ
            )
            at += block.count
        return every if self._kept is None else every[self._kept]

    @cached_property
    def ts_ns(self) -> Array:
        """Times."""
        return signed(self._words[0])

    @property
    def ts(self) -> Array:
        """Microseconds, rounded down."""
        return self.ts_ns // 1000

    @property
    def dt(self) -> Array:
        """Days, rounded down."""
        return (self.ts_ns // _DAY_NS).astype(np.int32)

    @property
    def rank(self) -> Array:
        """Of the block."""
        ranks = [block.rank for block in self._blocks]
        if len(set(ranks)) <= 1:
            return np.full(self._n, ranks[0] if ranks else 0, np.int64)
        every: Array = self._per_block(ranks)
        return every if self._kept is None else every[self._kept]

    @property
    def writer(self) -> Coded:
        """Of the segment."""
        return self._constant(self._blocks[0].segment.writer if self._blocks else "")

    @property
    def run(self) -> Coded:
        """Of the segment."""
        return self._constant(self._blocks[0].segment.run if self._blocks else "")

    @property
    def capture(self) -> Coded:
        """in, both: of the segment."""
        return self._constant(CAPTURES[bool(self._blocks and self._blocks[0].segment.flags & BOTH_ENDS)])

    @cached_property
    def peer_id(self) -> Array:
        """Numbers of peers."""
        return self._low(2)

    @cached_property
    def via_id(self) -> Array:
        """Numbers of the other ends, or of deliveries."""
        return self._high(7)

    @property
    def peer(self) -> Coded:
        """Names of peers."""
        return self._texts(self._senders, "name")

    @property
    def role(self) -> Coded:
        """Their roles."""
        return self._texts(self._senders, "role")

    @property
    def via(self) -> Coded:
        """Names of the other ends."""
        return self._texts(self._other_ends, "name")

    @property
    def via_role(self) -> Coded:
        """Their roles."""
        return self._texts(self._other_ends, "role")

    @cached_property
    def _senders(self) -> tuple[Array, range | list[int]]:
        return self._peer_codes(self.peer_id)

    @cached_property
    def _other_ends(self) -> tuple[Array, range | list[int]]:
        """Without those where the field counts deliveries."""
        if (self._ways & 1).any() and (counting := self._counting).any():
            return self._peer_codes(np.where(counting, 0, self.via_id))
        return self._peer_codes(self.via_id)

    def _peer_codes(self, numbers: Array) -> tuple[Array, range | list[int]]:
        """Numbers of peers as codes, and which numbers these stand for: a window where they lie near each other."""
        if self._n == 0:
            return numbers, [0]
        low, high = int(numbers.min()), int(numbers.max())
        if high - low < _CODE_WINDOW:
            window = self._peers.window(self._blocks[0].segment, low, high)
            return numbers - window.start if window.start else numbers, window
        distinct, codes = np.unique(numbers, return_inverse=True)
        return codes, distinct.tolist()

    def _texts(self, coded: tuple[Array, range | list[int]], what: str) -> Coded:
        codes, numbers = coded
        segment = self._blocks[0].segment if self._blocks else None
        return Coded(codes, ("",) if segment is None else self._peers.texts(segment, numbers, what))

    @property
    def transport(self) -> Coded:
        """Names of transports; of one that is no part of this package, the scheme of the peer's address."""
        codes = self._byte(3, 5)
        named = _by_number(codes, TRANSPORT_NAMES)
        foreign = codes == OTHER
        if not foreign.any():
            return named
        segment, values = self._blocks[0].segment, list(named.values)
        peers, places = np.unique(self.peer_id[foreign], return_inverse=True)
        schemes = [self._peers.scheme(segment, number) for number in peers.tolist()]
        distinct = sorted(set(schemes))
        wide = codes.astype(np.int32)
        wide[foreign] = np.array([len(values) + distinct.index(scheme) for scheme in schemes])[places]
        return Coded(wide, [*values, *distinct])

    @property
    def direction(self) -> Coded:
        """in, out, denied."""
        return _by_number(self._ways & np.uint8(0xFF ^ STRIPPED), DIRECTION_NAMES)

    @property
    def reason(self) -> Array:
        """The errno of what was denied."""
        return self._byte(3, 7).astype(np.int32)

    @property
    def kind(self) -> Coded:
        """flux, nfp, oslo, state."""
        return _by_number(self._kinds, KIND_NAMES)

    @property
    def type(self) -> Coded:
        """request, response, event."""
        if self._all_flux:
            return _by_number(self._types, TYPE_NAMES)
        named = _by_number(np.where(self._flux, self._types, np.uint8(0)), TYPE_NAMES)
        codes = np.where(self._flux, named.codes, np.uint16(len(named.values)))
        return Coded(codes, [*named.values, None])

    @property
    def flags(self) -> Column:
        """The flag byte."""
        return self._of_flux(self._flag_bytes.astype(np.int32))

    @property
    def userid(self) -> Column:
        """Of PROTO, or ``uid`` of the JSON."""
        values = self._big(5, high=False)
        if self._all_flux:
            return values
        valid = self._flux.copy()
        detail = self.detail
        for row in self._others:
            uid = uid_of(detail.raw(row))
            if uid is not None:
                values[row], valid[row] = uid, True
        return Nullable(values, valid)

    @property
    def claimed(self) -> Array:
        """Userid as it came."""
        return self._high(4)

    @property
    def rolemask(self) -> Column:
        """Roles as stamped."""
        return self._of_flux(self._big(6, high=True))

    @property
    def nodeid(self) -> Nullable:
        """Of requests."""
        return self._first_word(REQUEST)

    @property
    def errnum(self) -> Nullable:
        """Of responses."""
        return self._first_word(RESPONSE)

    @property
    def event_seq(self) -> Nullable:
        """Of events."""
        return self._first_word(EVENT)

    def _first_word(self, kind: int) -> Nullable:
        return Nullable(self._first_words, self._flux & (self._types == kind))

    @cached_property
    def _first_words(self) -> Array:
        return self._big(6, high=False)

    @property
    def matchtag(self) -> Column:
        """What pairs responses with requests."""
        return self._of_flux(self._big(7, high=True))

    @property
    def topic(self) -> Text:
        """Topics; empty where there is none."""
        return Text(self._body_at + self._topic_at, self._topic_len, self._data)

    @property
    def origin(self) -> Text:
        """The route next to the delimiter."""
        valid = self._origin_len > 0
        starts = self._body_at + self._origin_at
        return Text(starts, self._origin_len, self._data, None if valid.all() else valid)

    @property
    def routes(self) -> Array:
        """How many."""
        return self._routes

    @cached_property
    def payload_len(self) -> Array:
        """Bytes of the payload, kept or not."""
        return self._low(4)

    @property
    def wire_len(self) -> Array:
        """Bytes of the parts, payload included."""
        if self._stripped is None:
            return self._body_len
        sizes = self.payload_len + np.where(self.payload_len < 255, 1, 5)
        sizes = np.where((self._flag_bytes & PAYLOAD) > 0, sizes, 0)
        if not self._all_flux:
            sizes = np.where(self._flux, sizes, self.payload_len)
        whole: Array = self._body_len + np.where(self._stripped, sizes, 0)
        return whole

    @property
    def delivered(self) -> Nullable:
        """Deliveries of events that went out."""
        return Nullable(self.via_id, self._counting)

    @cached_property
    def detail(self) -> Text:
        """The JSON of records that are not flux."""
        starts, lengths = np.zeros(self._n, np.int64), np.zeros(self._n, np.int64)
        for row in self._others:
            try:
                at, size = part_at(self._body(row), int(self._topic_at[row] + self._topic_len[row]))
            except DecodeError as error:
                raise self._wrong(row, str(error)) from None
            starts[row], lengths[row] = self._body_at[row] + at, size
        valid = np.zeros(self._n, np.bool_) if self._all_flux else ~self._flux
        return Text(starts, lengths, self._data, valid)

    @property
    def payload(self) -> Text:
        """Payloads; of other records the encoded parts of the wire."""
        sizes = self.payload_len.copy()
        valid = self._flux & ((self._flag_bytes & PAYLOAD) > 0)
        if self._stripped is not None:
            valid &= ~self._stripped
        short = valid & (sizes + PROTO_PART_BYTES + 1 > self._body_len)
        if short.any():
            row = int(short.argmax())
            text = f"payload of {sizes[row]} bytes, the body has {self._body_len[row]}"
            raise self._wrong(row, text)
        ends = self._body_at + self._body_len
        starts = ends - PROTO_PART_BYTES - sizes
        detail = self.detail
        for row in self._others:
            starts[row] = detail.starts[row] + detail.lengths[row]
            sizes[row] = ends[row] - starts[row]
            stripped = self._stripped is not None and bool(self._stripped[row])
            valid[row] = sizes[row] > 0 and not stripped
        return Text(np.where(valid, starts, 0), np.where(valid, sizes, 0), self._data, valid)


def _by_number(codes: Array, names: dict[int, str]) -> Coded:
    """Codes as they stand in the journal, with as many names as they need; ``#NUMBER`` for one without."""
    top = int(codes.max()) if len(codes) else 0
    return Coded(codes, [names.get(number, f"#{number}") for number in range(top + 1)])
