"""What a column is, and the entries of some blocks at once: fields as arrays, checked; overflows walked (numpy)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broker.errors import DecodeError
from broker.journal.layout import DICTIONARY, FLUX, HEADER_BYTES, OUT, OVERFLOW8, OVERFLOW16, STRIPPED
from broker.journal.reading.blocks import Block
from broker.journal.reading.bodies import located
from broker.journal.reading.peers import Peers
from broker.wire.message import EVENT

Array = NDArray[Any]


class Text(NamedTuple):
    """Strings (or bytes) that stand in ``data``: of row i ``lengths[i]`` bytes at ``starts[i]``; neither sorted nor
    adjacent.
    """

    starts: Array
    """int64."""
    lengths: Array
    """int64; 0 where a row is null."""
    data: memoryview
    valid: Array | None = None
    """bool, False where a row is null; None: no row is."""

    def value(self, row: int) -> str | None:
        """One row's string."""
        raw = self.raw(row)
        return None if raw is None else raw.decode("utf-8", "surrogateescape")

    def raw(self, row: int) -> bytes | None:
        """One row's bytes."""
        if self.valid is not None and not self.valid[row]:
            return None
        start = int(self.starts[row])
        return bytes(self.data[start : start + int(self.lengths[row])])


class Coded(NamedTuple):
    """Strings out of a small set: row i is ``values[codes[i]]``; a value of None is null."""

    codes: Array
    """Unsigned or signed integers, never negative."""
    values: Sequence[str | None]

    def value(self, row: int) -> str | None:
        """One row's string."""
        return self.values[int(self.codes[row])]


class Nullable(NamedTuple):
    """Numbers of which some are null: ``values[i]`` counts where ``valid[i]``."""

    values: Array
    valid: Array

    def value(self, row: int) -> int | None:
        """One row's number."""
        return int(self.values[row]) if self.valid[row] else None


Column = Array | Text | Coded | Nullable


def signed(words: NDArray[np.uint64]) -> Array:
    """The same words as int64."""
    values: Array = words.view(np.int64)
    return values


