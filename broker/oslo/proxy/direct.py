"""The pipelines whose messages are for one server each, CALL and CAST: who listens, within which credit, what is known
of each address.
"""

# compiled: mypyc

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from broker.identity import Credentials
from broker.oslo.frames import Envelope, Kind, Malformed
from broker.oslo.names import Pipeline, Reason
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.credit import ListenerCredit
from broker.oslo.proxy.credited_queue import CreditedQueue
from broker.oslo.proxy.local_listeners import LocalListeners
from broker.oslo.proxy.pipeline import PipelineRoom
from broker.oslo.proxy.registration import CannotOpen, RegistrationSocket, ServerLink
from broker.oslo.proxy.route_cache import RouteCache
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.socket import Frames
from broker.oslo.records import Opened, Opening
from broker.transport.curve import Certificate

DirectQueue = CreditedQueue[Any]
"""Of one listener; its ``owner`` is the ``ServerLink`` of its process."""


class DirectRoom(PipelineRoom):
    """See the module; arguments as ``PipelineRoom``'s, and

    Args:
        limits: messages and bytes that may wait for one listener.
        to_server: frames of a message on its way to a server's process, with the router's id; what is said there has
            others.

    Attributes:
        locals: the listeners of this node.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: NodeConfig,
        acl: AccessControl,
        pipeline: Pipeline,
        kind: int,
        limits: tuple[int, int],
        to_server: int,
    ) -> None:
        super().__init__(reactor, config, acl, pipeline, kind)
        self.locals: LocalListeners[DirectQueue] = LocalListeners()
        self._routes: RouteCache[DirectQueue] = RouteCache(acl, self.locals, self.topics)
        self._known = self._routes.known
        self._limits = limits
        self._to_server = to_server

    @abstractmethod
    def _redeliver(self, frames: Frames) -> None:
        """That message waited for a listener which has ended."""

    def _register(
        self,
        undo: contextlib.ExitStack,
        *,
        gone: Callable[[ServerLink], None] | None = None,
        raw: Mapping[int, Callable[[ServerLink, list[bytes]], None]] | None = None,
    ) -> RegistrationSocket:
        """Where servers register."""
        self._credit = ListenerCredit(self._reactor, self._frontend, self.counters, self._add_credit)
        undo.callback(self._credit.close)
        registration = RegistrationSocket(
            self._reactor,
            self._config,
            self._pipeline,
            self._acl,
            self.counters,
            opened=self._open_listener,
            closed=self._close_listener,
            other=self._on_control_message,
            returned=self._redeliver_all,
            gone=gone,
            raw=raw,
            status=self.status,
            figures=self.figures,
            journal=self._journal,
        )
        self._credit.begin(registration)
        return registration

    def renew(self, certificate: Certificate | None) -> int:
        """See ``PipelineRoom.renew``."""
        self._known.clear()
        return super().renew(certificate)

    # ------------------------------------------------------------ listeners

    def _open_listener(self, link: ServerLink, opening: Opening) -> Opened:
        self._credit.check(link)
        if len(opening.records) != 1:
            raise CannotOpen(Reason.MALFORMED, f"saw {len(opening.records)} records, expected 1")
        record = opening.records[0]
        if not (record.topic and record.server):
            raise CannotOpen(Reason.MALFORMED, "saw a record without topic or server, expected both")
        queue: DirectQueue = CreditedQueue(
            opening.listener, opening.credit, link, self._limits, opening.credit_bytes
        )
        queue.resume(opening.held, opening.held_bytes)
        queue.attached = True
        if not self.locals.listened(record.exchange, record.topic):
            self._known.clear()  # what was counted as a name that may be made up has figures of its own from now on
        self.locals.add(record, queue)
        self._announcer.add((record,))
        return self._confirmation()

    def _close_listener(self, link: ServerLink, listener: str) -> None:
        local = self.locals.remove(listener)
        if local is None:
            return
        self._announcer.remove((local.record,))
        self._credit.forget(local.target)
        end = b"\0" + listener.encode()
        unsent = self._registration.sift(
            link, lambda frames: len(frames) == self._to_server and frames[1].endswith(end)
        )
        self._redeliver_all(link, unsent)
        self._end_queue(local.target)

    def _end_queue(self, queue: DirectQueue) -> None:
        """The listener of ``queue`` has ended, and what was on its way to it has come back."""

    def _redeliver_all(self, _link: ServerLink, messages: list[Frames]) -> None:
        for frames in messages:
            if len(frames) == self._to_server:
                self._redeliver(frames)

    def _add_credit(self, listener: str, messages: int) -> DirectQueue | None:
        local = self.locals.get(listener)
        if local is None:
            return None
        local.target.confirm(messages)
        return local.target

    def _on_control_message(self, link: ServerLink, envelope: Envelope, rest: list[bytes]) -> None:
        if envelope.kind == Kind.CREDIT:
            self._credit.on_credit(link, envelope.listener, envelope.word)
        else:
            self._unexpected(link, envelope, rest)

    # ------------------------------------------------------------ what is told

    def _bad(self, name: str, who: Credentials, text: str) -> None:
        self.counters.count_dropped(name, "dropped a message of uid %d: %s", who.userid, text)

    def _malformed(self, error: Malformed, who: Credentials) -> None:
        self._bad("unknown_version" if error.unknown_version else "malformed", who, str(error))

    def _pipeline_status(self) -> dict[str, Any]:
        topics = Counter(f"{record.exchange}/{record.topic}" for record in self.locals.records())
        return {"topics": dict(topics), "members": [queue.status() for queue in self.locals.targets()]}

    def close(self, linger_ms: int = 0) -> None:
        """See ``PipelineRoom.close``."""
        self._credit.close()
        super().close(linger_ms)
