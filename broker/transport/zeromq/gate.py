"""Who may connect to one listener of ZeroMQ, by the key that CURVE proved or the kernel's word."""

from __future__ import annotations

import errno
import logging
from typing import Final

from broker.identity import PeerInfo
from broker.transport.link import Options

log = logging.getLogger("headgate")

UidGidPid = tuple[int | None, int | None, int | None]
NO_CREDENTIALS: Final[UidGidPid] = (None, None, None)


class Gate:
    """Of one listener.

    Attributes:
        denied: connections refused so far.
    """

    def __init__(self, uri: str, options: Options) -> None:
        self.uri = uri
        self.denied = 0
        self._options = options
        self._local = uri.startswith("ipc:")

    def identify(self, name: str, key: str, origin: UidGidPid) -> PeerInfo | None:
        """Who has proved ``key`` (Z85; "" without CURVE); None when nobody knows it (any more).

        Args:
            name: what logs call the connection.
            key: what CURVE proved.
            origin: uid, gid and pid at the other end, of local ones.
        """
        if not key:
            uid, gid, pid = origin
            return PeerInfo(name, uid=uid, gid=gid, pid=pid, local=self._local)
        return self._options.bearer(name, key)

    def judge(self, name: str, key: str, origin: UidGidPid, address: str) -> PeerInfo | None:
        """As ``identify``, and None for who is not admitted, too; that is told. ``address`` is the log's."""
        peer = self.identify(name, key, origin)
        if peer is None:
            reason = f"unknown CURVE key {key}"
            self._options.refused(PeerInfo(name, key=key, local=self._local), errno.EPERM, reason)
        else:
            denied = self._options.admit(peer)
            if not denied:
                return peer
            reason = f"not admitted (errno {denied})"
        self.denied += 1
        log.warning("%s: refused %s: %s", self.uri, address, reason)
        return None
