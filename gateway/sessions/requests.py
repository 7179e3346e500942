"""Requests of a session that the gateway handles itself, whatever nodeid they name.

``event.*`` and ``service.*`` change a *link*, and sessions share the gateway's: forwarded as they are they would
subscribe or register for everybody. So they are checked and kept here, session by session; of ``event.publish`` only
the check is ours, the rest is rank 0's.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from broker.errors import HeadgateError, ProtocolError
from broker.identity import USERID_UNKNOWN
from broker.wire.audience import PREFIX_MAX_BYTES
from broker.wire.message import PRIVATE, Message
from broker.wire.parts import encode_part, part_data
from broker.wire.payload import decode_json, encode_json
from broker.wire.topic import check_service, method_of
from gateway.closes import INTERNAL, MEANINGS
from gateway.sessions import answers

if TYPE_CHECKING:
    from gateway.sessions.decisions import Act, Decision
    from gateway.sessions.session import Session

log = logging.getLogger("headgate")

NAME: Final = "gateway"
"""The service whose requests are answered here."""
Answer: TypeAlias = "Mapping[str, Any] | Awaitable[Mapping[str, Any]]"
"""The payload of a response, or what will be."""
TOPIC_MAX_BYTES: Final = 1024
"""Longest topic of an event: topics are remembered, and so bound memory."""


class GatewayService(Protocol):
    """What answers sessions as the service ``gateway``, and keeps what they were denied."""

    def call(self, session: Session, method: str, arguments: Mapping[str, Any]) -> Answer:
        """Run one method for ``session``; what it returns may have to be awaited.

        Raises:
            RpcError: there is none, it may not, or what the method itself refuses. ProtocolError: odd arguments.
        """

    def deny(
        self, session: Session, kind: str, topic: str, reason: str, *, claimed: int = USERID_UNKNOWN
    ) -> None:
        """Record that ``session``, whose message said it came from ``claimed``, tried what it has no right to."""

    def supersede(self, session: Session, former: str) -> None:
        """A client came back as ``session``: its former one ends, at whichever process it still hangs half open."""


def subscribe(session: Session, message: Message, _decision: Decision) -> None:
    """``event.subscribe {"topic": PREFIX}``: answered once it is live.

    EPERM: no right to the whole prefix. ENOSPC: too many. EHOSTUNREACH: the upstream did not come back in time.
    """
    prefix = _text(session, message, "topic")
    if prefix is None:
        return
    if session.ready:
        subscribe_now(session, message, prefix.encode())
    else:
        session.delivery.deadlines.subscribe_later(session, message, prefix.encode())


def subscribe_now(session: Session, message: Message, prefix: bytes) -> None:
    """Subscribe, if the rules allow it, and answer the request ``message``."""
    if not session.sessions.access.allows_pattern(session.roles, prefix[:PREFIX_MAX_BYTES]):
        answers.deny(session, message, "subscribe", prefix)
        return
    errnum = session.delivery.fanout.subscribe(session, prefix)
    if not errnum:
        # where it begins: with this a client that resumes later is not sent what came before it subscribed
        began = encode_json({"sequence": session.delivery.history.last})
        answers.respond(session, message, began)
        return
    limit = session.sessions.settings.limits.subscriptions
    text = (
        f"{limit} prefixes at most"
        if errnum == errno.ENOSPC
        else f"a prefix has {PREFIX_MAX_BYTES} bytes at most"
    )
    answers.refuse(session, message, errnum, text)


def unsubscribe(session: Session, message: Message, _decision: Decision) -> None:
    """``event.unsubscribe {"topic": PREFIX}``: takes one subscription back; ENOENT when there is none."""
    prefix = _text(session, message, "topic")
    if prefix is not None:
        _answer(session, message, session.delivery.fanout.unsubscribe(session, prefix.encode()), "")


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
    except HeadgateError as error:
        answers.refuse(session, message, errno.EPROTO, str(error))
        return
    if not session.sessions.access.allows(session.roles, "publish", name):
        answers.deny(session, message, "publish", name)
        return
    message.payload_part = payload
    session.forward(message, decision)
    if session.delivery.pressure.shut:
        session.delivery.pressure.published(session, message)


def since(session: Session, message: Message, _decision: Decision) -> None:
    """``event.since``: what rank 0 keeps comes to a session by its ``resume``, judged event by event; rank 0 knows no
    rules of the gateway. So there is no such method here; who is no owner is told what the broker would say.
    """
    if session.principal.owner:
        answers.refuse(session, message, errno.ENOSYS, "a client of a gateway resumes instead")
    else:
        answers.deny(session, message, "call", b"event.since", "Request requires owner credentials")


def add(session: Session, message: Message, _decision: Decision) -> None:
    """``service.add {"service": NAME}``: EINVAL, EPERM, EEXIST, ENOSPC; or success, once requests may come."""
    name = _service_name(session, message)
    if name is None:
        return
    if not session.owns_service_name(name):  # before the rules, of which none would help
        text = f"your services are called {session.principal.userid}-NAME"
        if session.principal.nobody:
            text = "you have no userid to yourself, and so no services"
        answers.deny(session, message, "register", name.encode(), text)
    elif not session.sessions.access.allows(session.roles, "register", name):
        answers.deny(session, message, "register", name.encode())
    elif len(session.provider.names) + session.adding >= session.sessions.settings.limits.services:
        answers.refuse(
            session, message, errno.ENOSPC, f"{session.sessions.settings.limits.services} services at most"
        )
    else:
        session.adding += 1
        session.delivery.registrations.add(
            session, name, lambda errnum, text: _added(session, message, errnum, text)
        )


def _added(session: Session, message: Message, errnum: int, text: str) -> None:
    session.adding -= 1
    _answer(session, message, errnum, text)
    if not errnum:
        session.withdraw_denied()  # the right may have gone while the upstream was asked


def remove(session: Session, message: Message, _decision: Decision) -> None:
    """``service.remove {"service": NAME}``: ENOENT unless this session provides it."""
    name = _service_name(session, message)
    if name is not None:
        session.delivery.registrations.remove(
            session, name, lambda errnum, text: _answer(session, message, errnum, text)
        )


def _service_name(session: Session, message: Message) -> str | None:
    """The name in the payload; None when the request was answered."""
    name = _text(session, message, "service")
    if name is None:
        return None
    try:
        check_service(name)
        if name == NAME:
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
    session.calls.disconnect(bytes(part_data(message.topic_part) or b""), decision.head)
    session.forget_decisions()  # what it asks there from now on owes a notice again
    session.forward(message, decision)


def gateway(session: Session, message: Message, _decision: Decision) -> None:
    """``gateway.METHOD``: answered from here for this session; see ``administration.service``."""
    topic = bytes(part_data(message.topic_part) or b"").decode("utf-8", "replace")
    try:
        arguments: dict[str, Any] = decode_json(message.payload) if message.payload_part else {}
        answer = session.administration.call(session, method_of(topic), arguments)
        if isinstance(answer, Mapping):
            answers.respond(session, message, encode_json(answer))
        else:
            session.sessions.tasks.spawn(f"{topic} of {session.id}", _later(session, message, answer))
    except HeadgateError as error:
        _failed(session, message, topic, error)


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
        session.administration.deny(session, "call", topic, str(error))
    answers.refuse(session, message, error.errno, str(error))


def _text(session: Session, message: Message, field: str) -> str | None:
    """A string of the request's JSON payload; None when the request was answered, for there is none."""
    try:
        found = decode_json(message.payload).get(field)
    except HeadgateError as error:
        answers.refuse(session, message, errno.EPROTO, str(error))
        return None
    if isinstance(found, str):
        return found
    answers.refuse(session, message, errno.EPROTO, f"{field}: expected a string")
    return None


HANDLED: Final[dict[bytes, Act]] = {
    b"event.subscribe": subscribe,
    b"event.unsubscribe": unsubscribe,
    b"event.publish": publish,
    b"event.since": since,
    b"service.add": add,
    b"service.remove": remove,
}
"""Topic -> who handles it; beside these everything that begins with ``gateway.``."""