class Entries:
    """The entries of some blocks: fields, checked, and where topic and origin stand.

    Raises:
        Damaged: an entry is wrong. ValueError: blocks of several segments.
    """

    def __init__(self, blocks: Sequence[Block], peers: Peers) -> None:
        if len({block.segment.path for block in blocks}) > 1:
            raise ValueError("blocks of several segments in one batch")
        self._blocks = [block for block in blocks if block.count]
        self._peers = peers
        self._counts = [block.count for block in self._blocks]
        bases, self._data = _bodies(self._blocks)
        self._words: NDArray[np.uint64] = _transposed(self._blocks, sum(self._counts))
        self._swapped: dict[int, NDArray[np.uint64]] = {}
        self._kept: NDArray[np.bool_] | None = None
        kinds = self._byte(3, 4)
        self._body_at, self._body_len = self._low(1), self._high(1)
        self._check_bodies()
        self._body_at += self._per_block(bases)
        if len(kinds) and int(kinds.max()) == DICTIONARY:
            for block in self._blocks:
                peers.learn(block)
            self._kept = kinds != DICTIONARY
            self._words = np.ascontiguousarray(self._words[:, self._kept])
            self._body_at, self._body_len = self._body_at[self._kept], self._body_len[self._kept]
        self._n = self._words.shape[1]
        self._all_flux = self._n == 0 or bool((self._kinds == FLUX).all())
        self._place()

    # -- words -----------------------------------------------------------------------------------

    def _byte(self, word: int, byte: int) -> Array:
        return np.ascontiguousarray(self._words[word].view("u1")[byte::8])

    def _half(self, word: int, half: int) -> Array:
        values: Array = self._words[word].view("<u2")[half::4].astype(np.int64)
        return values

    def _low(self, word: int) -> Array:
        return signed(self._words[word] & np.uint64(0xFFFFFFFF))

    def _high(self, word: int) -> Array:
        return signed(self._words[word] >> np.uint64(32))

    def _per_block(self, values: Sequence[int]) -> Any:
        """One value a block -> one a row as it was in the entries; a single number where there is one block."""
        if len(values) == 1:
            return np.int64(values[0])
        return np.repeat(np.array(values, np.int64), self._counts)

    # -- checks and places -----------------------------------------------------------------------

    def _check_bodies(self) -> None:
        """Every body must lie within the bodies of its block."""
        if not self._blocks:
            return
        ends = self._body_at + self._body_len
        limits = self._per_block([block.bodies_len for block in self._blocks])
        if int(ends.max()) > int(np.min(limits)) and (wrong := ends > limits).any():
            row = int(wrong.argmax())
            block, index = self._where(row)
            text = f"body of {self._body_len[row]} bytes at {self._body_at[row]}"
            raise block.damaged(f"record {index} of the block: {text}, the block has {block.bodies_len}")

    def _where(self, entry: int) -> tuple[Block, int]:
        """The block of an entry, and its number there."""
        for block in self._blocks:
            if entry < block.count:
                return block, entry
            entry -= block.count
        raise IndexError(entry)

    def _wrong(self, row: int, why: str) -> Exception:
        """The error about a row."""
        entry = row if self._kept is None else int(np.flatnonzero(self._kept)[row])
        block, index = self._where(entry)
        return block.damaged(f"record {index} of the block: {why}")

    def _place(self) -> None:
        """Where topic and origin stand in the bodies, rows that overflow walked."""
        self._topic_at, self._topic_len = self._half(2, 2), self._half(2, 3)
        self._origin_at = self._half(3, 0)
        self._origin_len = self._byte(3, 2).astype(np.int64)
        self._routes = self._byte(3, 3).astype(np.int32)
        if self._n == 0:
            return
        wide = (self._topic_at, self._topic_len, self._origin_at)
        if max(int(each.max()) for each in wide) == OVERFLOW16 or (
            max(int(self._origin_len.max()), int(self._routes.max())) == OVERFLOW8
        ):
            self._walk_overflows(wide)
        for what, at, size in (
            ("topic", self._topic_at, self._topic_len),
            ("origin", self._origin_at, self._origin_len),
        ):
            wrong = at + size > self._body_len
            if wrong.any():
                row = int(wrong.argmax())
                text = f"{what} of {size[row]} bytes at {at[row]}, the body has {self._body_len[row]}"
                raise self._wrong(row, text)

    def _walk_overflows(self, wide: Sequence[Array]) -> None:
        over = (self._origin_len == OVERFLOW8) | (self._routes == OVERFLOW8)
        for each in wide:
            over |= each == OVERFLOW16
        flags = self._flag_bytes
        for row in np.flatnonzero(over).tolist():
            try:
                place = located(self._body(row), int(self._kinds[row]), int(flags[row]))
            except DecodeError as error:
                raise self._wrong(row, str(error)) from None
            self._topic_at[row], self._topic_len[row], self._origin_at[row] = place[:3]
            self._origin_len[row], self._routes[row] = place[3:]

    def _body(self, row: int) -> memoryview:
        at = int(self._body_at[row])
        return self._data[at : at + int(self._body_len[row])]

    # -- what several columns are made of ----------------------------------------------------------

    @cached_property
    def _kinds(self) -> Array:
        return self._byte(3, 4)

    @cached_property
    def _ways(self) -> Array:
        """Directions, STRIPPED still in them."""
        return self._byte(3, 6)

    @cached_property
    def _types(self) -> Array:
        return self._byte(5, 2)

    @cached_property
    def _flag_bytes(self) -> Array:
        return self._byte(5, 3)

    @cached_property
    def _flux(self) -> Array:
        flux: Array = self._kinds == FLUX
        return flux

    @cached_property
    def _others(self) -> list[int]:
        """Rows that are not flux."""
        return [] if self._all_flux else np.flatnonzero(~self._flux).tolist()

    @cached_property
    def _counting(self) -> Array:
        """Rows whose ``via`` is a number of deliveries."""
        ways = self._ways & np.uint8(0xFF ^ STRIPPED)
        counting: Array = (self._types == EVENT) & (ways == OUT) & self._flux
        return counting

    @cached_property
    def _stripped(self) -> Array | None:
        """Rows without their payload; None: there are none."""
        stripped = self._ways >= STRIPPED
        return stripped if stripped.any() else None

    def _big(self, word: int, high: bool) -> Array:
        """Half of a word of PROTO, which is big-endian; ``high`` is the one that stands first."""
        if (swapped := self._swapped.get(word)) is None:
            swapped = self._swapped[word] = self._words[word].byteswap()
        return signed(swapped >> np.uint64(32) if high else swapped & np.uint64(0xFFFFFFFF))

    def _of_flux(self, values: Array) -> Column:
        return values if self._all_flux else Nullable(values, self._flux)

    def _constant(self, value: str) -> Coded:
        return Coded(np.zeros(self._n, np.uint8), (value,))


def _transposed(blocks: Sequence[Block], rows: int) -> NDArray[np.uint64]:
    """The eight words of every entry: an array for each word."""
    words = np.empty((8, rows), np.uint64)
    at = 0
    for block in blocks:
        words[:, at : at + block.count] = np.frombuffer(block.entries, "<u8").reshape(-1, 8).T
        at += block.count
    return words


def _bodies(blocks: Sequence[Block]) -> tuple[list[int], memoryview]:
    """Where the bodies of each block begin in one buffer: the window all of them were read into, or a copy."""
    if not blocks:
        return [0], memoryview(b"")
    if all(block.codec == 0 and block.data.obj is blocks[0].data.obj for block in blocks):
        at = [block.window_at + HEADER_BYTES + HEADER_BYTES * block.count for block in blocks]
        for block in blocks:
            block.bodies()  # checks that what is stored has the size announced
        return at, memoryview(blocks[0].data.obj)
    bodies = [block.bodies() for block in blocks]
    bases = [0]
    for each in bodies[:-1]:
        bases.append(bases[-1] + len(each))
    return bases, memoryview(bodies[0] if len(bodies) == 1 else b"".join(bodies))
