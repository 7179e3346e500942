"""Requests of a session that the gateway handles itself, whatever nodeid they name.

``event.*`` and ``service.*`` change a *link*, and sessions share the gateway's: forwarded as they are they would
subscribe or register for everybody. So they are checked and kept here, session by session; of ``event.publish`` only
the check is ours, the rest is rank 0's.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.errors import HeadgateError, ProtocolError
from broker.wire.audience import PREFIX_MAX_BYTES
from broker.wire.message import PRIVATE, Message
from broker.wire.parts import encode_part, part_data
from broker.wire.payload import decode_json, encode_json
from broker.wire.topic import check_service, method_of
from gateway.closes import INTERNAL, MEANINGS
from gateway.sessions import answers, rights, service

if TYPE_CHECKING:
    from gateway.sessions.decisions import Act, Decision
    from gateway.sessions.session import Session

log = logging.getLogger("headgate")

TOPIC_MAX_BYTES: Final = 1024
"""Longest topic of an event: topics are remembered, and so bound memory."""


def subscribe(session: Session, message: Message, _decision: Decision) -> None:
    """``event.subscribe {"topic": PREFIX}``: answered once it is live.

    EPERM: no right to the whole prefix. ENOSPC: too many. EHOSTUNREACH: the upstream did not come back in time.
    """
    try:
        prefix = _text(message, "topic").encode()
    except (HeadgateError, UnicodeEncodeError) as error:
        answers.refuse(session, message, errno.EPROTO, str(error))
        return
    if session.ready:
        subscribe_now(session, message, prefix)
    else:
        session.hub.deadlines.wait_live(session, message, prefix)


def subscribe_now(session: Session, message: Message, prefix: bytes) -> None:
    """Subscribe, if the rules allow it, and answer the request ``message``."""
    if not session.hub.access.allows_pattern(session.roles, prefix[:PREFIX_MAX_BYTES]):
        answers.deny(session, message, "subscribe", prefix)
        return
    errnum = session.hub.fanout.subscribe(session, prefix)
    if not errnum:
        # where it begins: with this a client that resumes later is not sent what came before it subscribed
        began = encode_json({"sequence": session.hub.history.last})
        answers.respond(session, message, began)
        return
    limit = session.hub.settings.limits.subscriptions
    text = (
        f"{limit} prefixes at most"
        if errnum == errno.ENOSPC
        else f"a prefix has {PREFIX_MAX_BYTES} bytes at most"
    )
    answers.refuse(session, message, errnum, text)


def unsubscribe(session: Session, message: Message, _decision: Decision) -> None:
    """``event.unsubscribe {"topic": PREFIX}``: takes one subscription back; ENOENT when there is none."""
    try:
        prefix = _text(message, "topic").encode()
    except (HeadgateError, UnicodeEncodeError) as error:
        answers.refuse(session, message, errno.EPROTO, str(error))
        return
    errnum = session.hub.fanout.unsubscribe(session, prefix)
    if errnum:
        answers.refuse(session, message, errnum, "")
    else:
        answers.respond(session, message)


def publish(session: Session, message: Message, decision: Decision) -> None:
    """``event.publish {"topic", "flags"[, "payload"]}``: needs the right to publish the topic, then goes to rank 0.

    The payload is written anew from what was read, so that what was checked is what rank 0 sees.
    """
    try:
        content = decode_json(message.payload)
        topic, flags = content.get("topic"), content.get("flags", 0)
        if not isinstance(topic, str) or not topic or "\0" in topic:
            raise ProtocolError("topic: expected a string that is not empty and holds no NUL")
        if isinstance(flags, bool) or flags not in (0, PRIVATE):
            raise ProtocolError(f"flags: expected 0 or {PRIVATE}")
        name = topic.encode()
        if len(name) > TOPIC_MAX_BYTES:
            raise ProtocolError(f"topic: expected at most {TOPIC_MAX_BYTES} bytes")
        fresh = {"topic": topic, "flags": int(flags)}
        if content.get("payload") is not None:
            fresh["payload"] = content["payload"]
        payload = encode_part(encode_json(fresh))
    except (HeadgateError, UnicodeEncodeError) as error:
        answers.refuse(session, message, errno.EPROTO, str(error))
        return
    if not session.hub.access.allows(session.roles, "publish", name):
        answers.deny(session, message, "publish", name)
        return
    message.payload_part = payload
    session.forward(message, decision)
    if session.hub.publishers.shut:
        session.hub.publishers.published(session, message)


def add(session: Session, message: Message, _decision: Decision) -> None:
    """``service.add {"service": NAME}``: EINVAL, EPERM, EEXIST, ENOSPC; or success, once requests may come."""
    name = _service_name(session, message)
    if name is None:
        return
    if rights.misnamed(session, name):  # told first: no rule would help
        text = f"your services are called {session.principal.userid}-NAME"
        if session.principal.nobody:
            text = "you have no userid to yourself, and so no services"
        answers.deny(session, message, "register", name.encode(), text)
    elif not session.hub.access.allows(session.roles, "register", name):
        answers.deny(session, message, "register", name.encode())
    elif len(session.provider.names) + session.adding >= session.hub.settings.limits.services:
        answers.refuse(
            session, message, errno.ENOSPC, f"{session.hub.settings.limits.services} services at most"
        )
    else:
        session.adding += 1
        session.hub.registrations.add(
            session, name, lambda errnum, text: _added(session, message, errnum, text)
        )


def _added(session: Session, message: Message, errnum: int, text: str) -> None:
    session.adding -= 1
    _answer(session, message, errnum, text)
    if not errnum:
        rights.give_up(session)  # the right may have gone while the upstream was asked


def remove(session: Session, message: Message, _decision: Decision) -> None:
    """``service.remove {"service": NAME}``: ENOENT unless this session provides it."""
    name = _service_name(session, message)
    if name is not None:
        session.hub.registrations.remove(
            session, name, lambda errnum, text: _answer(session, message, errnum, text)
        )


def _service_name(session: Session, message: Message) -> str | None:
    """The name in the payload; None when the request was answered."""
    try:
        name = _text(message, "service")
    except HeadgateError as error:
        answers.refuse(session, message, errno.EPROTO, str(error))
        return None
    try:
        check_service(name)
        if name == service.NAME:
            raise ProtocolError(f"{name} is the gateway's own", errno.EEXIST)
    except ProtocolError as error:
        answers.refuse(session, message, error.errno, str(error).replace("\0", ""))
        return None
    return name


def _answer(session: Session, message: Message, errnum: int, text: str) -> None:
    if errnum:
        answers.refuse(session, message, errnum, text)
    else:
        answers.respond(session, message)


def disconnect(session: Session, message: Message, decision: Decision) -> None:
    """The client takes leave of a service: nothing is owed either way any more."""
    session.calls.disarm(bytes(part_data(message.topic_part) or b""), decision.head)
    session.redecide()  # what it asks there from now on owes a notice again
    session.forward(message, decision)


def gateway(session: Session, message: Message, _decision: Decision) -> None:
    """``gateway.METHOD``: answered from here for this session; see ``service``."""
    topic = bytes(part_data(message.topic_part) or b"").decode("utf-8", "replace")
    try:
        arguments: dict[str, Any] = decode_json(message.payload) if message.payload_part else {}
        answer = service.call(session.hub, service.Caller.of(session), method_of(topic), arguments)
        if isinstance(answer, Mapping):
            answers.respond(session, message, encode_json(answer))
        else:
            session.hub.spawn(f"{topic} of {session.id}", _later(session, message, answer))
    except HeadgateError as error:
        _failed(session, message, topic, error)


def refuse_stream(session: Session, message: Message) -> None:
    """Whoever asks one of these for a stream would wait for its end for ever."""
    topic = bytes(part_data(message.topic_part) or b"")
    text = f"{answers.shown(topic)} has one answer, no stream"
    answers.refuse(session, message, errno.EPROTO, text)


async def _later(session: Session, message: Message, answer: Awaitable[Mapping[str, Any]]) -> None:
    """Answer when a method of ``gateway`` has finished its work."""
    try:
        answers.respond(session, message, encode_json(await answer))
    except HeadgateError as error:
        _failed(session, message, message.topic or "", error)
    except Exception:
        log.exception("session %s: %s failed", session.id, message.topic)
        answers.refuse(session, message, errno.EIO, MEANINGS[INTERNAL].text)


def _failed(session: Session, message: Message, topic: str, error: HeadgateError) -> None:
    if error.errno == errno.EPERM:
        session.hub.deny(session, "call", topic, str(error))
    answers.refuse(session, message, error.errno, str(error))


def _text(message: Message, field: str) -> str:
    """A string of the request's JSON payload.

    Raises:
        ProtocolError: EPROTO; no JSON object, or no such string in it.
    """
    found = decode_json(message.payload).get(field)
    if not isinstance(found, str):
        raise ProtocolError(f"{field}: expected a string")
    return found


HANDLED: Final[dict[bytes, Act]] = {
    b"event.subscribe": subscribe,
    b"event.unsubscribe": unsubscribe,
    b"event.publish": publish,
    b"service.add": add,
    b"service.remove": remove,
}
"""Topic -> who handles it; beside these everything that begins with ``gateway.``."""
