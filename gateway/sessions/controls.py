"""Control objects of a live session: what the client may ask beside Flux messages, and its welcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker import __version__
from gateway.closes import BAD_MESSAGE
from gateway.sessions.resume import Resumed, session_of, token_for

if TYPE_CHECKING:
    from gateway.sessions.session import Session

SERVER: Final = f"headgate/{__version__}"
"""How the gateway names itself."""


def handle(session: Session, obj: dict[str, Any]) -> None:
    """``ping``, ``refresh`` or ``resume``, as ``codecs.control`` checked it; another type ends the session."""
    kind = obj.get("type")
    if kind == "ping":
        session.tell({"type": "pong"})
    elif kind == "refresh" and not session.refreshing:
        session.hub.refresh(session, str(obj.get("token", "")))
    elif kind == "resume" and not session.resumed and not session.subscriptions:
        _resume(session, obj)
    else:
        session.close(BAD_MESSAGE, f"a control object of type {str(kind)[:32]!r} has no place here")


def _resume(session: Session, obj: dict[str, Any]) -> None:
    """Where the client was is in what it says; its token only names the connection that it replaces. One of another
    user, or of a gateway that was another one, names none.
    """
    former = session_of(session.hub.key, session.principal, str(obj.get("token", "")))

    def tell(outcome: Resumed) -> None:
        session.tell({"type": "resumed", **outcome._asdict()})

    if former is not None:
        session.hub.supersede(former, session)
    session.resume(str(obj["epoch"]), int(obj["sequence"]), list(obj["subscriptions"]), tell)


def welcome(session: Session) -> dict[str, Any]:
    """The first object on a connection; its ``resume``, ``epoch`` and ``sequence`` make a ``resume`` object later."""
    hub, mine, limits = session.hub, session.principal, session.hub.settings.limits
    return {
        "type": "welcome",
        "session": session.id,
        "user": mine.name,
        "userid": mine.userid,
        "roles": mine.role_names,
        "limits": {
            "message_bytes": limits.message_bytes,
            "in_flight": limits.in_flight,
            "msgs_per_s": 0 if mine.owner else limits.msgs_per_s,
            "subscriptions": limits.subscriptions,
            "services": limits.services,
        },
        "resume": token_for(hub.key, mine, session.id),
        "epoch": hub.history.epoch or None,
        "sequence": hub.history.last,
        "server": SERVER,
        "upstream": hub.upstream_state(),
        "ping_s": limits.ping_s,
        "expires": mine.expires,
    }
