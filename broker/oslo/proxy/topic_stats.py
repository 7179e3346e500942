"""How many messages of one pipeline went to each topic, and why some were refused or lost; bounded.

An errno says why, as a bridge on a Flux broker says it. A topic that somebody here listens to is not made up. How long
calls take, and what their endpoints answer, is in bodies and is not known here.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Any, Final

from broker.identity import USERID_UNKNOWN
from broker.name_stats import NameStats, StatsTable, readable
from broker.oslo.names import REASONS, Reason

TOPICS_MAX: Final = 60
UNPROVEN_MAX: Final = 15
"""Names of one pipeline: those of four together are no more than there is room for beside other figures."""
ERRNOS: Final = {
    Reason.NO_ROUTE: errno.EHOSTUNREACH,
    Reason.DENIED: errno.EPERM,
    Reason.BUSY: errno.EAGAIN,
    Reason.MALFORMED: errno.EPROTO,
    Reason.EXPIRED: errno.ETIMEDOUT,
    Reason.LEAVING: errno.ESHUTDOWN,
}


class TopicStats:
    """The topics of one pipeline.

    Args:
        now: seconds, by a clock that nobody sets.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._table: StatsTable = StatsTable(TOPICS_MAX, UNPROVEN_MAX)
        self._now = now
        self._known: dict[tuple[str, str], NameStats] = {}

    def of(self, exchange: str, topic: str, *, listened: bool) -> NameStats:
        """Where messages to that topic are counted; ``listened``: it is certain that it is there."""
        key = (exchange, topic)
        stats = self._known.get(key)
        if stats is None:
            name = readable(f"{exchange}/{topic}")
            stats = self._table.proven(name) if listened else self._table.of(name)
            if self._table.has(stats):
                self._known[key] = stats
        return stats

    def failed(self, exchange: str, topic: str, reason: Reason, userid: int) -> None:
        """A message that was counted was refused, or is lost."""
        self.ended(self.of(exchange, topic, listened=False), reason, userid)

    def ended(self, stats: NameStats, reason: Reason, userid: int = USERID_UNKNOWN) -> None:
        """The same of one that is counted in ``stats``."""
        stats.failed(ERRNOS.get(reason, errno.EIO), REASONS[reason], userid, int(self._now() * 1e9))

    def refused(self, exchange: str, topic: str, reason: Reason, userid: int) -> None:
        """A message that was not counted was refused."""
        self.of(exchange, topic, listened=False).calls += 1
        self.failed(exchange, topic, reason, userid)

    def status(self) -> dict[str, dict[str, Any]]:
        """For STATUS: by ``EXCHANGE/TOPIC``; see ``NameStats.told``."""
        return self._table.told(int(self._now() * 1e9), time.time())
