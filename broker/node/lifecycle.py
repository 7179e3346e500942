"""From start to goodbye: the states of a broker, as deployed flux-core names and numbers them.

A broker joins its parent, waits until the whole tree below rank 0 has been seen (quorum), and runs. Children follow
rank 0's state: at cleanup or later they leave, leaves first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from broker.services.state_machine import STATES

log = logging.getLogger("headgate")

CLEANUP: Final = STATES.index("cleanup")


class Lifecycle:
    """The state of one broker; it only moves forward, except that losing the parent leads back to ``join``.

    Args:
        now: monotonic clock in seconds.

    Attributes:
        watchers: called with the name of each new state.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = now()
        self.state: str = STATES[0]
        self.watchers: list[Callable[[str], None]] = []

    @property
    def number(self) -> int:
        """The state's number."""
        return STATES.index(self.state)

    @property
    def leaving(self) -> bool:
        """True from cleanup on."""
        return self.number >= CLEANUP

    def in_state_s(self) -> float:
        """Seconds since the state began."""
        return self._now() - self._since

    def enter(self, state: str) -> None:
        """Move on to ``state``; moving to the present state, or back but to ``join``, does nothing."""
        back = STATES.index(state) < self.number and (self.leaving or state != "join")
        if state == self.state or back:
            return
        log.info("state %s after %.1f s in %s", state, self.in_state_s(), self.state)
        self.state = state
        self._since = self._now()
        for watcher in list(self.watchers):
            watcher(state)
