"""One turn of the loop: whatever happened in it is committed once and flushed once, at its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import Any

from broker.awake import AwakeClock
from broker.nfp.server.connections import QueuedPeer

log = logging.getLogger("headgate")


class Turn:
    """Collects who has something to send until the turn ends: then one commit, and one flush of each of them.

    Args:
        loop: whose turns. commit: see ``StoreThread.commit``. tick: the dispatcher's due
            timers; returns when to be called again. gate_is_stuck: whether nothing can be stored at present, see
            ``Outbox.ready_despite_gate``.

    Attributes:
        committed: the last commit that is done. clock: what ``tick`` is told.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        commit: Callable[..., None],
        tick: Callable[[float], float],
        gate_is_stuck: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self.clock = AwakeClock(loop.time)
        self._commit = commit
        self._tick = tick
        self.gate_is_stuck = gate_is_stuck
        self._touched: dict[QueuedPeer[Any], None] = {}
        self._gated: dict[QueuedPeer[Any], None] = {}
        self._handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._ending = False
        self._waited = False
        self.committed = 0

    def touch(self, sender: QueuedPeer[Any], after: int = 0) -> None:
        """``sender`` has something to send, behind the commit ``after``: it is flushed at the end of the turn."""
        self._touched[sender] = None
        if after > self.committed:
            self._waited = True
        self.soon()

    def soon(self) -> None:
        """End the turn soon: something was put or queued, perhaps outside of one."""
        if self._handle is None and not self._ending and not self._closed:
            self._handle = self._loop.call_soon(self.finish)

    def forget(self, sender: QueuedPeer[Any]) -> None:
        """``sender`` is gone."""
        self._touched.pop(sender, None)
        self._gated.pop(sender, None)

    def commit_done(self, number: int) -> None:
        """The store has made durable everything up to ``number``."""
        self.committed = number
        self._touched.update(self._gated)
        self._gated.clear()
        self.finish()

    def retry(self) -> None:
        """Try everybody who waits for a commit: the order may be left now, see ``Outbox.ready_despite_gate``."""
        self._touched.update(self._gated)
        self._gated.clear()
        self.soon()

    def finish(self) -> None:
        """The end of a turn."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._closed:
            return
        self._ending = True  # what the timers have to say leaves with the rest
        self._run_timers()
        waited, self._waited = self._waited, False
        try:
            self._commit(waited=waited)
        except Exception:
            log.exception("a commit could not be begun")
        self._ending = False
        if self._touched:
            self.flush()

    def hold(self, sender: QueuedPeer[Any]) -> None:
        """``sender`` waits for a commit."""
        self._gated[sender] = None

    def flush(self) -> None:
        """Flush who was touched."""
        touched, self._touched = self._touched, {}
        for sender in touched:
            try:
                sender.flush()
            except Exception:  # the others must not pay for it
                log.exception("%r could not be flushed", sender)

    def close(self) -> None:
        """No more turns."""
        self._closed = True
        for handle in (self._handle, self._timer):
            if handle is not None:
                handle.cancel()
        self._touched.clear()
        self._gated.clear()

    def _run_timers(self) -> None:
        try:
            when = self._tick(self.clock.now())
        except Exception:
            log.exception("a timer of the dispatcher failed")
            when = self.clock.now() + 1.0
        when = self.clock.loop_time(when)
        timer = self._timer
        if timer is not None:
            if timer.when() <= when and not timer.cancelled() and timer.when() > self._loop.time():
                return  # early enough: it asks again
            timer.cancel()
            self._timer = None
        if when < inf:
            self._timer = self._loop.call_at(when, self._timed)
            self.clock.wakes_at(when)

    def _timed(self) -> None:
        self._timer = None
        self.finish()
