"""Strict round robin over those who listen somewhere (pure).

Servers take turns, not nodes: each gets as much as every other, wherever it runs. There is one turn for each topic,
shared by calls and casts, and one for each server name that several listeners share; for notifications one for each
pool. A turn remembers whom it chose last and goes on behind it, so that listeners that come or go do not make it begin
anew.
"""

# compiled: mypyc

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Hashable, Sequence
from typing import Any, Final, Generic, TypeVar

TURNS_MAX: Final = 65_536
"""Turns remembered; beyond it all are forgotten, which costs an even distribution for a moment."""
_NOBODY: Final[frozenset[str]] = frozenset()

T = TypeVar("T", bound=tuple[Any, ...])


class _Turn(Generic[T]):
    """Attributes: ``among``: whom it was chosen from; ``at``: the position of the next one in it; ``last``: whom."""

    __slots__ = ("among", "at", "last")

    def __init__(self) -> None:
        self.among: Sequence[T] = ()
        self.at = 0
        self.last: tuple[str, str] | None = None


class Chooser(Generic[T]):
    """The turns of one process.

    Who is chosen is a tuple: the second field is the listener, and it is sorted by the first and the second.

    Args:
        node_at: the field with the node.
    """

    def __init__(self, *, node_at: int) -> None:
        self._node_at = node_at
        self._turns: dict[Hashable, _Turn[T]] = {}

    def choose(
        self,
        key: Hashable,
        among: Sequence[T],
        nodes_down: Container[str] = _NOBODY,
        tried: Container[str] = _NOBODY,
    ) -> T | None:
        """The next one of ``among``; None when there is nobody.

        Args:
            key: of the turn, such as the topic, or the topic and the server's name.
            among: sorted; quickest when it is the same object as the last time.
            nodes_down: nodes that are passed over.
            tried: listeners that are passed over.
        """
        turn = self._turns.get(key)
        if turn is None:
            if len(self._turns) >= TURNS_MAX:
                self._turns.clear()
            turn = self._turns[key] = _Turn()
        if turn.among is not among:
            turn.among = among
            turn.at = 0 if turn.last is None else bisect_right(among, turn.last, key=_place)
        count = len(among)
        for step in range(count):
            at = (turn.at + step) % count
            one = among[at]
            if one[self._node_at] not in nodes_down and one[1] not in tried:
                turn.at = at + 1
                turn.last = (one[0], one[1])
                return one
        return None


def _place(one: tuple[Any, ...]) -> tuple[str, str]:
    return (one[0], one[1])
