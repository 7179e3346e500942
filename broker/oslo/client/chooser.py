"""Strict round robin over the servers of a topic (pure).

Servers take turns, not nodes: each gets as much as every other, wherever it runs. There is one turn for each topic,
shared by calls and casts, and one for each server name that several listeners share. A turn remembers whom it chose
last and goes on behind it, so that servers that come or go do not make it begin anew.
"""

# compiled: mypyc

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Hashable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.oslo.directory.replica import Server

TURNS_MAX: Final = 65_536
"""Turns remembered; beyond it all are forgotten, which costs an even distribution for a moment."""


_NOBODY: Final[frozenset[str]] = frozenset()


class _Turn:
    """Attributes: ``among``: whom it was chosen from; ``at``: the position of the next one in it."""

    __slots__ = ("among", "at", "last")

    def __init__(self) -> None:
        self.among: Sequence[Server] = ()
        self.at = 0
        self.last: tuple[str, str] | None = None


class Chooser:
    """The turns of one process."""

    def __init__(self) -> None:
        self._turns: dict[Hashable, _Turn] = {}

    def choose(
        self,
        key: Hashable,
        among: Sequence[Server],
        nodes_down: Container[str] = _NOBODY,
        tried: Container[str] = _NOBODY,
    ) -> Server | None:
        """The next one of ``among``; None when there is nobody.

        Args:
            key: of the turn: the topic, or the topic and the server's name.
            among: sorted by (server, listener); quickest when it is the same object as the last time.
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
            if one.node not in nodes_down and one.listener not in tried:
                turn.at = at + 1
                turn.last = (one.server, one.listener)
                return one
        return None


def _place(one: Server) -> tuple[str, str]:
    return (one.server, one.listener)


class PoolChooser:
    """Strict round robin over the listeners of each pool of a topic: ``(node, listener)`` pairs."""

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[str, str]] = {}

    def choose(
        self,
        key: Hashable,
        among: Sequence[tuple[str, str]],
        nodes_down: Container[str] = _NOBODY,
    ) -> tuple[str, str] | None:
        """The next one of ``among``, which is sorted; None when there is nobody on a node that is not down."""
        if len(self._last) >= TURNS_MAX:
            self._last.clear()
        last = self._last.get(key)
        begin = 0 if last is None else bisect_right(among, last)
        count = len(among)
        for step in range(count):
            one = among[(begin + step) % count]
            if one[0] not in nodes_down:
                self._last[key] = one
                return one
        return None
