"""The local servers of one pipeline: who is at which topic, in turns (pure).

An ``Target`` is whatever the pipeline sends through to reach a listener's process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from broker.memory import compact
from broker.oslo.records import Record

Target = TypeVar("Target")


class LocalListener(Generic[Target]):
    """One listener.

    Attributes:
        record: what it listens to.
        target: how it is reached.
        alive: False once it was removed: whoever remembers it has to choose again.
        tail: the address of a message for any server of its topic that it shall have.
    """

    __slots__ = ("alive", "record", "tail", "target")

    def __init__(self, record: Record, target: Target) -> None:
        self.record = record
        self.target = target
        self.alive = True
        self.tail = self.tail_for("")

    def tail_for(self, server: str) -> bytes:
        """The address (see ``frames``) of a message to ``server`` that this listener shall have."""
        record = self.record
        return f"{record.exchange}\0{record.topic}\0{server}\0{record.listener}".encode()


class _Ring(Generic[Target]):
    """Listeners in turns. Who was removed keeps a place, and has no turn, until half of all places are such."""

    __slots__ = ("_next", "_places", "size")

    def __init__(self) -> None:
        self.size = 0
        self._places: list[LocalListener[Target]] = []
        self._next = 0

    def add(self, local: LocalListener[Target]) -> None:
        self._places.append(local)
        self.size += 1

    def remove(self) -> None:
        """One of them is not alive any more."""
        self.size -= 1
        if 2 * self.size <= len(self._places):
            self._next = sum(local.alive for local in self._places[: self._next])
            self._places = [local for local in self._places if local.alive]

    def turn(self) -> LocalListener[Target]:
        """Whose turn it is: there has to be somebody."""
        while True:
            at = self._next if self._next < len(self._places) else 0
            self._next = at + 1
            if self._places[at].alive:
                return self._places[at]


class LocalListeners(Generic[Target]):
    """All listeners of one pipeline on this node, each with one record."""

    def __init__(self) -> None:
        self._by_listener: dict[str, LocalListener[Target]] = {}
        self._rings: dict[tuple[str, str, str], _Ring[Target]] = {}

    def __len__(self) -> int:
        return len(self._by_listener)

    def add(self, record: Record, target: Target) -> LocalListener[Target]:
        """One more listener; its id must be new."""
        local = LocalListener(record, target)
        self._by_listener[record.listener] = local
        for server in {"", record.server}:
            self._rings.setdefault((record.exchange, record.topic, server), _Ring()).add(local)
        return local

    def get(self, listener: str) -> LocalListener[Target] | None:
        """The listener with that id."""
        return self._by_listener.get(listener)

    def remove(self, listener: str) -> LocalListener[Target] | None:
        """Forget a listener; None: not known."""
        local = self._by_listener.pop(listener, None)
        if local is None:
            return None
        local.alive = False
        record = local.record
        for server in {"", record.server}:
            where = (record.exchange, record.topic, server)
            ring = self._rings[where]
            ring.remove()
            if not ring.size:
                del self._rings[where]
        self._by_listener = compact(self._by_listener)
        self._rings = compact(self._rings)
        return local

    def listened(self, exchange: str, topic: str) -> bool:
        """Whether anybody listens there."""
        return (exchange, topic, "") in self._rings

    def fitting(self, exchange: str, topic: str, server: str, listener: str) -> LocalListener[Target] | None:
        """The listener with that id, when it is here and listens to that address; ``server`` "" any."""
        local = self._by_listener.get(listener)
        if local is None or (local.record.exchange, local.record.topic) != (exchange, topic):
            return None
        return local if server in ("", local.record.server) else None

    def turn(self, exchange: str, topic: str, server: str) -> LocalListener[Target] | None:
        """Whose turn it is at that address, strictly round robin; ``server`` "" any. None: nobody is there."""
        ring = self._rings.get((exchange, topic, server))
        return None if ring is None else ring.turn()

    def others(self, exchange: str, topic: str, server: str, most: int) -> Iterator[LocalListener[Target]]:
        """Up to ``most`` different listeners of that address, beginning with whose turn it is."""
        ring = self._rings.get((exchange, topic, server))
        for _ in range(0 if ring is None else min(most, ring.size)):
            local = self.turn(exchange, topic, server)
            if local is None:
                return
            yield local

    def targets(self) -> list[Target]:
        """How all of them are reached."""
        return [local.target for local in self._by_listener.values()]

    def records(self) -> list[Record]:
        """What is to be announced."""
        return [local.record for local in self._by_listener.values()]
