"""Refusals of web users, told to the broker's journal.

What the gateway keeps away from the broker belongs into the same record as what the broker itself refuses
(``journal.denied``, see ``broker.services.journal``).

Only a broker with a journal is told, and so many a second at most; the next report says how many were left out.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, Final

from broker.identity import USERID_UNKNOWN
from broker.rates import Ration
from broker.wire.payload import encode_json

if TYPE_CHECKING:
    from gateway.hub import Hub
    from gateway.sessions.session import Session

TOPIC: Final = "journal.denied"
REPORTS_PER_S: Final = 100
"""Reports a second: whoever guesses topics as fast as it can must not fill the link to the broker."""


class Reports:
    """The reports of one process.

    Attributes:
        told: how many were sent. left_out: how many were not, of those that a journal should have had.
    """

    __slots__ = ("_hub", "_ration", "left_out", "told")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._ration = Ration(REPORTS_PER_S, hub.clock())
        self.told = 0
        self.left_out = 0

    def denied(self, session: Session, kind: str, topic: str, claimed: int = USERID_UNKNOWN) -> None:
        """``session`` was refused ``kind`` of ``topic``; ``claimed`` is the userid that its message named."""
        upstream = self._hub.upstream
        if not upstream.journals:
            return
        if not self._ration.admits(self._hub.clock()):
            self.left_out += 1
            return
        mine = session.principal
        said: dict[str, Any] = {
            "topic": topic,
            "errno": errno.EPERM,
            "userid": mine.userid,
            "rolemask": session.roles,
            "claimed": claimed,
            "session": session.id,
            "address": session.address,
            "transport": "websocket",
            "type": "event" if kind == "publish" else "request",
        }
        if left_out := self._ration.take_left_out():
            said["left_out"] = left_out
        self.told += 1
        upstream.tell(TOPIC, encode_json(said))
