"""Who reads: ``DirectoryLink`` feeds a replica from one directory, ``Reader`` finds the directories of an application.

Used in applications, too: nothing is logged but through the reactor, and nothing waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from broker.errors import HeadgateError
from broker.oslo.directory.connection import PULSE_S, DirectoryConnection
from broker.oslo.directory.replica import Replica
from broker.oslo.directory.wire import DirectoryKind, DirectoryMessage, Hello, Welcome
from broker.oslo.names import DIRECTORY_SOCKET
from broker.oslo.reactor.loop import Reactor, Timer
from broker.oslo.reactor.tuning import Tuning

LOOK_S: Final = 1.0
RENEW_S: float = 5.0
"""Between two looks at certificates while a directory is silent: read where it is used, tests change it."""

__all__ = ["DirectoryLink", "Reader"]


class DirectoryLink(DirectoryConnection):
    """Feeds a replica from one directory, and announces states to it (none, unless told so).

    Args:
        reactor: whose thread; open.
        endpoint: ``tcp://host:port`` or ``ipc://path``; the name of the source in ``replica``.
        replica: what is fed.
        tuning: keep-alive and CURVE, with the directory's key.
        known: is told who the directory is; False ends the link (it is ourselves).
        pulse_s: between two BEATs.
    """

    def __init__(
        self,
        reactor: Reactor,
        endpoint: str,
        replica: Replica,
        *,
        tuning: Tuning,
        known: Callable[[Welcome], bool] = lambda _welcome: True,
        pulse_s: float = PULSE_S,
    ) -> None:
        self._replica = replica
        self._known = known
        super().__init__(reactor, endpoint, tuning=tuning, hello=Hello(want=True), pulse_s=pulse_s)

    def close(self, linger_ms: int = 0) -> None:
        """End it; what it told the replica stays. Harmless twice."""
        super().close(linger_ms)
        self.on_lost()

    def on_welcome(self, welcome: Welcome) -> bool:
        """See ``DirectoryConnection``."""
        if not self._known(welcome):
            self._replica.forget(self.endpoint)
            return False
        self.on_message(DirectoryMessage(DirectoryKind.WELCOME, welcome))
        return True

    def on_message(self, message: DirectoryMessage) -> None:
        """See ``DirectoryConnection``."""
        self._replica.feed(self.endpoint, message, self._reactor.now())

    def on_lost(self) -> None:
        """See ``DirectoryConnection``."""
        self._replica.source_lost(self.endpoint, self._reactor.now())


class Reader:
    """What an application's process reads: the directory of its node, or else those of ``directories``.

    Args:
        reactor: whose thread; open.
        replica: what is fed.
        ipc_dir: folder of the node's proxy.
        directories: ``tcp://host:port``, asked while the local directory is not there; () none.
        tuning: keep-alive and CURVE of those, asked for when the first is connected to, and again while one is silent:
            certificates are replaced. May raise HeadgateError later on, which keeps the former ones.
        trusted: whether the folder may be used now; asked before it is.
        look_s: between two looks for the socket of the local directory.

    Attributes:
        links: by endpoint, once they are opened.
    """

    def __init__(
        self,
        reactor: Reactor,
        replica: Replica,
        *,
        ipc_dir: str,
        directories: tuple[str, ...] = (),
        tuning: Callable[[], Tuning] = Tuning,
        trusted: Callable[[], bool] | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        self.links: dict[str, DirectoryLink] = {}
        self._reactor = reactor
        self._replica = replica
        self._path = os.path.join(ipc_dir, DIRECTORY_SOCKET)
        self._local = f"ipc://{self._path}"
        self._trusted = trusted
        self._look_s = look_s
        self._directories = directories
        self._read_tuning = tuning
        self._tuning = tuning()
        self._read_s = reactor.now()
        self._timer: Timer | None = None
        self._look()

    @property
    def alive(self) -> bool:
        """True while some directory answers."""
        return any(link.alive for link in self.links.values())

    def status(self) -> dict[str, Any]:
        """For status."""
        return {"links": [link.status() for link in self.links.values()], **self._replica.status()}

    def close(self) -> None:
        """End all links; what they told stays. Harmless twice."""
        if self._timer is not None:
            self._timer.cancel()
        for link in self.links.values():
            link.close()

    def _look(self) -> None:
        self._timer = self._reactor.call_later(self._look_s, self._look)
        self._replica.tick(self._reactor.now())
        local = self.links.get(self._local)
        if local is None and os.path.exists(self._path) and (self._trusted is None or self._trusted()):
            # it knows the node's own servers, and all that its uplinks and Redis tell it: whoever answered before
            self._open(self._local)
        elif (local is None or not local.alive) and not (self.alive and self._replica.synced):
            for endpoint in self._directories:
                if endpoint not in self.links:
                    self._open(endpoint)
        if self._reactor.now() - self._read_s >= RENEW_S:
            self._renew()

    def _renew(self) -> None:
        """Connect anew where nobody answers and our certificate, or the one that nodes share, is another one now."""
        silent = [endpoint for endpoint in self._directories if self._is_silent(endpoint)]
        if not silent:
            return
        self._read_s = self._reactor.now()
        try:
            tuning = self._read_tuning()
        except HeadgateError:
            return  # said when it is connected to; a file that is just being written is read whole later
        if tuning != self._tuning:
            self._tuning = tuning
            for endpoint in silent:
                self.links[endpoint].close()
                self._open(endpoint)

    def _is_silent(self, endpoint: str) -> bool:
        link = self.links.get(endpoint)
        return link is not None and not (link.alive or link.closed)

    def _open(self, endpoint: str) -> None:
        self.links[endpoint] = DirectoryLink(self._reactor, endpoint, self._replica, tuning=self._tuning)
