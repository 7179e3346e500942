"""What is owed when a port goes (RFC 3, "Background"; RFC 6, "Disconnection").

Its open calls are forgotten; calls waiting for it are answered EHOSTUNREACH, none is left hanging; every
provider it ever asked gets one disconnect notice; what was pending through a lost neighbour as a stream gets one too.
"""

from __future__ import annotations

import errno

from broker.routing.lookalikes import NO_TAG
from broker.routing.notices import NOTICE
from broker.routing.port import CLIENT, PARENT, Decision, Port, Repeat
from broker.routing.router import Router
from broker.wire.message import NORESPONSE, PAYLOAD, RESPONSE, ROUTE, STREAMING, TOPIC, Message
from broker.wire.parts import encode_part, part_data
from broker.wire.topic import path_of


def depart(router: Router, port: Port, reason: str = "") -> int:
    """Detach ``port`` and settle its affairs; returns how many open calls of others were answered.

    ``reason`` is the text of those answers; "" sends none.
    """
    router.detach(port)
    for name in list(port.services):
        router.services.remove(name, port)
    answered = 0
    if port.kind != CLIENT or port.provided:
        answered = sum(_answer_waiting(router, origin, port, reason) for origin in list(router.ports))
    if port.kind == CLIENT:
        _send_notices(router, port)
    else:
        _end_streams(router, port)
    port.pending = {}
    port.untagged = {}
    port.armed = {}
    port.cache = {}
    return answered


def _answer_waiting(router: Router, origin: Port, gone: Port, reason: str) -> int:
    """Answer every call of ``origin`` that waits for ``gone``."""
    answered = 0
    for key, entry in [(k, d) for k, d in origin.pending.items() if _waits_for(d, gone)]:
        left = [call for call in entry.calls() if call.target is not gone]
        answered += len(entry.calls()) - len(left)
        for call in entry.calls():
            if call.target is gone:
                router.deliver(origin, unreachable(router, call, key, reason), gone)
        if left and isinstance(entry, Repeat):
            entry.waiting = left
        else:
            del origin.pending[key]
    return answered + _answer_untagged(router, origin, gone, reason)


def _answer_untagged(router: Router, origin: Port, gone: Port, reason: str) -> int:
    """Answer senders whose latest call with matchtag 0 waits for ``gone``, once each."""
    answered = 0
    for front in [f for f, targets in origin.untagged.items() if gone in targets]:
        call, unanswered = origin.untagged[front].pop(gone)
        if not origin.untagged[front]:
            del origin.untagged[front]
        if unanswered:
            answered += 1
            router.deliver(origin, unreachable(router, call, front + NO_TAG, reason), gone)
    return answered


def _waits_for(entry: Decision, gone: Port) -> bool:
    return any(call.target is gone for call in entry.calls())


def unreachable(router: Router, call: Decision, key: bytes, reason: str) -> Message:
    """The answer EHOSTUNREACH to the open call ``call`` with pending key ``key`` (rest of stack + matchtag)."""
    origin = call.origin
    front = key[:-4] if origin.kind != PARENT else origin.hop + key[:-4]
    flags = (call.head[4] & ~PAYLOAD) | ROUTE
    payload = encode_part(reason.encode() + b"\0") if reason else b""
    if payload:
        flags |= PAYLOAD
    lead = b"".join((b"\x14\x8e\x01", bytes((RESPONSE, flags)), router.own.cred.encode()))
    router.tally.answered += 1
    return Message(front, call.topic_part, payload, lead + errno.EHOSTUNREACH.to_bytes(4, "big"), key[-4:])


def _send_notices(router: Router, port: Port) -> None:
    """One SERVICE.disconnect per (service, nodeid, upstream, sender) that ``port`` asked."""
    owed, port.armed = port.armed, {}
    for head, tag, topic_part, front in owed.values():
        flags = (head[4] & ~(PAYLOAD | STREAMING)) | NORESPONSE | ROUTE | TOPIC
        router.request(port, Message(front, topic_part, b"", head[:4] + bytes((flags,)) + head[5:], tag))


def _end_streams(router: Router, port: Port) -> None:
    """A neighbour is lost: tell the providers of the streams that ran through it."""
    for key, entry in port.pending.items():
        for call in entry.calls():
            if call.once or not call.target.live:
                continue
            topic = path_of(bytes(part_data(call.topic_part) or b"")) + NOTICE
            flags = (call.head[4] & ~(PAYLOAD | STREAMING)) | NORESPONSE
            head = call.head[:4] + bytes((flags,)) + call.head[5:]
            router.tally.notices += 1
            notice = Message(call.push + key[:-4], encode_part(topic), b"", head, key[-4:])
            router.deliver(call.target, notice, port)
