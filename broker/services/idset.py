"""Sets of ranks as text: ``0-3,7`` (RFC 22, "Idset String Representation").

An empty set is the empty string. Brackets around the whole are accepted, as deployed software does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.errors import ProtocolError

IDS_MAX: Final = 1 << 22
"""Ids that one text may name, when the caller knows no better limit: a short text can name four thousand million."""


def encode(ids: Iterable[int]) -> str:
    """The shortest text for ``ids``: ascending, runs as ranges.

    >>> encode([7, 0, 1, 2])
    '0-2,7'
    """
    runs: list[str] = []
    first = last = -2
    for number in [*sorted(set(ids)), -2]:
        if number == last + 1:
            last = number
            continue
        if first >= 0:
            runs.append(str(first) if first == last else f"{first}-{last}")
        first = last = number
    return ",".join(runs)


def decode(text: str, below: int = IDS_MAX) -> set[int]:
    """The ids that ``text`` names.

    Args:
        text: as ``encode`` writes it, or with brackets around it.
        below: no id may be as large; usually the size of the tree.

    Raises:
        ProtocolError: EPROTO; not an idset, not ascending, or an id that is not below ``below``.

    >>> sorted(decode("[0-2,7]"))
    [0, 1, 2, 7]
    """
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    ids: set[int] = set()
    last = -1
    for run in inner.split(",") if inner else ():
        low, high = _run(run)
        if not last < low <= high < below:
            raise ProtocolError(f"idset: {run[:64]!r} is out of order or not below {below}")
        ids.update(range(low, high + 1))
        last = high
    return ids


def _run(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    numbers = (low, high) if dash else (low, low)
    if not all(number.isascii() and number.isdigit() and len(number) <= 10 for number in numbers):
        raise ProtocolError(f"idset: {text[:64]!r} is neither a number nor a range")
    return int(numbers[0]), int(numbers[1])
