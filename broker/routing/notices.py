"""Disconnect notices: services learn that a client which called them has gone (RFC 6, "Disconnection").

A request *arms* one notice per (service path, nodeid, upstream, sender); a sender's own ``X.disconnect`` disarms it
and ends the sender's open calls to X. ``departure`` sends what is still armed when the client goes.
"""

# compiled: mypyc

from __future__ import annotations

from typing import Final

from broker.routing.open_calls import end
from broker.routing.port import CLIENT, PARENT, Decision, Port
from broker.wire.message import DELIMITER, UPSTREAM, Message
from broker.wire.parts import encode_part
from broker.wire.topic import path_of

NOTICE: Final = b".disconnect"
"""How the topic of a notice ends."""


def notice_key(topic: bytes, head: bytes) -> bytes:
    """(service path, upstream, nodeid): one disconnect notice each."""
    return b"".join((path_of(topic), b"\0", bytes((head[4] & UPSTREAM,)), head[13:]))


def arm(port: Port, decision: Decision, front: bytes, message: Message, limit: int) -> None:
    """Remember that the provider learns of the end of ``front`` below ``port``; above ``limit`` notices it does not."""
    key = decision.notice_key + front
    if key not in port.notices and len(port.notices) < limit:
        notice = encode_part(decision.service + NOTICE)
        port.notices[key] = (decision.head, message.tag, notice, front)


def disarm(port: Port, message: Message, topic: bytes) -> bool:
    """A sender's own X.disconnect passes: X owes it nothing more. False when a client never asked X."""
    front = message.front or DELIMITER
    if port.kind == PARENT:
        front = front[len(port.hop) :]
    service = topic[: -len(NOTICE)]
    if port.kind == CLIENT and port.notices.pop(notice_key(topic, message.head) + front, None) is None:
        return False
    for calls in list(port.asked.get(front + service, ())):
        end(calls)
    return True
