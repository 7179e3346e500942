"""Back-pressure: sessions that publish above their share are paused while the upstream says that events have to wait
(``broker.node.pressure``).

The broker's own rule, applied where a client can be paused: what a session has said already is sent, and it is not read
until events move on or shares have grown. Providers wait, too: that ends without anybody's help.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.wire.shares import RENEW_S, Shares, cost

if TYPE_CHECKING:
    from broker.wire.message import Message
    from gateway.sessions.session import Session


class Publishers:
    """The publishing sessions of one process.

    Attributes:
        shut: events have to wait.
    """

    def __init__(self) -> None:
        self.shut = False
        self._shares = Shares()
        self._held: dict[Session, None] = {}
        self._renewing: asyncio.TimerHandle | None = None

    def set_shut(self, shut: bool) -> None:
        """The upstream has said so."""
        self.shut = shut
        if not shut:
            self._release()

    def published(self, session: Session, message: Message) -> None:
        """``session`` has published ``message`` while ``shut``: it is read no more if that is beyond its share."""
        if self._shares.take(session.principal.userid, cost(message)):
            self._renew_later()
        elif session not in self._held:
            self._held[session] = None
            session.set_paused(True)

    def forget(self, session: Session) -> None:
        """It has ended."""
        self._held.pop(session, None)

    def _renew_later(self) -> None:
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().call_later(RENEW_S, self._renew)

    def _renew(self) -> None:
        self._renewing = None
        self._shares.grow(RENEW_S)
        if self._shares:
            self._renew_later()
        self._release()

    def _release(self) -> None:
        held, self._held = self._held, {}
        for session in held:
            session.set_paused(False)
