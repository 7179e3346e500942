"""How fast one user may call over HTTP, where each call is a session of its own and has no rate to itself."""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gateway.principal import Principal
from gateway.rates import Bucket
from gateway.web.errors import Refusal

USERS_MAX: Final = 4096
"""Users whose rate is remembered; the one that called longest ago is forgotten first."""


class Allowance:
    """A token bucket per user.

    Args:
        rate: calls in a second, over time; 0 has no limit. burst: calls above the rate that are taken at once.
        clock: monotonic seconds.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, principal: Principal, topic: str = "") -> None:
        """Count one call of ``principal``; owners have no limit.

        Raises:
            Refusal: 429, with the time after which the next call fits.
        """
        if not self._rate or principal.owner:
            return
        bucket = self._buckets.pop(principal.name, None)
        if bucket is None:
            bucket = Bucket(self._rate, self._burst, self._clock())
            if len(self._buckets) >= USERS_MAX:
                self._buckets.popitem(last=False)
        self._buckets[principal.name] = bucket
        wait_s = bucket.take(self._clock())
        if wait_s > 0:
            raise Refusal(
                429, f"more than {self._rate:g} calls a second", errno.EAGAIN, topic=topic, retry_s=wait_s
            )
