"""Log of access denials: the newest records for ``gateway.denied``, and a log line each."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from broker.rates import Ration

if TYPE_CHECKING:
    from gateway.hub import Hub
    from gateway.sessions.session import Session

log = logging.getLogger("headgate")

DENIED_MAX: Final = 256
"""Records kept."""
LINES_PER_S: Final = 10
"""Log lines a second; a person reads no more, and a retrying client makes hundreds. The next line tells of the rest."""


class Refusals:
    """The refusals of one process.

    Attributes:
        ring: the newest records, oldest first.
    """

    __slots__ = ("_hub", "_lines", "ring")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._lines = Ration(LINES_PER_S, hub.clock())
        self.ring: deque[Mapping[str, Any]] = deque(maxlen=DENIED_MAX)

    def add(self, session: Session, kind: str, topic: str, reason: str) -> None:
        """Record that ``session`` was refused ``kind`` of ``topic``."""
        session.denied_msgs += 1
        self._hub.counters.denied += 1
        mine = session.principal
        self.ring.append(
            {
                "at": self._hub.wall(),
                "session": session.id,
                "user": mine.name,
                "userid": mine.userid,
                "kind": kind,
                "topic": topic,
                "reason": reason,
                "address": session.address,
            }
        )
        if not self._lines.admits(self._hub.clock()):
            return
        left_out = self._lines.take_left_out()
        more = f" (and {left_out} more)" if left_out else ""
        log.warning("denied %s at %s (%s): %s%s", mine.name, session.address, kind, reason, more)

    def newest(self, count: int) -> list[Mapping[str, Any]]:
        """The newest ``count`` records, oldest first."""
        return list(islice(self.ring, max(len(self.ring) - count, 0), None))
