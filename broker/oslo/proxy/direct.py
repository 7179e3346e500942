"""The pipelines whose messages are for one server each, CALL and CAST: what is known of each address."""

# compiled: mypyc

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Mapping

from broker.identity import Credentials
from broker.oslo.frames import Malformed
from broker.oslo.names import Reason
from broker.oslo.proxy.listeners import Listener, Listeners
from broker.oslo.proxy.pipeline import ListenerRoom
from broker.oslo.proxy.registration import CannotOpen, RegistrationSocket, ServerLink
from broker.oslo.proxy.route_cache import RouteCache
from broker.oslo.reactor.socket import Frames
from broker.oslo.records import Opened, Opening
from broker.transport.curve import Certificate


class DirectRoom(ListenerRoom):
    """See the module; arguments and attributes as ``PipelineRoom``'s.

    Attributes:
        to_server: frames of a message on its way to a server's process, with the router's id; what is said there has
            others.
    """

    to_server: int

    @abstractmethod
    def _redeliver(self, frames: Frames) -> None:
        """That message waited for a listener which has ended."""

    def _register(
        self,
        undo: contextlib.ExitStack,
        listeners: Listeners,
        raw: Mapping[int, Callable[[ServerLink, list[bytes]], None]] | None = None,
    ) -> RegistrationSocket:
        self._routes = RouteCache(self._acl, listeners, self.topics)
        self._known = self._routes.known
        return super()._register(undo, listeners, raw)

    def renew(self, certificate: Certificate | None) -> int:
        """See ``PipelineRoom.renew``."""
        self._known.clear()
        return super().renew(certificate)

    # ------------------------------------------------------------ listeners

    def open_listener(self, link: ServerLink, opening: Opening) -> Opened:
        """See ``registration.Room``."""
        if len(opening.records) != 1:
            raise CannotOpen(Reason.MALFORMED, f"saw {len(opening.records)} records, expected 1")
        record = opening.records[0]
        if not (record.topic and record.server):
            raise CannotOpen(Reason.MALFORMED, "saw a record without topic or server, expected both")
        if not self.listeners.listened((record.exchange, record.topic)):
            self._known.clear()  # what was counted as a name that may be made up has figures of its own from now on
        self.listeners.open(opening, link)
        self._announcer.add(opening.records)
        return self._confirmation()

    def _end_listener(self, link: ServerLink, ended: Listener) -> None:
        end = b"\0" + ended.id.encode()
        for frames in self._registration.sift(
            link, lambda frames: len(frames) == self.to_server and frames[1].endswith(end)
        ):
            self._redeliver(frames)
        self.listeners.resume(link)

    def on_link_end(self, link: ServerLink, waiting: list[Frames]) -> None:
        """See ``registration.Room``: another listener of its address may have what waited."""
        for frames in waiting:
            if len(frames) == self.to_server:
                self._redeliver(frames)

    # ------------------------------------------------------------ what is told

    def _bad(self, name: str, who: Credentials, text: str) -> None:
        self.counters.count_dropped(name, "dropped a message of uid %d: %s", who.userid, text)

    def _malformed(self, error: Malformed, who: Credentials) -> None:
        self._bad("unknown_version" if error.unknown_version else "malformed", who, str(error))
