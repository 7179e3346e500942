"""The peers that are alive: introduced by a DICTIONARY record, and not ended by a ``link.down``."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from broker.errors import DecodeError
from broker.journal.layout import DICTIONARY, IN, LINK_DOWN
from broker.journal.marks import mark
from broker.wire.message import MAGIC_DEPLOYED
from broker.wire.parts import split_parts

PEERS_MAX: Final = 1 << 16
"""Most peers that are repeated; beyond it the oldest are forgotten: their ``link.down`` may have been lost."""
_DOWN: Final = LINK_DOWN.encode()


class Change(NamedTuple):
    """A peer that came, or went (``body`` is None)."""

    peer: int
    transport: int = 0
    body: bytes | None = None
    """Of the DICTIONARY record."""


class PeerTable:
    """The live peers of this run, in order of their coming."""

    __slots__ = ("_alive",)

    def __init__(self) -> None:
        self._alive: dict[int, tuple[int, bytes]] = {}

    def __len__(self) -> int:
        return len(self._alive)

    def apply(self, changes: list[Change]) -> None:
        """Apply the changes that a block told."""
        for peer, transport, body in changes:
            self._alive.pop(peer, None)
            if body is not None:
                self._alive[peer] = (transport, body)
        while len(self._alive) > PEERS_MAX:
            del self._alive[next(iter(self._alive))]

    def records(self) -> bytes:
        """All of them as marks and frames of DICTIONARY records."""
        return b"".join(
            b"".join(
                (
                    mark(DICTIONARY, transport, IN, 0, peer),
                    MAGIC_DEPLOYED,
                    len(body).to_bytes(4, "big"),
                    body,
                )
            )
            for peer, (transport, body) in self._alive.items()
        )


def departed(peer: int, body: bytes) -> Change | None:
    """The peer that is gone according to a STATE record: the peer in its facts or, without one, the peer of the record.

    None when the record tells of something else.
    """
    try:
        topic, text = split_parts(body)[:2]
        if topic != _DOWN:
            return None
        facts = msgspec.json.decode(text)
    except (DecodeError, ValueError):  # msgspec's errors are ValueErrors
        return None
    named = facts.get("peer") if isinstance(facts, dict) else None
    return Change(named if type(named) is int else peer)
