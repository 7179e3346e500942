"""One kind of request or event of a session: who handles it, and the header it leaves with.

Messages that look alike (same topic, flags, nodeid, credentials as received) get the same Decision from the
session's cache; only the first walks the rules here. Rights, roles and whom it owes a notice change seldom, and each
such change drops the cache. A refusal is never remembered: each one is told and recorded.
"""

# compiled: mypyc

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from broker.identity import USERID_UNKNOWN, Role
from broker.wire.message import (
    NODEID_ANY,
    NODEID_UPSTREAM,
    NORESPONSE,
    PAYLOAD,
    PRIVATE,
    ROUTE,
    STREAMING,
    TOPIC,
    UPSTREAM,
    Message,
)
from broker.wire.parts import part_data
from broker.wire.topic import NOTICE_MAX_BYTES, service_of
from gateway.sessions import answers, requests
from gateway.sessions.calls import DISCONNECT, NO_TAG, unanswered
from gateway.upstream.upstream import UNREACHABLE

if TYPE_CHECKING:
    from gateway.principal import Principal
    from gateway.sessions.session import Session

Act: TypeAlias = "Callable[[Session, Message, Decision], None]"
CACHE_MAX: Final = 256
"""Decisions kept per session; a client that uses more distinct messages than that decides anew."""
_FORWARDING: Final = (None, requests.publish, requests.disconnect)
"""What ends in a message to the upstream."""
UPSTREAM_TEXT: Final = "nodeid 4294967294 is no rank: flag upstream and the rank to skip ask above it"
OWN_SERVICE: Final = requests.NAME.encode()
NOT_LOCAL: Final = 0xFFFFFFFF & ~int(Role.LOCAL)


class Decision:
    """How messages of one kind are handled.

    Attributes:
        act: handles the message here; None forwards it.
        topic_part: the topic, encoded. head: the stamped header.
        single_response: one response ends the call; otherwise it is a stream. track: it wants a response.
        anywhere: it goes to any rank, and elsewhere where nobody has the service there (see ``any_rank_retry``).
        notice_pending: the first of its kind that is sent has the provider hear of the session's end.
    """

    __slots__ = ("act", "anywhere", "head", "notice_pending", "single_response", "topic_part", "track")

    def __init__(self, act: Act | None, topic_part: bytes, head: bytes) -> None:
        flags = head[4]
        self.act = act
        self.topic_part = topic_part
        self.head = head
        self.single_response = not flags & STREAMING
        self.track = not flags & NORESPONSE
        self.notice_pending = False
        self.anywhere = False


def stamp_of(principal: Principal) -> bytes:
    """The eight bytes userid and rolemask that every message of ``principal`` carries on the owner link.

    Raises:
        ValueError: a stamp that an owner link would fill in, and so turn into OWNER (RFC 12).
    """
    roles = int(principal.roles) & NOT_LOCAL
    if not roles or not 0 <= principal.userid < USERID_UNKNOWN:
        raise ValueError(f"userid {principal.userid} with roles {roles} must not be forwarded")
    return principal.userid.to_bytes(4, "big") + roles.to_bytes(4, "big")


def of_request(session: Session, message: Message) -> Decision | None:
    """The decision for one kind of request; None when it was answered or dropped."""
    topic = bytes(part_data(message.topic_part) or b"")
    if not topic:
        answers.refuse(
            session, message, errno.ENOSYS, "a request without a topic: no service has an empty name"
        )
        return None
    if len(topic) > NOTICE_MAX_BYTES:
        answers.refuse(session, message, errno.EPROTO, f"topic above {NOTICE_MAX_BYTES} bytes")
        return None
    if message.nodeid == NODEID_UPSTREAM:  # RFC 3, "Rank Assignment": never encoded
        answers.refuse(session, message, errno.EPROTO, UPSTREAM_TEXT)
        return None
    # what is handled here needs no right to call: what counts is the right to the topic or name inside (`requests`)
    act = requests.HANDLED.get(topic)
    if act is None and service_of(topic) == OWN_SERVICE:
        act = requests.gateway
    if act is None and not _may_call(session, topic):
        answers.deny(session, message, "call", topic)
        return None
    if act is not None and message.head[4] & STREAMING:
        # whoever asks one of these for a stream would wait for its end for ever
        answers.refuse(session, message, errno.EPROTO, f"{answers.shown(topic)} has one answer, no stream")
        return None
    if topic.endswith(DISCONNECT):
        act = act or requests.disconnect
    if act in _FORWARDING and not session.delivery.upstream.joined:
        # not remembered: nobody was asked, nobody is owed
        answers.refuse(session, message, errno.EHOSTUNREACH, UNREACHABLE)
        return None
    head = message.head
    flags = head[4] | ROUTE | TOPIC
    if act in (None, requests.disconnect) and unanswered(topic):
        flags |= NORESPONSE  # whether the client knew or not: a call that stays open for ever fills its limit
    stamped = b"".join((head[:4], bytes((flags,)), session.stamp, head[13:]))
    decision = Decision(act, message.topic_part, stamped)
    decision.notice_pending = decision.track and act in (None, requests.publish)
    if session.delivery.any_rank_retry is not None and act in (None, requests.disconnect):
        any_rank = message.nodeid == NODEID_ANY and not flags & UPSTREAM
        decision.anywhere = any_rank and (decision.track or unanswered(topic))
    session.remember_decision(message, decision)
    return decision


def _may_call(session: Session, topic: bytes) -> bool:
    """Whether the rules let the session call ``topic``; whoever called a service may cancel and take leave there."""
    if session.sessions.access.allows(session.roles, "call", topic):
        return True
    return unanswered(topic) and session.calls.has_called(topic)


def of_event(session: Session, message: Message) -> Decision | None:
    """The decision for one kind of event that the client publishes; None when it was refused."""
    topic = bytes(part_data(message.topic_part) or b"")
    if not topic or len(topic) > requests.TOPIC_MAX_BYTES:
        text = f"an event's topic has 1 to {requests.TOPIC_MAX_BYTES} bytes, not {len(topic)}"
        answers.refuse(session, message, errno.EPROTO, text)
        return None
    if not session.sessions.access.allows(session.roles, "publish", topic):
        answers.deny(session, message, "publish", topic)
        return None
    head = message.head
    flags = (head[4] & (TOPIC | PAYLOAD | PRIVATE)) | ROUTE
    # rank 0 gives the number: what the client wrote there is not sent on
    stamped = b"".join((head[:4], bytes((flags,)), session.stamp, NO_TAG))
    decision = Decision(None, message.topic_part, stamped)
    session.remember_decision(message, decision)
    return decision
