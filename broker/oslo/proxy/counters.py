"""What one pipeline counts: drops by their names, and lines in the log for them, not one for each."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from broker.oslo.reactor import Reactor
from broker.rates import Throttle

QUIET_S: Final = 10.0
"""After a line about one kind of drop: whoever floods us must not fill the log, too."""


class Counters:
    """Counters by name.

    Args:
        reactor: whose log takes what ``dropped`` says; None: nothing is said.
        who: begins each line, for instance the pipeline's name.

    Attributes:
        counts: the counters; a name appears when it was counted first. The hot path adds here directly.
        noticed: told each name that is counted, but for those of the hot path; None nobody.
    """

    def __init__(self, reactor: Reactor | None = None, who: str = "") -> None:
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.noticed: Callable[[str], None] | None = None
        self._reactor = reactor
        self._who = who
        self._lines = Throttle(QUIET_S)

    def count(self, name: str, n: int = 1) -> None:
        """Add ``n`` to the counter ``name``."""
        self.counts[name] += n
        if self.noticed is not None:
            self.noticed(name)

    def dropped(self, name: str, text: str, *values: object) -> None:
        """Count one under ``name`` and log ``text`` with ``values``, at most once in ``QUIET_S`` for each name."""
        self.count(name)
        if self._reactor is not None and self._lines.admits(name, self._reactor.now()):
            line = f"%s: {text} (%s: %d so far)"
            self._reactor.say(logging.WARNING, line, (self._who, *values, name, self.counts[name]))

    def status(self) -> dict[str, int]:
        """All counters, by name."""
        return dict(sorted(self.counts.items()))
