"""What a gateway knows of topics: the newest event of each, and who listens (methods of the service ``gateway``)."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.errors import ProtocolError, RpcError
from broker.identity import Role
from broker.wire.payload import is_json_object
from gateway.events.fanout import may_see

if TYPE_CHECKING:
    from broker.wire.message import Message
    from gateway.administration.service import Administration, Caller
    from gateway.identity.hook import AuthorizationHook
    from gateway.principal import Principal
    from gateway.sessions.delivery import Delivery
    from gateway.sessions.requests import Answer

EVENTS_MAX: Final = 100
BYTES_MAX: Final = 256 << 10
"""Of one answer, so that it stays below every limit of a message."""
ASKED_MAX: Final = 1024
"""Topics of one answer that the authorisation hook is asked for: as many as are kept by default."""
USERS_MAX: Final = 1000
_TRUSTED: Final = int(Role.OWNER | Role.ADMIN)


def latest(service: Administration, caller: Caller, arguments: Mapping[str, Any]) -> Answer:
    """``gateway.latest {"topic": PREFIX}``: the newest event of each topic below it that the caller may see.

    Raises:
        RpcError: ENOSYS, none are kept here; EHOSTUNREACH, the authorisation hook does not answer. ProtocolError: no
            topic.
    """
    prefix = _topic(arguments).encode()
    delivery, hook = service.delivery, service.sessions.hook
    if delivery.latest is None:
        raise RpcError(errno.ENOSYS, "gateway.latest names no topics whose newest event is kept")
    session = caller.session
    found = [
        (topic, message)
        for topic, message in delivery.latest.under(prefix)
        if session is None or (session.sees_topic(topic) and may_see(session.principal, message))
    ]
    if hook is not None and session is not None:
        return _latest_asked(delivery, hook, session.principal, found[:ASKED_MAX])
    return _latest(delivery, [message for _topic, message in found])


async def _latest_asked(
    delivery: Delivery, hook: AuthorizationHook, mine: Principal, found: Sequence[tuple[bytes, Message]]
) -> Mapping[str, Any]:
    """What of it the hook lets ``mine`` see."""
    verdicts = await asyncio.gather(*(hook.ask(mine, "subscribe", topic) for topic, _message in found))
    for each in verdicts:
        if not each.allowed and each.errnum != errno.EPERM:
            raise RpcError(each.errnum, each.text)
    allowed = zip(found, verdicts, strict=True)
    return _latest(delivery, [message for (_topic, message), verdict in allowed if verdict.allowed])


def _latest(delivery: Delivery, found: Sequence[Message]) -> Mapping[str, Any]:
    events: list[dict[str, Any]] = []
    size = more = 0
    for message in found:
        size += message.size
        if len(events) < EVENTS_MAX and size <= BYTES_MAX:
            events.append(_row(message))
        else:
            more += 1
    return {
        "epoch": delivery.history.epoch,
        "sequence": delivery.history.last,
        "events": events[::-1],
        "more": more,
    }


def _row(message: Message) -> dict[str, Any]:
    row = {"topic": message.topic, "sequence": message.sequence, "userid": message.userid}
    data = message.payload
    if data is None:
        return row
    return {**row, **({"payload": msgspec.Raw(data[:-1])} if is_json_object(data) else {"data": data})}


def presence(service: Administration, caller: Caller, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """``gateway.presence {"topic": TOPIC}``: the users whose sessions get events of it; without a topic all of them.

    Raises:
        RpcError: EPERM, the caller may not know. ProtocolError: no topic, of one who is neither owner nor admin.
    """
    trusted = bool(caller.roles & _TRUSTED)
    topic = None if trusted and arguments.get("topic") is None else _topic(arguments)
    if not trusted and not service.sessions.settings.gateway.presence:
        raise RpcError(errno.EPERM, "who listens is shown to owner and admin here")
    if topic is not None and not service.sessions.access.allows(caller.roles, "subscribe", topic):
        raise RpcError(errno.EPERM, "who listens to a topic is shown to those who may subscribe to it")
    fanout = service.delivery.fanout
    here = service.sessions.by_id.values() if topic is None else fanout.listeners(topic.encode())
    found = Counter((session.principal.name, session.principal.userid) for session in here)
    return _told(found, 0)


def joined(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answers of several worker processes as one."""
    found: Counter[tuple[str, int]] = Counter()
    for answer in answers:
        found.update({(row["user"], row["userid"]): row["sessions"] for row in answer["users"]})
    return _told(found, sum(answer["more"] for answer in answers))


def _told(found: Counter[tuple[str, int]], more: int) -> dict[str, Any]:
    rows = [
        {"user": user, "userid": userid, "sessions": count} for (user, userid), count in sorted(found.items())
    ]
    return {"users": rows[:USERS_MAX], "more": more + len(rows[USERS_MAX:])}


def _topic(arguments: Mapping[str, Any]) -> str:
    topic = arguments.get("topic")
    if not isinstance(topic, str):
        raise ProtocolError("topic: expected a text")
    return topic
