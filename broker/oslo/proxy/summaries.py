"""What the journal says about one message of the wing: its topic and a JSON object (pure).

::

    topic   oslo.EXCHANGE.TOPIC.METHOD, of notifications oslo.EXCHANGE.TOPIC.EVENT_TYPE; "-" where it is not known
    JSON    pipeline (call, cast, fanout, notify), what (request, reply, cast, fanout, notification, ack, error,
            requeue), exchange, topic (of notifications without their priority), server, id, uid, rolemask, ttl_ms;
            requests: method, namespace; notifications: event_type, priority, publisher_id, message_id; errors: reason

Bodies are read for the names in the third line alone, when they have at most ``BODY_BYTES_MAX``; nothing else of a body
is ever in it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from broker.identity import USERID_UNKNOWN
from broker.nesting import decoder
from broker.oslo.frames import NO_ID, Envelope, Flag, Kind
from broker.oslo.names import PRIORITIES, Reason

BODY_BYTES_MAX: Final = 64 << 10
"""Longer bodies are not looked into: finding a name in them takes as long as relaying them."""
NAME_CHARS_MAX: Final = 255
"""Of a name that stands in a body."""
UNKNOWN: Final = "-"
WHAT: Final = {
    int(Kind.CALL): "request",
    int(Kind.CAST): "cast",
    int(Kind.FANOUT): "fanout",
    int(Kind.NOTIFY): "notification",
    int(Kind.REPLY): "reply",
    int(Kind.REFUSED): "error",
    int(Kind.TAKEN): "ack",
    int(Kind.REQUEUE): "requeue",
}
"""Kinds that are recorded; the others are control messages."""


class _Message(msgspec.Struct, gc=False):
    method: Any = None
    namespace: Any = None
    event_type: Any = None
    publisher_id: Any = None
    message_id: Any = None
    packed: Any = msgspec.field(default=None, name="oslo.message")


class _Body(msgspec.Struct, gc=False):
    message: _Message | None = None


_NAMES: Final = ("method", "namespace", "event_type", "publisher_id", "message_id")
_read_body: Final = decoder(_Body)
_read_message: Final = decoder(_Message)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, ValueError)


def named(body: bytes) -> dict[str, str]:
    """The names in the body of a request or notification; {} when it is too long, or none of ours.

    >>> named(b'{"ctxt": {}, "message": {"method": "boot", "args": {"secret": 1}}}')
    {'method': 'boot'}
    """
    if len(body) > BODY_BYTES_MAX:
        return {}
    try:
        message = _read_body(body).message
        if message is not None and isinstance(message.packed, str):
            message = _read_message(message.packed)
    except _UNREADABLE:
        return {}
    found = {}
    for name in _NAMES if message is not None else ():
        value = getattr(message, name)
        if isinstance(value, str) and value:
            found[name] = value[:NAME_CHARS_MAX]
    return found


def facts_of(pipeline: str, envelope: Envelope, body: bytes) -> dict[str, Any]:
    """The JSON object of a message with its address in the envelope."""
    facts: dict[str, Any] = {
        "pipeline": pipeline,
        "what": WHAT.get(envelope.kind, UNKNOWN),
        "exchange": envelope.exchange,
        "topic": envelope.topic,
    }
    if envelope.kind in (Kind.NOTIFY, Kind.REQUEUE):
        topic, _, priority = envelope.topic.rpartition(".")
        if priority in PRIORITIES:
            facts["topic"], facts["priority"] = topic, priority
    if envelope.server:
        facts["server"] = envelope.server
    if envelope.id != NO_ID:
        facts["id"] = envelope.id.hex()
    if envelope.ttl_ms and not envelope.flags & Flag.DUE.value:
        facts["ttl_ms"] = envelope.ttl_ms
    if envelope.reason:
        facts["reason"] = _reason(envelope.reason)
    facts.update(named(body))
    return facts


def who(userid: int, rolemask: int) -> dict[str, int]:
    """The keys about a sender."""
    return {"rolemask": rolemask} if userid == USERID_UNKNOWN else {"uid": userid, "rolemask": rolemask}


def topic_of(facts: dict[str, Any]) -> str:
    """The record's topic."""
    last = facts.get("method") or facts.get("event_type") or UNKNOWN
    topic = facts.get("topic") or UNKNOWN
    if "priority" in facts:
        topic = f"{topic}.{facts['priority']}"
    return f"oslo.{facts.get('exchange') or UNKNOWN}.{topic}.{last}"


def _reason(number: int) -> str:
    try:
        return Reason(number).name.lower()
    except ValueError:
        return str(number)
