"""Who may connect, asked by libzmq in the middle of each handshake (see ``transport.zeromq.zap``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from broker.transport.zeromq.zap import tag

log = logging.getLogger("headgate")
WARN_EVERY_S: Final = 10.0
"""A refused peer tries again for ever; one line in so long says so."""


HOLD_S: Final = 0.25
"""How long a connection waits for the end of an earlier one of its key. A peer that closes its socket and opens the
next at once, as the text has workers do, may be here before its former connection is seen to end, and libzmq would
ignore it for ever. Peers that share a key, as all do without CURVE, wait for nothing, and that long."""


class Authenticator:
    """Lets in every key that is somebody.

    Args:
        loop: for timers. where: the endpoint, for the log. known: whether a key ("" without CURVE) is anybody.
        busy: whether a connection of a key is there. granted: told the address and key of who was let in.
        turned_away: told address, key and reason of who was not.

    Attributes:
        shut: see ``zap.ZapPolicy``. denied: connections refused so far.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        where: str,
        *,
        known: Callable[[str], bool],
        busy: Callable[[str], bool],
        granted: Callable[[str, str], None],
        turned_away: Callable[[str, str, str], None] | None = None,
    ) -> None:
        self.shut = False
        self.denied = 0
        self.turned_away = turned_away
        self._where = where
        self._known = known
        self._busy = busy
        self._granted = granted
        self._loop = loop
        self._held: dict[str, dict[Callable[[], None], asyncio.TimerHandle]] = {}
        self._quiet_until = 0.0

    def judge(self, address: str, key: str) -> str | None:
        """See ``zap.ZapPolicy``."""
        if self._known(key):
            self._granted(address, key)
            return tag(key)
        self.denied += 1
        if self.turned_away is not None:
            self.turned_away(address, key, "the key is not listed")
        if self._loop.time() >= self._quiet_until:
            self._quiet_until = self._loop.time() + WARN_EVERY_S
            log.warning("%s: refused %s: CURVE key %r is not listed", self._where, address, key)
        return None

    def hold(self, key: str, resume: Callable[[], None]) -> bool:
        """See ``zap.ZapPolicy``: while another connection of ``key`` is there, for ``HOLD_S`` at most."""
        if not self._busy(key):
            return False
        self._held.setdefault(key, {})[resume] = self._loop.call_later(HOLD_S, self._resume, key, resume)
        return True

    def ended(self, key: str) -> None:
        """The last connection of ``key`` is put away: who waits for that may come."""
        for resume, timer in list(self._held.get(key, {}).items()):
            timer.cancel()
            self._resume(key, resume)

    def close(self) -> None:
        """Leave who waits without an answer."""
        for held in self._held.values():
            for timer in held.values():
                timer.cancel()
        self._held.clear()

    def _resume(self, key: str, resume: Callable[[], None]) -> None:
        held = self._held[key]
        del held[resume]
        if not held:
            del self._held[key]
        resume()
