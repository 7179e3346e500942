"""Drives the lifecycle: join, quorum, run, leave; every broker but rank 0 follows the state of its parent.

Rank 0 runs once every rank has been seen; the others copy rank 0 through their parent
(``state-machine.monitor``, as deployed brokers do): run when it runs, leave when it leaves.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import Final

from broker.errors import ProtocolError
from broker.node.lifecycle import CLEANUP, Lifecycle
from broker.services.context import Call, Context
from broker.services.state_machine import RUN, STATES
from broker.wire.message import STREAMING, UPSTREAM, Message
from broker.wire.payload import decode_json, encode_json

log = logging.getLogger("headgate")

LAST_WANTED: Final = STATES.index("shutdown")
"""The parent's states are followed up to this one, as deployed children do: we are leaving ourselves by then."""
_ENDS: Final = (errno.ENODATA, errno.EHOSTUNREACH)
"""How the stream of the parent's states ends in good order, or with the parent."""


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
        elif isinstance(number, int) and number >= CLEANUP:
            self._context.leave("the instance is shutting down")
