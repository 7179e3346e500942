"""The server processes that register, and how their end is noticed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from broker.identity import Credentials
from broker.oslo.origin import credentials
from broker.oslo.reactor import Reactor
from broker.oslo.records import Opening


class ServerLink:
    """One server process, as one pipeline knows it.

    Attributes:
        rid: the router's id of its connection.
        origin: its ``Peer-Address``.
        credentials: who it is; ``stamp``: the same as an envelope has it.
        pid: its process; 0 unknown.
        listeners: what it opened, by listener; ``dropping``: those that are to be dropped in one of the next turns.
        lapsed: it was silent for a lease, its listeners are dropped.
    """

    __slots__ = (
        "credentials",
        "dropping",
        "heard",
        "lapsed",
        "listeners",
        "origin",
        "pid",
        "pidfd",
        "rid",
        "silent",
        "stamp",
    )

    def __init__(self, rid: bytes, origin: str, who: Credentials) -> None:
        self.rid = rid
        self.origin = origin
        self.credentials = who
        self.stamp = who.encode()
        self.pid = credentials(origin)[2] or 0
        self.listeners: dict[str, Opening] = {}
        self.dropping: dict[str, Opening] = {}
        self.lapsed = False
        self.heard = True
        self.silent = 0
        self.pidfd = -1

    def __str__(self) -> str:
        return f"pid {self.pid} (uid {self.credentials.userid})"

    def watch(self, reactor: Reactor, died: Callable[[ServerLink], None]) -> bool:
        """Have ``died`` called at once when the process ends; False: the kernel cannot tell, the lease has to do.

        Raises:
            ProcessLookupError: it has ended.
        """
        if not self.pid:
            return True
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            raise
        except OSError:  # not allowed in this container, or no descriptor left
            return False
        reactor.add_reader(self.pidfd, lambda: died(self))
        return True

    def unwatch(self, reactor: Reactor) -> None:
        """Its end need not be told any more. Harmless twice."""
        if self.pidfd >= 0:
            reactor.remove_reader(self.pidfd)
            with contextlib.suppress(OSError):
                os.close(self.pidfd)
            self.pidfd = -1
