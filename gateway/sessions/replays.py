"""Schedules replays of event history: one portion in each turn of the loop, users in turn, charged to each user's
rate.

However many clients of however many users come back at once, whatever else the process does goes on between two
portions. A user's portions are charged event by event; whoever asks for the history again and again waits, and nobody
else does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.rates import Buckets

if TYPE_CHECKING:
    from gateway.hub import Hub
    from gateway.principal import Principal
    from gateway.sessions.resume import Resumption


class Replays:
    """Turns and allowances of one process.

    At once a user may replay the whole history over each connection that it may have, and ``limits.replay_msgs_per_s``
    over time; owners without limit.
    """

    __slots__ = ("_buckets", "_handle", "_hub", "_rows")

    def __init__(self, hub: Hub) -> None:
        settings = hub.settings
        burst = max(settings.gateway.history_msgs, 1) * settings.limits.connections_per_user
        self._hub = hub
        self._buckets = Buckets(settings.limits.replay_msgs_per_s, burst)
        self._rows: dict[str, dict[Resumption, None]] = {}  # by user; who is first has the next turn
        self._handle: asyncio.Handle | None = None

    def wait_s(self, principal: Principal) -> float:
        """Seconds after which ``principal`` may begin another replay; 0.0 is now."""
        return (
            0.0 if self.grant(principal, 1) else self._buckets.of(principal.name, self._hub.clock()).refuse()
        )

    def grant(self, principal: Principal, wanted: int) -> int:
        """Charge ``principal`` for up to so many events; returns for how many."""
        if principal.owner:
            return wanted
        now = self._hub.clock()
        return self._buckets.of(principal.name, now).grant(now, wanted)

    def add(self, resumption: Resumption) -> None:
        """Give ``resumption`` one turn, after those of its user that wait already."""
        self._rows.setdefault(resumption.session.principal.name, {})[resumption] = None
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def remove(self, resumption: Resumption) -> None:
        """It needs no turn any more; harmless when it waits for none."""
        user = resumption.session.principal.name
        row = self._rows.get(user, {})
        row.pop(resumption, None)
        if not row:
            self._rows.pop(user, None)

    def stop(self) -> None:
        """No more turns."""
        self._rows.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _turn(self) -> None:
        self._handle = None
        if not self._rows:
            return
        user = next(iter(self._rows))
        row = self._rows.pop(user)
        resumption = next(iter(row))
        del row[resumption]
        if row:
            self._rows[user] = row
        try:
            resumption.turn()
        except Exception as error:
            self._hub.fault(resumption.session, error)
        if self._rows and self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._turn)
