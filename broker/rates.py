"""How often something may happen: token buckets, for clients, for records and for lines of a log.

Pure: the caller has the clock.
"""

# compiled: mypyc

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

USERS_MAX: int = 4096
"""Users, or addresses, whose rate is remembered; the one that sent longest ago is forgotten first."""
KEYS_MAX: int = 4096
"""Things that a throttle tells apart; beyond it all are forgotten: a stranger may have as many names as it likes."""
PAUSE_SHARE: Final = 0.25
"""The hint is the time in which this share of the burst fills up again: a client that waits it out may send many, and
is not told the same again by its next message."""
FLOOD_BURSTS: Final = 10
"""Refusals, in bursts, without a single pause as long as the hint: more is ignoring the limit, not meeting it."""
BACKLOG_S: Final = 10.0
"""What came while nobody was here to read is read within this."""

_ROUNDING: Final = 1e-6
"""A caller that comes back exactly when told gets in, whatever the last bits of the clock say."""


class Bucket:
    """``rate`` tokens a second, at most ``burst`` of them kept.

    Args:
        rate: tokens a second, over time; 0 has no limit.
        burst: tokens that are there at the beginning, and the most there ever are.
        now: monotonic seconds.

    Attributes:
        refused: messages refused since the last pause that let the bucket fill to a quarter, less what was forgiven.
    """

    __slots__ = ("_burst", "_forgiven_until", "_pause", "_rate", "_seen", "_tokens", "refused")

    def __init__(self, rate: float, burst: float, now: float = 0.0) -> None:
        self._rate = rate
        self._burst = max(float(burst), 1.0)
        self._tokens = self._burst
        self._pause = max(PAUSE_SHARE * self._burst, 1.0)
        self._seen = now
        self._forgiven_until = now
        self.refused = 0

    def take(self, now: float) -> float:
        """Take one token; returns 0.0, or the seconds after which to try again.

        >>> bucket = Bucket(10, 2)
        >>> bucket.take(0.0), bucket.take(0.0), bucket.take(0.0), bucket.take(0.2)
        (0.0, 0.0, 0.1, 0.0)
        """
        return 0.0 if self.grant(now, 1) else self.refuse()

    def grant(self, now: float, wanted: int) -> int:
        """Take up to ``wanted`` tokens; returns how many there were."""
        if not self._rate:
            return wanted
        tokens = min(self._burst, self._tokens + (now - self._seen) * self._rate)
        self._seen = now
        if self.refused < 0 and now > self._forgiven_until:
            self.refused = 0
        if tokens + _ROUNDING >= self._pause:
            self.refused = min(self.refused, 0)
        granted = max(min(wanted, int(tokens + _ROUNDING)), 0)
        self._tokens = tokens - granted
        return granted

    def charge(self, tokens: float) -> None:
        """Take tokens whether or not they are there: those who come next wait until they are made good."""
        self._tokens -= tokens

    def forgive(self, now: float, seconds: float) -> None:
        """Nobody was here to read for so long: what was sent at the rate meanwhile comes at once, and is no flood.

        That is what the burst does not hold. It lapses after ``BACKLOG_S``, and the most of several times counts.
        """
        beyond = int(seconds * self._rate - self._burst)
        if beyond > 0:
            self.refused = min(self.refused, max(self.refused, 0) - beyond)
            self._forgiven_until = now + BACKLOG_S

    def refuse(self) -> float:
        """Count one message that found no token; returns the seconds after which to try again."""
        self.refused += 1
        return (self._pause - self._tokens) / self._rate

    @property
    def flooding(self) -> bool:
        """True when the hints were ignored for long: ``FLOOD_BURSTS`` times the burst was refused without a pause."""
        return self.refused > FLOOD_BURSTS * self._burst


class Buckets:
    """A bucket for each user, or each address.

    Args:
        rate: tokens a second, over time; 0 has no limit. burst: tokens above the rate that are taken at once.
    """

    __slots__ = ("_buckets", "_burst", "_rate")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def of(self, user: str, now: float) -> Bucket:
        """The bucket of ``user``."""
        bucket = self._buckets.pop(user, None)
        if bucket is None:
            bucket = Bucket(self._rate, self._burst, now)
            if len(self._buckets) >= USERS_MAX:
                self._buckets.popitem(last=False)
        self._buckets[user] = bucket
        return bucket


class Ration:
    """What is told of many: ``rate`` a second, and as many at once after a pause; how many the rest were.

    Args:
        rate: a second. now: monotonic seconds.

    >>> ration = Ration(2, 0.0)
    >>> [ration.admits(0.0) for _ in range(4)], ration.take_left_out(), ration.take_left_out()
    ([True, True, False, False], 2, 0)
    >>> ration.admits(0.5), ration.admits(0.5)
    (True, False)
    """

    __slots__ = ("_bucket", "_left_out")

    def __init__(self, rate: float, now: float) -> None:
        self._bucket = Bucket(rate, rate, now)
        self._left_out = 0

    def admits(self, now: float) -> bool:
        """Whether one more is told now; False counts it as left out."""
        if self._bucket.grant(now, 1):
            return True
        self._left_out += 1
        return False

    def take_left_out(self) -> int:
        """How many were left out since this was asked last; to be told."""
        left_out, self._left_out = self._left_out, 0
        return left_out


class Throttle:
    """Admits each of many things once in ``every_s`` seconds: lines of a log, answers that somebody could ask for
    again and again.

    >>> lines = Throttle(60.0)
    >>> lines.admits("a", 0.0), lines.admits("a", 59.0), lines.admits("b", 59.0), lines.admits("a", 60.0)
    (True, False, True, True)
    """

    __slots__ = ("_admitted", "_every_s")

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._admitted: dict[Hashable, float] = {}

    def admits(self, thing: Hashable, now: float) -> bool:
        """Whether it was not admitted within the last ``every_s``; ``now``: monotonic seconds."""
        last = self._admitted.get(thing)
        if last is not None and now - last < self._every_s:
            return False
        if len(self._admitted) >= KEYS_MAX:
            self._admitted.clear()
        self._admitted[thing] = now
        return True
