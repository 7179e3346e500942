"""The backlog of a node's pipeline of notifications: opened, announced, looked at now and then; none by default."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from broker.oslo.directory.announcer import Announcer
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.backlog import Backlog, BacklogRecipient, listener_of
from broker.oslo.proxy.pool_member import Key
from broker.oslo.proxy.pools import Pools
from broker.oslo.reactor import Reactor, Timer
from broker.oslo.reactor.counters import Counters
from broker.oslo.records import Record

if TYPE_CHECKING:
    from broker.oslo.proxy.backlog_store import BacklogFile

LOOK_S: float = 15.0
"""Between two looks at what is kept for too long: read where it is used, tests change it."""


class KeptPools:
    """What is kept, and that notifiers go on sending it.

    Args:
        reactor: whose thread.
        config: of the node.
        counters: where a disk that fails is told.

    Attributes:
        backlog: None: nothing is kept.

    Raises:
        ConfigError: its file can be neither read nor made.
    """

    def __init__(self, reactor: Reactor, config: NodeConfig, counters: Counters) -> None:
        self.backlog: Backlog | None = None
        self._reactor = reactor
        self._file: BacklogFile | None = None
        self._timer: Timer | None = None
        kept = config.backlog
        if kept is None:
            return
        if kept.path:
            from broker.oslo.proxy.backlog_store import BacklogFile  # and SQLite, which others need not load

            self._file = BacklogFile(reactor, kept.path, counters)
        self.backlog = Backlog(kept, time.time, self._file)
        if self._file is not None:
            self._file.load(self.backlog)

    def begin(
        self,
        announcer: Announcer,
        subscribe: Callable[[list[Key]], None],
        unsubscribe: Callable[[Key], None],
        pools: Pools,
    ) -> None:
        """The sockets are open: announce the node, and subscribe, for all that was kept before."""
        self._announcer, self._subscribe, self._unsubscribe, self._pools = (
            announcer,
            subscribe,
            unsubscribe,
            pools,
        )
        if self.backlog is not None:
            self._announce(self.backlog.shelves())
            self._timer = self._reactor.call_later(LOOK_S, self._look, self.backlog)

    def come(self, keys: Iterable[Key], pool: str | None) -> None:
        """A listener of ``pool`` has come, or is just leaving."""
        if self.backlog is not None:
            self._announce(self.backlog.come(keys, pool))

    def keeps(self, key: Key) -> bool:
        """Whether something may be kept for a pool there."""
        return self.backlog is not None and any(shelf.key == key for shelf in self.backlog.shelves())

    def _announce(self, shelves: Iterable[BacklogRecipient]) -> None:
        """Notifiers find this node as a listener of these pools, and it has subscribed, whoever is here."""
        for shelf in shelves:
            self._subscribe([shelf.key])
            self._announcer.add((_record(shelf),))

    def _look(self, backlog: Backlog) -> None:
        self._timer = self._reactor.call_later(LOOK_S, self._look, backlog)
        for shelf in backlog.expire(lambda shelf: self._pools.is_here(shelf.key, shelf.pool)):
            self._announcer.remove((_record(shelf),))
            self._unsubscribe(shelf.key)

    def status(self) -> dict[str, Any]:
        """For STATUS, beside what the pipeline says; {} where nothing is kept."""
        return {} if self.backlog is None else {"backlog": self.backlog.status()}

    @property
    def counts(self) -> dict[str, int]:
        """See ``Backlog``."""
        return {} if self.backlog is None else self.backlog.counts

    def close(self) -> int:
        """Close the file; returns how many messages are lost, since there is none. Harmless twice."""
        if self._timer is not None:
            self._timer.cancel()
        if self._file is not None:
            self._file.close()
            return 0
        backlog, self.backlog = self.backlog, None
        return 0 if backlog is None else len(backlog)


def _record(shelf: BacklogRecipient) -> Record:
    """What the directory is told of it."""
    return Record(*shelf.key, "", listener_of(shelf.pool), shelf.pool)
