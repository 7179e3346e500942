"""One turn of the loop: whatever happened in it is committed once and flushed once, at its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import Protocol

log = logging.getLogger("headgate")


class Sender(Protocol):
    """A peer with an outbox."""

    def flush(self) -> None:
        """Let go what may leave; ``Turns.hold`` when something waits for a commit."""


class Turns:
    """Collects who has something to send until the turn ends.

    Args:
        loop: whose turns. commit: hands what was put into the journal to the store. tick: the dispatcher's due
            timers; returns when to be called again. sent: called after a flush. overtaking: whether nothing can be
            stored at present, see ``Outbox.overtakers``.

    Attributes:
        committed: the last commit that is done.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        commit: Callable[[], None],
        tick: Callable[[float], float],
        sent: Callable[[], None],
        overtaking: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._commit = commit
        self._tick = tick
        self._sent = sent
        self.overtaking = overtaking
        self._touched: dict[Sender, None] = {}
        self._gated: dict[Sender, None] = {}
        self._handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.committed = 0

    def touch(self, sender: Sender) -> None:
        """``sender`` has something to send: it is flushed at the end of the turn."""
        self._touched[sender] = None
        if self._handle is None:
            self.soon()

    def soon(self) -> None:
        """End the turn soon: something was put or queued outside of one."""
        if self._handle is None and not self._closed:
            self._handle = self._loop.call_soon(self.finish)

    def forget(self, sender: Sender) -> None:
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
        """Try everybody who waits for a commit: the order may be left now, see ``Outbox.overtakers``."""
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
        self._run_timers()
        self._commit()
        if self._touched:
            self.flush()

    def hold(self, sender: Sender) -> None:
        """``sender`` waits for a commit."""
        self._gated[sender] = None

    def flush(self) -> None:
        """Flush who was touched."""
        touched, self._touched = self._touched, {}
        for sender in touched:
            sender.flush()
        self._sent()

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
            when = self._tick(self._loop.time())
        except Exception:
            log.exception("a timer of the dispatcher failed")
            when = self._loop.time() + 1.0
        timer = self._timer
        if timer is not None:
            if timer.when() <= when and not timer.cancelled() and timer.when() > self._loop.time():
                return  # early enough: it asks again
            timer.cancel()
            self._timer = None
        if when < inf:
            self._timer = self._loop.call_at(when, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self.finish()
