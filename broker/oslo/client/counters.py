"""What a process counts, and log lines that are not repeated too often. For the thread of the sockets.

Counts (each also says what was lost, so that nothing disappears without a trace)::

    calls, casts, fanouts, notifications        handed over by callers
    answered, timed_out, unroutable, refused    ends of calls
    chosen_again                                refused or taken back, and given to another server
    nobody                                      casts, fan-outs, notifications with nobody to hear them
    not_reached                                 nodes that a fan-out or notification did not reach
    unflushed                                   still here when the session was closed
    late, malformed                             replies nobody waits for; messages nobody understands
    received, expired, strays, gaps, dropped    of listeners: taken in; too old when taken; for nobody here; missing
                                                fan-outs by number; without room, or unread at the end
    opened_again                                registrations repeated after a proxy has restarted
    repeated, had_already                       sent again since a connection ended; of listeners: and had come before
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Final

from broker.oslo.reactor import Reactor
from broker.rates import Throttle

EVERY_S: Final = 60.0
"""A line about one topic, node or peer is logged once in so many seconds."""


class ClientCounters:
    """Counts and lines of one client."""

    def __init__(self, reactor: Reactor) -> None:
        self.counts: Counter[str] = Counter()
        self._reactor = reactor
        self._lines = Throttle(EVERY_S)

    def count(self, name: str, n: int = 1) -> None:
        """``n`` more of ``name``."""
        self.counts[name] += n

    def say(
        self, text: str, *values: Any, level: int = logging.WARNING, about: tuple[Any, ...] | None = None
    ) -> None:
        """Log it, unless the same, or another line ``about`` the same, was logged less than ``EVERY_S`` ago."""
        key = (text, values if about is None else about)
        if self._lines.admits(key, self._reactor.now()):
            self._reactor.say(level, text, values)
