"""From start to goodbye: the states of a broker, as deployed flux-core names and numbers them, and what moves it on.

A broker joins its parent, waits until the whole tree below rank 0 has been seen (quorum), and runs. Rank 0 runs once
every rank has been seen; the others copy the state of rank 0 through their parent (``state-machine.monitor``, as
deployed brokers do): they run when it runs, and leave at cleanup or later, the leaves of the tree first.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from typing import Final

from broker.errors import ProtocolError
from broker.services.context import Call, Context
from broker.services.state_machine import RUN, STATES
from broker.wire.message import STREAMING, UPSTREAM, Message
from broker.wire.payload import decode_json, encode_json

log = logging.getLogger("headgate")

CLEANUP: Final = STATES.index("cleanup")
LAST_WANTED: Final = STATES.index("shutdown")
"""The parent's states are followed up to this one, as deployed children do: we are leaving ourselves by then."""
_ENDS: Final = (errno.ENODATA, errno.EHOSTUNREACH)
"""How the stream of the parent's states ends in good order, or with the parent."""


class Lifecycle:
    """The state of one broker; it only moves forward, except that losing the parent leads back to ``join``.

    Args:
        now: monotonic clock in seconds.

    Attributes:
        watchers: called with the name of each new state.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began = self._since = now()
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

    def age_s(self) -> float:
        """Seconds since it was made."""
        return self._now() - self._began

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


class StateFollower:
    """Moves one broker's lifecycle on."""

    def __init__(self, context: Context, lifecycle: Lifecycle) -> None:
        self._context = context
        self._lifecycle = lifecycle
        self._monitor: Call | None = None

    def begin(self) -> None:
        """The doors are open, the parent is not reached yet."""
        self._lifecycle.enter("join")

    def joined(self) -> None:
        """The parent answered (or there is none): wait for the quorum, or copy the parent's state."""
        self._lifecycle.enter("init")
        self._lifecycle.enter("quorum")
        if self._context.rank == 0:
            self.subtree_changed(self._context.tree.subtree_status())
            return
        self._monitor = self._context.call(
            "state-machine.monitor",
            encode_json({"final": LAST_WANTED}),
            self._parent_state,
            nodeid=self._context.rank,
            flags=STREAMING | UPSTREAM,
        )

    def parent_lost(self) -> None:
        """Back to join, unless we are leaving anyway."""
        self._monitor = None
        self._lifecycle.enter("join")

    def subtree_changed(self, status: str) -> None:
        """Rank 0 runs as soon as everybody below has been there once."""
        if self._context.rank == 0 and status == "full" and self._lifecycle.number < RUN:
            self._lifecycle.enter("run")

    def _parent_state(self, message: Message) -> None:
        if message.errnum:
            # ENODATA: its last state was told; EHOSTUNREACH: the parent is lost, which ``parent_lost`` handles
            if message.errnum not in _ENDS:
                log.warning("the parent does not tell its state: %s", os.strerror(message.errnum))
            return
        try:
            number = decode_json(message.payload).get("state")
        except ProtocolError as error:
            log.warning("the parent tells no state: %s", error)
            return
        if number == RUN:
            self._lifecycle.enter("run")
        # of the parent's other states none concerns a child
        elif isinstance(number, int) and number >= CLEANUP:
            self._context.leave("the instance is shutting down")
