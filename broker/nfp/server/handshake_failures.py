"""Connections that fail before anybody is known: said once in a while for each address, counted in between."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

log = logging.getLogger("headgate")
QUIET_S: Final = 60.0
"""A peer with another key tries again for ever, a scanner as often as it likes: one line a minute for each address."""
ADDRESSES_MAX: Final = 256
"""Addresses told apart; what comes from further ones in the same minute is told as one."""
ELSEWHERE: Final = "other addresses"
LEFT: Final = "an address that had left already"


class HandshakeFailures:
    """Failed handshakes at one endpoint.

    Args:
        loop: for timers.

    Attributes:
        where: the endpoint, for the log.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, where: str) -> None:
        self._loop = loop
        self.where = where
        self._more: dict[str, int] = {}
        """By address, those since the last line."""
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def add(self, address: str, why: str) -> None:
        """A handshake with ``address`` ("" when it cannot be told any more) failed."""
        told = address or LEFT
        if told not in self._more and len(self._more) >= ADDRESSES_MAX:
            told = ELSEWHERE
        if told in self._more:
            self._more[told] += 1
            return
        log.warning("%s: a connection from %s failed in its handshake (%s)", self.where, told, why)
        self._later(told)

    def close(self) -> None:
        """Say no more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _later(self, told: str) -> None:
        self._more[told] = 0
        self._timers[told] = self._loop.call_later(QUIET_S, self._tell, told)

    def _tell(self, told: str) -> None:
        """A minute is over: how many more there were; who tried no more is forgotten."""
        count = self._more.pop(told)
        del self._timers[told]
        if count:
            log.warning(
                "%s: %d more connections from %s failed in their handshakes within %g s",
                self.where,
                count,
                told,
                QUIET_S,
            )
            self._later(told)
