"""Counts by name, and lines in the log about what is counted: not one for each."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

from broker.oslo.reactor.loop import Reactor
from broker.rates import Throttle

QUIET_S: Final = 10.0
"""Between two lines about the same: whoever floods us must not fill the log, too."""


class Counters:
    """Counters by name.

    Args:
        reactor: whose log takes what is said; None: nothing is said.
        who: begins each line of ``count_dropped``, for instance the pipeline's name.
        quiet_s: seconds between two lines about the same.

    Attributes:
        counts: the counters; a name appears when it was counted first. The hot path adds here directly.
        noticed: told each name that is counted, but for those of the hot path; None nobody.
    """

    def __init__(self, reactor: Reactor | None = None, who: str = "", quiet_s: float = QUIET_S) -> None:
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.noticed: Callable[[str], None] | None = None
        self._reactor = reactor
        self._who = who
        self._lines = Throttle(quiet_s)

    def count(self, name: str, n: int = 1) -> None:
        """Add ``n`` to the counter ``name``."""
        self.counts[name] += n
        if self.noticed is not None:
            self.noticed(name)

    def say(
        self, text: str, *values: Any, level: int = logging.WARNING, about: tuple[Any, ...] | None = None
    ) -> None:
        """Log it, unless the same, or another line ``about`` the same, was logged lately."""
        thing = (text, values) if about is None else about
        if self._reactor is not None and self._lines.admits(thing, self._reactor.now()):
            self._reactor.say(level, text, values)

    def count_dropped(self, name: str, text: str, *values: object) -> None:
        """Count one under ``name`` and log ``text`` with ``values``: one line lately for each name."""
        self.count(name)
        line = f"%s: {text} (%s: %d so far)"
        self.say(line, self._who, *values, name, self.counts[name], about=(name,))

    def status(self) -> dict[str, int]:
        """All counters, by name."""
        return dict(sorted(self.counts.items()))
