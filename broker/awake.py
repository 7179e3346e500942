"""Time in which this process was there to hear anybody.

A process that is stopped (a debugger, a frozen container, a machine without memory) hears nobody meanwhile, and what
was sent to it waits in its sockets. Its own absence must not count as the silence of others: whoever measures silence
takes out what a timer came too late. One rule for every room that judges by silence. The deadline of a call holds by
the clock, whoever was absent.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

LATE_S: Final = 0.5
"""A timer that comes later than this was not held up by work: turns are shorter."""


def absent_s(due: float, now: float) -> float:
    """Return the seconds in which nobody was here, for a timer that was due at ``due`` and is called ``now``."""
    late = now - due
    return late if late > LATE_S else 0.0


class AwakeClock:
    """Monotonic seconds in which the process was there.

    Args:
        time: monotonic seconds, as the event loop counts them.

    Attributes:
        absent: seconds so far in which it was not.
    """

    __slots__ = ("_due", "_time", "absent")

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self.absent = 0.0
        self._due = inf

    def now(self) -> float:
        """Return the seconds so far. It never goes back."""
        time = self._time()
        if time > self._due:
            absent = absent_s(self._due, time)
            if absent:
                self.absent += absent
                self._due = time
        return time - self.absent

    def loop_time(self, when: float) -> float:
        """Return when the event loop's clock will show ``when``, if nobody is absent until then."""
        return when + self.absent

    def wakes_at(self, due: float) -> None:
        """A timer of the loop is set for its time ``due``, ``inf`` none: to be called later is to have been absent."""
        self._due = due


class Looks:
    """Looks at who may be silent, by a timer, and the time between them that is nobody's silence.

    When this process was stopped, nobody knows how soon after the look before. So all the time since then is taken out
    where a look is late. Of the next one, if it is late again, only what it came too late: who is always late ends its
    waits, too.

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
        """The timer is set for ``due``: this process is here, and will be until then, unless it is stopped."""
        now = self._time()
        if now - self._here > LATE_S:  # it was not set for so long, and all that time counts
            self._late = False
        self._here, self._due = now, due

    def absent(self) -> float:
        """Look: return the seconds since the look before, or since ``wakes_at``, to be taken out."""
        now = self._time()
        passed, self._here = now - self._here, now
        if now < self._due:  # before the timer
            return 0.0
        late = absent_s(self._due, now)
        again, self._late = self._late, late > 0
        if not late:
            return 0.0
        return min(late, passed) if again else passed


class Deadline:
    """Calls ``call`` when the loop's clock shows ``due``; if this process was stopped until then, ``again_s`` later.

    What is waited for may be here by then, and is read first. Put off once: who is always late ends its waits, too.
    """

    __slots__ = ("_timer",)

    def __init__(self, loop: Any, due: float, again_s: float, call: Callable[[], object]) -> None:
        self._timer: Any = loop.call_at(due, self._due, loop, due, again_s, call)

    def cancel(self) -> None:
        """It will not be called; harmless afterwards."""
        self._timer.cancel()

    def _due(self, loop: Any, due: float, again_s: float, call: Callable[[], object]) -> None:
        if absent_s(due, loop.time()):
            self._timer = loop.call_later(again_s, call)
        else:
            call()
