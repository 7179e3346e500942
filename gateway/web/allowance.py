"""How fast one user may call over HTTP, where a session costs no more than a connection: its rate would bound nobody."""

from __future__ import annotations

import errno
from collections.abc import Callable

from broker.rates import Buckets
from gateway.principal import Principal
from gateway.web.errors import Refusal


class Allowance:
    """A rate for each user.

    Args:
        rate: calls in a second, over time; 0 has no limit. burst: calls above the rate that are taken at once.
        clock: monotonic seconds.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._buckets = Buckets(rate, burst)

    def take(self, principal: Principal, topic: str = "", *, calls: int = 1) -> None:
        """Count a call of ``principal``, or what is worth so many; owners have no limit.

        Raises:
            Refusal: 429, with the time after which the next call fits.
        """
        if not self._rate or principal.owner:
            return
        bucket = self._buckets.of(principal.name, self._clock())
        wait_s = bucket.take(self._clock())
        if wait_s > 0:
            text = f"more than {self._rate:g} calls a second (limits.msgs_per_s)"
            raise Refusal(429, text, errno.EAGAIN, topic=topic, retry_s=wait_s)
        if calls > 1:
            bucket.charge(calls - 1)
