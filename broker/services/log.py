"""The log ring of this broker (``log.append``, ``dmesg``, ``clear``, ``stats-get``).

Each rank keeps the entries of its own clients and itself. What is severe enough goes to rank 0, too, broker by
broker; there it stands in the ring as well, so that one ``flux dmesg`` shows what is wrong anywhere (deployed brokers
print it to rank 0's stderr only).
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from broker.services.context import Context
from broker.services.service import Service, Services, Streams, method
from broker.serving.request import LATER, Later, Request
from broker.wire.log_entry import Entry, compose, parse
from broker.wire.message import MATCHTAG_NONE, UPSTREAM

FORWARD_LEVEL: Final = 3
"""Least severe entries that are sent to rank 0: errors, as deployed (attribute ``log-forward-level``)."""


class Ring:
    """The last ``entries`` entries; 0 keeps none.

    Attributes:
        count: entries since start, kept or not; ``clear`` does not change it.
    """

    def __init__(self, entries: int) -> None:
        self._lines: deque[bytes] = deque(maxlen=entries)
        self.count: int = 0

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._lines)

    def append(self, entry: Entry) -> None:
        """Keep one more; the oldest goes when the ring is full."""
        self._lines.append(entry.line)
        self.count += 1

    def clear(self) -> None:
        """Empty the ring; the count goes on."""
        self._lines.clear()


class Log(Service):
    """Takes log entries and shows them.

    The ring holds ``broker.log_ring_entries``; 0 keeps none.

    Attributes:
        watchers: told of each entry that is shown here.
    """

    name = "log"

    def __init__(self, context: Context, services: Services) -> None:
        super().__init__(context, services)
        self._ring = Ring(context.config["headgate"]["broker"]["log_ring_entries"])
        self._remote = 0
        self._followers: Streams[None] = self.keep(Streams())
        self.watchers: list[Callable[[Entry], None]] = []

    def note(self, severity: int, text: str) -> None:
        """Take a line of the broker's own; severity 0 emergency to 7 debug."""
        self._take(compose(severity, self.context.rank, "broker", os.getpid(), text, time.time()))

    @method("append")
    def append(self, request: Request) -> Later | None:
        """RFC 5424 text, with or without NUL. Anything else is ignored; no reply when the matchtag is 0."""
        entry = parse(request.message.payload)
        if entry is not None:
            self._take(entry)
        return LATER if request.message.matchtag == MATCHTAG_NONE else None

    def _take(self, entry: Entry) -> None:
        remote = entry.host.isdecimal() and entry.host != str(self.context.rank)
        if remote:
            self._remote += 1
        # other ranks' entries pass through here on their way up, and stand in the ring of rank 0 alone
        if not remote or self.context.rank == 0:
            self._ring.append(entry)
            for follower, _ in self._followers:
                follower.respond(entry.line + b"\0")
            for watcher in self.watchers:
                watcher(entry)
        # an entry of another rank was severe enough where it came from
        if self.context.rank != 0 and (remote or entry.severity <= FORWARD_LEVEL):
            self.context.call("log.append", entry.line, None, nodeid=self.context.rank, flags=UPSTREAM)

    @method("dmesg", streaming=True)
    def dmesg(self, request: Request) -> Later:
        """``{"follow", "nobacklog"}``, false unless given -> one entry per response, then ENODATA unless follow."""
        follow, new_only = request.field("follow", bool, False), request.field("nobacklog", bool, False)
        if not new_only:
            for line in self._ring:
                request.respond(line + b"\0")
        if follow:
            self._followers.open(request, None)
        else:
            request.respond_error(errno.ENODATA)
        return LATER

    @method("clear")
    def clear(self, request: Request) -> None:
        """Empties the ring."""
        self._ring.clear()

    @method("stats-get")
    def figures(self, request: Request) -> Mapping[str, object]:
        """-> ``{"ring-used", "count", "local", "remote"}``; for owners, unlike other services' figures."""
        local = self._ring.count - (self._remote if self.context.rank == 0 else 0)
        return {
            "ring-used": len(self._ring),
            "count": self._ring.count,
            "local": local,
            "remote": self._remote,
        }
