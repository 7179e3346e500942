"""The listeners of one pipeline that have one record each, and what the directory is told of them (CALL and CAST)."""

from __future__ import annotations

from typing import Generic

from broker.oslo.directory.announcer import Announcer
from broker.oslo.names import Pipeline, Reason
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.local_listeners import LocalListeners, Target
from broker.oslo.proxy.registration import CannotOpen
from broker.oslo.reactor import Reactor
from broker.oslo.records import Opening


class ListenerRegistry(Generic[Target]):
    """Who listens here.

    Args:
        reactor: whose sockets these are.
        config: node and directories.
        pipeline: whose listeners.
        endpoint: what other nodes dial; key: the Z85 key there.

    Attributes:
        locals: the listeners.
        incarnation: of this pipeline, see ``records.State``.
    """

    def __init__(
        self, reactor: Reactor, config: NodeConfig, pipeline: Pipeline, endpoint: str, key: str
    ) -> None:
        self.locals: LocalListeners[Target] = LocalListeners()
        self._announcer = Announcer(reactor, config, pipeline, endpoint, key, held=True)
        self.incarnation: int = self._announcer.incarnation

    def enter(self, opening: Opening, target: Target) -> None:
        """A listener begins.

        Raises:
            CannotOpen: not exactly one record, or one without topic or server.
        """
        if len(opening.records) != 1:
            raise CannotOpen(Reason.MALFORMED, f"saw {len(opening.records)} records, expected 1")
        record = opening.records[0]
        if not (record.topic and record.server):
            raise CannotOpen(Reason.MALFORMED, "saw a record without topic or server, expected both")
        self.locals.add(record, target)
        self._announcer.add((record,))

    def remove(self, listener: str) -> None:
        """A listener ended."""
        local = self.locals.remove(listener)
        if local is not None:
            self._announcer.remove((local.record,))

    def change_key(self, key: str) -> None:
        """Other nodes find another Z85 ``key`` at the endpoint from now on."""
        self._announcer.change_key(key)

    def begin(self) -> None:
        """Tell the directory who is here, from now on."""
        self._announcer.begin()

    def away(self) -> None:
        """Tell the directory that another process goes on in a moment."""
        self._announcer.away()

    def leave(self) -> None:
        """Tell the directory that nobody is here any more."""
        self._announcer.leave()

    def close(self) -> None:
        """Tell nobody anything any more. Harmless twice."""
        self._announcer.close()
