"""The pipelines whose messages are for one server each, CALL and CAST: who listens, what is known of each address."""

from __future__ import annotations

from collections import Counter
from typing import Any, Generic

from broker.identity import Credentials
from broker.oslo.frames import Malformed
from broker.oslo.names import Pipeline, Reason
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.local_listeners import LocalListeners, Target
from broker.oslo.proxy.pipeline import PipelineRoom
from broker.oslo.proxy.registration import CannotOpen
from broker.oslo.proxy.route_cache import RouteCache
from broker.oslo.reactor import Reactor
from broker.oslo.records import Opening
from broker.transport.curve import Certificate


class DirectRoom(PipelineRoom, Generic[Target]):
    """See the module; arguments as ``PipelineRoom``'s.

    Attributes:
        locals: the listeners of this node.
    """

    def __init__(
        self, reactor: Reactor, config: NodeConfig, acl: AccessControl, pipeline: Pipeline, kind: int
    ) -> None:
        super().__init__(reactor, config, acl, pipeline, kind)
        self.locals: LocalListeners[Target] = LocalListeners()
        self._routes: RouteCache[Target] = RouteCache(acl, self.locals)
        self._known = self._routes.known

    def renew(self, certificate: Certificate | None) -> int:
        """See ``reload.Renewable``."""
        self._known.clear()
        return super().renew(certificate)

    def _enter(self, opening: Opening, target: Target) -> None:
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

    def _leave(self, listener: str) -> None:
        """A listener ended."""
        local = self.locals.remove(listener)
        if local is not None:
            self._announcer.remove((local.record,))

    def _bad(self, name: str, who: Credentials, text: str) -> None:
        self.counters.dropped(name, "dropped a message of uid %d: %s", who.userid, text)

    def _malformed(self, error: Malformed, who: Credentials) -> None:
        self._bad("unknown_version" if error.unknown_version else "malformed", who, str(error))

    def _told(self) -> dict[str, Any]:
        topics = Counter(f"{record.exchange}/{record.topic}" for record in self.locals.records())
        return {"topics": dict(topics)}
