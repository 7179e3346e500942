"""What a column is: an array of numbers, or one of these three (numpy)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
