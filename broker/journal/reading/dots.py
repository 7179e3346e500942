"""Where the first period stands in each of many strings, eight bytes at a time (numpy)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_DOTS: Final = np.uint64(0x2E2E2E2E2E2E2E2E)
_ONES: Final = np.uint64(0x0101010101010101)
_TOPS: Final = np.uint64(0x8080808080808080)
_ONE: Final = np.uint64(1)
_WORD: Final = 8
_ROUNDS: Final = 4
"""Services longer than eight times this are looked for one by one: there are hardly any."""


def first_dots(data: memoryview, starts: NDArray[Any], lengths: NDArray[Any]) -> NDArray[Any]:
    """Bytes in front of the first period of each string; the string's length where it has none.

    Args:
        data: what the strings stand in.
        starts: where each begins, int64.
        lengths: int64; none runs past the end of ``data``.
    """
    given = starts
    if len(data) < _WORD or not len(starts):
        return _one_by_one(data, starts, lengths, range(len(starts)), lengths.copy())
    words: NDArray[Any] = np.ndarray((len(data) - _WORD + 1,), "<u8", data, 0, (1,))  # one at every byte
    last = len(data) - _WORD
    one_by_one: list[int] = []
    if int(starts.max()) > last:
        one_by_one = np.flatnonzero(starts > last).tolist()
        starts = np.minimum(starts, last)
    first = _dot_in(words[starts])
    found = np.minimum(lengths, first)
    rest = np.flatnonzero((first == _WORD) & (lengths > _WORD))
    for turn in range(1, _ROUNDS):
        if not len(rest):
            break
        at = starts[rest] + _WORD * turn
        if int(at.max()) > last:
            one_by_one += rest[at > last].tolist()
            np.minimum(at, last, out=at)
        first = _dot_in(words[at])
        long = lengths[rest]
        found[rest] = np.minimum(long, first + _WORD * turn)
        rest = rest[(first == _WORD) & (long > _WORD * (turn + 1))]
    one_by_one += rest.tolist()
    return _one_by_one(data, given, lengths, one_by_one, found) if one_by_one else found


def _dot_in(words: NDArray[Any]) -> NDArray[Any]:
    """Index of the first period in each word of eight bytes, 8 where there is none.

    The lowest byte that is zero is found exactly by ``(x - 1s) & ~x & tops``; bytes above it may be wrong.
    """
    x = words ^ _DOTS
    zero = x - _ONES
    np.invert(x, out=x)
    zero &= x
    zero &= _TOPS
    np.negative(zero, out=x)
    zero &= x
    zero -= _ONE  # the bits below the lowest one set; all 64 where there is none
    count = _count(zero)
    count >>= 3
    return count


def _count(words: NDArray[Any]) -> NDArray[Any]:
    if hasattr(np, "bitwise_count"):  # from numpy 2.0 on
        bits: NDArray[Any] = np.bitwise_count(words).astype(np.int64)
    else:
        octets = words.view(np.uint8).reshape(-1, 8)
        bits = np.unpackbits(octets, axis=1).sum(axis=1, dtype=np.int64)
    return bits


def _one_by_one(
    data: memoryview, starts: NDArray[Any], lengths: NDArray[Any], rows: Any, found: NDArray[Any]
) -> NDArray[Any]:
    for row in rows:
        start, length = int(starts[row]), int(lengths[row])
        at = bytes(data[start : start + length]).find(b".")
        found[row] = length if at < 0 else at
    return found
