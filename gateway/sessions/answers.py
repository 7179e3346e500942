"""What the gateway itself says to a client: answers it makes, refusals with their reason.

Every request that wants an answer gets one. For an event that is refused no response exists: a control object says why,
where the link has a channel for it.
"""

# compiled: mypyc

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from broker.wire.message import DELIMITER, EVENT, NORESPONSE, Message, response
from broker.wire.parts import part_data
from broker.wire.payload import encode_reason
from broker.wire.topic import RESERVED_TEXT, is_reserved
from gateway.access import rule_for

if TYPE_CHECKING:
    from gateway.sessions.session import Session

LINK_REQUESTS: Final = frozenset(
    (b"event.subscribe", b"event.unsubscribe", b"service.add", b"service.remove")
)
"""Requests that are answered even where no response was wanted, as brokers do."""
SHOWN_CHARS: Final = 128
"""As much of a client's topic is shown in texts and records."""


def respond(session: Session, message: Message, payload: bytes | None = None, *, errnum: int = 0) -> None:
    """Answer a request, unless no response was wanted (``LINK_REQUESTS`` apart)."""
    # RFC 6: a request with this flag gets no response, not even an error
    unwanted = message.head[4] & NORESPONSE
    if session.ended or (unwanted and bytes(part_data(message.topic_part) or b"") not in LINK_REQUESTS):
        return
    cred = session.sessions.cred
    message.front = DELIMITER
    answer = response(message, payload, errnum=errnum, userid=cred.userid, rolemask=cred.rolemask)
    if unwanted:
        answer.set_flags(answer.flags & ~NORESPONSE)
    session.link.send(answer)


def refuse(session: Session, message: Message, errnum: int, text: str) -> None:
    """Answer a request with an error and a text for people; "" has none. An event is dropped: no response exists for
    it, so a control object says why where there is a channel.
    """
    if message.head[3] == EVENT:
        topic = shown(bytes(part_data(message.topic_part) or b""))
        session.drop("event refused")
        session.tell({"type": "denied", "kind": "publish", "topic": topic, "errno": errnum, "text": text})
        return
    session.counters.refused += 1
    respond(session, message, encode_reason(text), errnum=errnum)


def deny(session: Session, message: Message, kind: str, topic: bytes, text: str = "") -> None:
    """The session has no right to this: EPERM with the roles that have it, a record, and a log line."""
    name = shown(topic)
    if not text:
        roles = session.sessions.access.roles_for(kind, topic)
        needed = " or ".join(roles) or "that nobody has"
        reserved = kind == "publish" and is_reserved(topic, session.roles)
        rule = RESERVED_TEXT if reserved else f"or a rule: {rule_for(kind, name)}"
        text = f"{kind} {name!r}: needs the role {needed}, {rule}"
    session.administration.deny(session, kind, name, text, claimed=int.from_bytes(message.head[5:9], "big"))
    refuse(session, message, errno.EPERM, text)


def disallow(session: Session, message: Message, kind: str, topic: bytes, errnum: int, text: str) -> None:
    """The authorisation hook does not let the session do this, or does not answer: a record of a no, and the answer."""
    if errnum == errno.EPERM:
        deny(session, message, kind, topic, f"{kind} {shown(topic)!r}: {text}")
    else:
        refuse(session, message, errnum, text)


def shown(topic: bytes) -> str:
    """A topic of a client, short enough for texts and records."""
    return topic[:SHOWN_CHARS].decode("utf-8", "replace")
