"""Ends a port: its open calls are answered with an error, disconnect notices are sent (RFC 3, "Background"; RFC 6,
"Disconnection").

Its open calls are forgotten; calls waiting for it are answered EHOSTUNREACH, none is left hanging; every
provider it ever asked gets one disconnect notice; what was pending through a lost neighbour as a stream gets one too.
"""

# compiled: mypyc

from __future__ import annotations

import errno

from broker.routing.counters import NOTICE, userid_of
from broker.routing.open_calls import end, leave
from broker.routing.port import CLIENT, PARENT, Decision, Port
from broker.routing.router import Router
from broker.wire.message import NORESPONSE, PAYLOAD, RESPONSE, ROUTE, STREAMING, TOPIC, Message
from broker.wire.parts import encode_part


def depart(router: Router, port: Port, reason: str = "") -> int:
    """Detach ``port`` and settle its affairs; returns how many open calls of others were answered.

    ``reason`` is the text of those answers; "" sends none.
    """
    router.detach(port)
    for name in list(port.services):
        router.services.remove(name, port)
    answered = _answer_waiting(router, port, reason)
    if port.kind == CLIENT:
        _send_notices(router, port)
    else:
        _end_streams(router, port)
    leave(port)
    return answered


def _answer_waiting(router: Router, gone: Port, reason: str) -> int:
    """Answer every call that waits for ``gone``; senders that used matchtag 0 once each."""
    answered = 0
    for calls in list(gone.to_answer):
        origin, ended = calls.origin, end(calls)
        # a caller that went before its provider has nobody to hear the answer
        if origin.live:
            answered += len(ended)
            for key, call in ended:
                why = reason or f"{gone.name} is gone"
                call.method.failed(errno.EHOSTUNREACH, why, userid_of(call), router.call_stats.now_ns)
                router.deliver(origin, unreachable(router, call, key, reason), gone)
    return answered


def unreachable(router: Router, call: Decision, key: bytes, reason: str) -> Message:
    """The answer EHOSTUNREACH to the open call ``call`` with pending key ``key`` (rest of stack + matchtag)."""
    origin = call.origin
    front = key[:-4] if origin.kind != PARENT else origin.hop + key[:-4]
    flags = (call.head[4] & ~PAYLOAD) | ROUTE
    payload = encode_part(reason.encode() + b"\0") if reason else b""
    if payload:
        flags |= PAYLOAD
    lead = b"".join((b"\x14\x8e\x01", bytes((RESPONSE, flags)), router.own.cred.encode()))
    router.counters.answered += 1
    return Message(front, call.topic_part, payload, lead + errno.EHOSTUNREACH.to_bytes(4, "big"), key[-4:])


def _send_notices(router: Router, port: Port) -> None:
    """One SERVICE.disconnect per (service, nodeid, upstream, sender) that ``port`` asked."""
    owed, port.notices = port.notices, {}
    # RFC 6, "Disconnection": a notice wants no response; it has the stack and credentials of the request it is about
    for head, tag, topic_part, front in owed.values():
        flags = (head[4] & ~(PAYLOAD | STREAMING)) | NORESPONSE | ROUTE | TOPIC
        router.request(port, Message(front, topic_part, b"", head[:4] + bytes((flags,)) + head[5:], tag))


def _end_streams(router: Router, port: Port) -> None:
    """A neighbour is lost: tell the providers of the streams that ran through it."""
    for key, calls in port.pending.items():
        for call in calls.decisions(key):
            if call.single_response or not call.target.live:
                continue  # one answer is dropped when it comes; a stream would go on for ever
            topic = call.service + NOTICE
            flags = (call.head[4] & ~(PAYLOAD | STREAMING)) | NORESPONSE
            head = call.head[:4] + bytes((flags,)) + call.head[5:]
            router.counters.notices += 1
            notice = Message(call.route_prefix + key[:-4], encode_part(topic), b"", head, key[-4:])
            router.deliver(call.target, notice, port)
