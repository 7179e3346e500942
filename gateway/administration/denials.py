"""Who tried what without the right: the newest records for ``gateway.denied``, a log line each, and a report to the
broker's journal.

What the gateway keeps away from the broker belongs into the same record as what the broker itself refuses
(``journal.denied``, see ``broker.services.journal``). Only a broker with a journal is told.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from broker.identity import USERID_UNKNOWN
from broker.rates import Ration
from broker.wire.payload import encode_json

if TYPE_CHECKING:
    from gateway.sessions.session import Session
    from gateway.sessions.sessions import Sessions
    from gateway.upstream.upstream import Upstream

log = logging.getLogger("headgate")

TOPIC: Final = "journal.denied"
DENIED_MAX: Final = 256
"""Records kept."""
LINES_PER_S: Final = 10
"""Log lines a second; a person reads no more, and a retrying client makes hundreds. The next line tells of the rest."""
REPORTS_PER_S: Final = 100
"""Reports to the journal a second, the next one says how many were left out: whoever guesses topics as fast as it can
must not fill the link to the broker."""


class Denials:
    """The denials of one process.

    Args:
        sessions: whose they are. upstream: the broker.

    Attributes:
        ring: the newest records, oldest first.
        reported: how many the broker was told. left_out: how many it was not, of those that a journal should have had.
    """

    def __init__(self, sessions: Sessions, upstream: Upstream) -> None:
        self._sessions = sessions
        self._upstream = upstream
        self._lines = Ration(LINES_PER_S, sessions.clock())
        self._reports = Ration(REPORTS_PER_S, sessions.clock())
        self.ring: deque[Mapping[str, Any]] = deque(maxlen=DENIED_MAX)
        self.reported = 0
        self.left_out = 0

    def add(
        self, session: Session, kind: str, topic: str, reason: str, claimed: int = USERID_UNKNOWN
    ) -> None:
        """``session`` was refused ``kind`` of ``topic``; ``claimed`` is the userid that its message named."""
        session.denied_msgs += 1
        self._sessions.counters.denied += 1
        mine = session.principal
        self.ring.append(
            {
                "at": self._sessions.wall(),
                "session": session.id,
                "user": mine.name,
                "userid": mine.userid,
                "kind": kind,
                "topic": topic,
                "reason": reason,
                "address": session.address,
            }
        )
        if self._lines.admits(self._sessions.clock()):
            left_out = self._lines.take_left_out()
            more = f" (and {left_out} more)" if left_out else ""
            log.warning("denied %s at %s (%s): %s%s", mine.name, session.address, kind, reason, more)
        if self._upstream.journals:
            self._report(session, kind, topic, claimed)

    def _report(self, session: Session, kind: str, topic: str, claimed: int) -> None:
        if not self._reports.admits(self._sessions.clock()):
            self.left_out += 1
            return
        said: dict[str, Any] = {
            "topic": topic,
            "errno": errno.EPERM,
            "userid": session.principal.userid,
            "rolemask": session.roles,
            "claimed": claimed,
            "session": session.id,
            "address": session.address,
            "transport": "websocket",
            "type": "event" if kind == "publish" else "request",
        }
        if left_out := self._reports.take_left_out():
            said["left_out"] = left_out
        self.reported += 1
        self._upstream.tell(TOPIC, encode_json(said))

    def newest(self, count: int) -> list[Mapping[str, Any]]:
        """The newest ``count`` records, oldest first."""
        return list(islice(self.ring, max(len(self.ring) - count, 0), None))
