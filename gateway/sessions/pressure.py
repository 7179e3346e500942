"""Back-pressure: which sessions are not read because the upstream takes no more.

A session may be held for two reasons. *The link up is choked*: whoever sends is held until it takes more; providers
are not, for others wait for their answers. *Events have to wait* at the brokers (``broker.node.pressure``): their own
rule is applied where a client can be paused; what a session has said already is sent, and above its share it is not
read until events move on or shares have grown. Providers wait then, too: that ends without anybody's help.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.wire.shares import RENEW_S, Shares, cost

if TYPE_CHECKING:
    from broker.wire.message import Message
    from gateway.sessions.session import Session


class Pressure:
    """The held sessions of one process.

    Attributes:
        shut: events have to wait.
    """

    def __init__(self) -> None:
        self.shut = False
        self._shares = Shares()
        self._senders: dict[Session, None] = {}
        self._publishers: dict[Session, None] = {}
        self._renewing: asyncio.TimerHandle | None = None

    def forget(self, session: Session) -> None:
        """``session`` has ended."""
        self._senders.pop(session, None)
        self._publishers.pop(session, None)

    # -- the link up is choked -----------------------------------------------------------------

    def hold(self, session: Session) -> None:
        """Read no more of a session that is no provider until the upstream takes more."""
        if not session.provider.names and session not in self._senders:
            self._senders[session] = None
            session.set_paused(True)

    def release(self, session: Session) -> None:
        """Read ``session`` again, if ``hold`` held it."""
        if session in self._senders:
            del self._senders[session]
            session.set_paused(False)

    def release_all(self) -> None:
        """The upstream takes more."""
        _read_again(self._senders)

    # -- events have to wait -------------------------------------------------------------------

    def set_shut(self, shut: bool) -> None:
        """The upstream has said so."""
        self.shut = shut
        if not shut:
            _read_again(self._publishers)

    def published(self, session: Session, message: Message) -> None:
        """``session`` has published ``message`` while ``shut``: it is read no more if that is beyond its share."""
        # by user: more connections are no more share
        if self._shares.take(session.principal.userid, cost(message)):
            self._renew_later()
        elif session not in self._publishers:
            self._publishers[session] = None
            session.set_paused(True)

    def _renew_later(self) -> None:
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().call_later(RENEW_S, self._renew)

    def _renew(self) -> None:
        self._renewing = None
        self._shares.grow(RENEW_S)
        if self._shares:
            self._renew_later()
        _read_again(self._publishers)


def _read_again(held: dict[Session, None]) -> None:
    sessions = list(held)
    held.clear()  # first: who is read again may be held again at once
    for session in sessions:
        session.attempt(session.set_paused, False)
