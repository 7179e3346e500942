"""Records refusals that the router cannot record itself: connections that were turned away, and messages that a
gateway refused.

::

    link     somebody was turned away at connect: ``denied.link``, ``tap.REFUSALS_PER_S`` at most; others are
             counted
    message  a gateway refused a message of one of its peers: recorded as if it had come to us and been refused. It
             rations its reports itself, and says how many it left out

What was left out is a record, too: ``denied.left_out``.
"""

from __future__ import annotations

from collections import OrderedDict
from time import monotonic
from typing import Any, Final, Protocol

from broker.identity import PeerInfo
from broker.journal.layout import DENIED, DENIED_LINK, LEFT_OUT, LINK_DOWN, WEBSOCKET
from broker.journal.tap import REFUSALS_PER_S, Tap
from broker.node.linkfacts import transport_by
from broker.rates import Ration
from broker.routing.port import Port
from broker.services.context import Denial
from broker.wire.message import Message, event, request, response

OUTSIDERS_MAX: Final = 256
"""Peers of gateways that have a number at a time; each refused session takes one, the oldest gives way."""


class RecordNotice(Protocol):
    """Something that records what is said about the broker itself."""

    def __call__(self, topic: str, facts: dict[str, Any], *, peer: int = 0, **how: Any) -> None:
        """One STATE record; ``how`` as of ``Tap.note``."""


class Refusals:
    """Those of one broker; to be told only while records are taken.

    Args:
        tap: where flux records go. own: the broker's own port. tell: see ``RecordNotice``.
    """

    def __init__(self, tap: Tap, own: Port, tell: RecordNotice) -> None:
        self._tap = tap
        self._own = own
        self._tell = tell
        self._ration = Ration(REFUSALS_PER_S, monotonic())
        self._outsiders: OrderedDict[tuple[str, str, str], int] = OrderedDict()

    def link(self, peer: PeerInfo, errnum: int, reason: str) -> None:
        """Somebody was turned away at connect."""
        if not self._ration.admits(monotonic()):
            return
        self.tell_left_out()
        facts: dict[str, Any] = {"address": peer.address, "uid": peer.uid, "errno": errnum, "reason": reason}
        if peer.key:
            facts["key"] = peer.key
        transport = transport_by(peer.address, peer.key)
        self._tell(DENIED_LINK, facts, direction=DENIED, reason=errnum, transport=transport)

    def tell_left_out(self) -> None:
        """Record how many links were turned away without a record; nothing when there were none."""
        owed = self._ration.take_left_out()
        if owed:
            self._tell(LEFT_OUT, {"records": owed, "topic": DENIED_LINK})

    def message(self, denial: Denial) -> None:
        """A gateway refused a message of one of its peers."""
        peer = self._outsider(denial)
        if denial.left_out:
            self._tell(LEFT_OUT, {"records": denial.left_out, "transport": denial.transport}, peer=peer)
        frame = _message_of(denial).framed()  # first: no mark stands alone
        self._tap.add(self._tap.mark(DENIED, peer, self._own.peer, denial.claimed, denial.errnum))
        self._tap.add(frame)

    def _outsider(self, denial: Denial) -> int:
        """The number of a peer that is a gateway's."""
        key = (denial.transport, denial.session, denial.address)
        number = self._outsiders.pop(key, 0)
        if not number:
            name = " ".join(word for word in (denial.address, denial.session) if word) or denial.transport
            transport = WEBSOCKET if denial.transport == "websocket" else 0
            number = self._tap.peer(name, transport, "web", session=denial.session, address=denial.address)
        self._outsiders[key] = number
        while len(self._outsiders) > OUTSIDERS_MAX:
            (_, session, address), oldest = self._outsiders.popitem(last=False)
            facts = {
                "peer": f"{address} {session}".strip(),
                "cause": "closed",
                "reason": "not heard of for long",
            }
            self._tell(LINK_DOWN, facts, peer=oldest)
            self._tap.forget(oldest)
        return number


def _message_of(denial: Denial) -> Message:
    """The message that was refused, as far as its topic and credentials go."""
    asked = request(denial.topic, userid=denial.userid, rolemask=denial.rolemask)
    if denial.kind == "response":
        return response(asked, userid=denial.userid, rolemask=denial.rolemask)
    if denial.kind == "event":
        return event(denial.topic, userid=denial.userid, rolemask=denial.rolemask)
    return asked
