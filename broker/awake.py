"""Time in which this process ran, and time in which it was stalled.

A process that is stopped (a debugger, a frozen container, a machine without memory) hears nobody meanwhile, and what
was sent to it waits in its sockets. Its own stall must not count as the silence of others: every measurement of silence
subtracts the time by which a timer came too late. One rule for every room that judges by silence. The deadline of a
call holds by the clock, whichever side was stalled.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

LATE_S: Final = 0.5
"""A timer that comes later than this was not held up by work: turns are shorter."""


def stall_s(due: float, now: float) -> float:
    """Return the seconds this process was stalled, for a timer that was due at ``due`` and is called ``now``; 0.0 for a
    delay of ``LATE_S`` or less.
    """
    late = now - due
    return late if late > LATE_S else 0.0


class AwakeClock:
    """Monotonic seconds in which the process ran.

    Args:
        time: monotonic seconds, as the event loop counts them.

    Attributes:
        stalled_s: seconds so far in which it did not.
    """

    __slots__ = ("_due", "_time", "stalled_s")

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self.stalled_s = 0.0
        self._due = inf

    def now(self) -> float:
        """Return the seconds so far. It never goes back."""
        time = self._time()
        if time > self._due:
            late = stall_s(self._due, time)
            if late:
                self.stalled_s += late
                self._due = time
        return time - self.stalled_s

    def loop_time(self, when: float) -> float:
        """Return when the event loop's clock will show ``when``, if the process is not stalled until then."""
        return when + self.stalled_s

    def wakes_at(self, due: float) -> None:
        """A timer of the loop is set for its time ``due`` (``inf``: none); a later call means a stall."""
        self._due = due


class StallMeter:
    """Measures the stalls between the calls of a timer that looks for silent peers.

    The first late call discards the whole interval since the call before, because a stopped process cannot know how
    soon after that it was stopped. A second late call in a row discards only its delay: a process that is always late
    must end its waits, too.

    Args:
        time: monotonic seconds, as the timer counts them.
    """

    __slots__ = ("_due", "_here", "_late", "_time")

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._here = time()
        self._due = inf
        self._late = False

    def wakes_at(self, due: float) -> None:
        """The timer is set for ``due``: this process runs, and will until then, unless it is stopped."""
        now = self._time()
        # no timer was set for so long: that time is no stall, and counts as silence
        if now - self._here > LATE_S:
            self._late = False
        self._here, self._due = now, due

    def stalled_s(self) -> float:
        """Return the seconds since the call before, or since ``wakes_at``, to be subtracted from a silence."""
        now = self._time()
        passed, self._here = now - self._here, now
        if now < self._due:  # called before the timer, which says nothing about a stall
            return 0.0
        late = stall_s(self._due, now)
        again, self._late = self._late, late > 0
        if not late:
            return 0.0
        return min(late, passed) if again else passed


class Deadline:
    """Calls ``call`` when the loop's clock shows ``due``; if this process was stopped until then, ``again_s`` later.

    What is waited for may be here by then, and is read first. The call is put off once: a process that is always late
    must end its waits, too.
    """

    __slots__ = ("_timer",)

    def __init__(self, loop: Any, due: float, again_s: float, call: Callable[[], object]) -> None:
        self._timer: Any = loop.call_at(due, self._due, loop, due, again_s, call)

    def cancel(self) -> None:
        """Do not make the call; harmless afterwards."""
        self._timer.cancel()

    def _due(self, loop: Any, due: float, again_s: float, call: Callable[[], object]) -> None:
        if stall_s(due, loop.time()):
            self._timer = loop.call_later(again_s, call)
        else:
            call()
