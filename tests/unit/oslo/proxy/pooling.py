"""Pools whose messages go to nobody but the test: each call returns what was sent meanwhile, in order."""

from collections.abc import Iterable
from typing import Any

from broker.oslo.names import Reason
from broker.oslo.proxy.backlog import Backlog
from broker.oslo.proxy.listeners import Key, Listener, WaitingMessage
from broker.oslo.proxy.pools import Pools
from broker.oslo.records import Opening, Record

Given = list[tuple[str, WaitingMessage]]


class Hand:
    """Pools, and what was sent to their listeners.

    Attributes:
        pools: see there.
        takes: 0 or -1 for a listener whose process takes nothing now, or is gone.
        lost: what a pool did not get.
    """

    def __init__(self, msgs: int, size: int, backlog: Backlog | None = None) -> None:
        self.takes: dict[str, int] = {}
        self.lost: list[tuple[WaitingMessage, Reason]] = []
        self.pools = Pools((msgs, size), self._send, lambda *lost: self.lost.append(lost), backlog)
        self._given: Given = []

    def _send(self, listener: Listener, message: WaitingMessage) -> int:
        outcome = self.takes.get(listener.id, 1)
        if outcome > 0:
            self._given.append((listener.id, message))
        return outcome

    def _sent(self) -> Given:
        given, self._given = self._given, []
        return given

    def listener(self, name: str) -> Listener:
        """One that is here."""
        found = self.pools.get(name)
        assert found is not None
        return found

    def open(
        self, name: str, pool: str | None, keys: Iterable[Key], credit: int, owner: Any, size: int = 0
    ) -> Given:
        records = tuple(Record(exchange, topic, "", name, pool) for exchange, topic in keys)
        self.pools.open(Opening(name, records, pool, credit, size), owner)
        return self._sent()

    def close(self, name: str) -> Given:
        self.pools.close(name)
        return self._sent()

    def credit(self, name: str, messages: int) -> Given:
        self.pools.confirm(self.listener(name), messages)
        return self._sent()

    def resume(self, name: str) -> Given:
        """Its process takes something again."""
        self.takes.pop(name, None)
        self.pools.resume(self.listener(name).owner)
        return self._sent()

    def take(self, message: WaitingMessage, chosen: Iterable[str], *, again: bool = False) -> Given:
        self.pools.take(message, chosen, again=again)
        return self._sent()

    def requeue(self, name: str, message: WaitingMessage, owner: Any) -> Given | None:
        known = self.pools.known_of(name, owner, message.key)
        if known is None:
            return None
        self.pools.requeue(message, known.pool)
        return self._sent()
