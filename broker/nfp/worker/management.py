"""``mmi.service.worker``: what may be asked of a worker itself (NFP, "Worker Management Interface").

The broker passes such requests on and asks its rules before: without any, show_* is for users and owners, restart,
shutdown and disconnect are for owners, and guests get nothing. A resident worker, one that lives in its broker's
process, leaves with the broker and not before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.nfp.bodies import read_request, token_client, write
from broker.nfp.frames import Packet
from broker.nfp.worker.store import FINISHED

if TYPE_CHECKING:
    from broker.nfp.worker.session import Session


def answer(session: Session, packet: Packet) -> bytes:
    """The JSON that answers ``packet``; an unknown function is answered with the list of known ones."""
    request = read_request(packet.data)
    function = _FUNCTIONS.get(request.task)
    said: Any
    if function is None:
        said = {"error": f"no function {request.task[:64]!r}, expected one of {', '.join(_FUNCTIONS)}"}
    else:
        said = function(session)
    return write(said)


def show_broker(session: Session) -> dict[str, Any]:
    """The broker as this worker sees it."""
    heartbeat = session.consumer.heartbeat
    return {
        "endpoint": session.channel.broker,
        "connected": heartbeat.registered,
        "trouble": session.channel.trouble,
        "opened": session.consumer.opened,
        "keepalive_ms": round(heartbeat.interval_s * 1000),
        "multiplier": heartbeat.multiplier,
        "holdtime": heartbeat.hold_s,
        "keepalives_sent": heartbeat.sent,
        "keepalives_received": heartbeat.received,
        "connections": session.channel.traffic.connections,
    }


def show_workers(session: Session) -> list[dict[str, Any]]:
    """This worker: status and statistics."""
    return [{**session.status(), "stats": session.stats(), "resources": list(session.worker.resources)}]


def show_clients(session: Session) -> list[dict[str, Any]]:
    """Clients whose jobs are known here, with their numbers."""
    jobs = session.known_jobs()
    every = Counter(token_client(job.client) for job in jobs)
    unfinished = Counter(token_client(job.client) for job in jobs if job.state not in FINISHED)
    return [{"name": name, "jobs": count, "unfinished": unfinished[name]} for name, count in every.items()]


def restart(session: Session) -> dict[str, str]:
    """Finish what runs, then start anew."""
    return _leave(session, "restart")


def shutdown(session: Session) -> dict[str, str]:
    """Finish what runs, then end."""
    return _leave(session, "shutdown")


def disconnect(session: Session) -> dict[str, str]:
    """Say goodbye to the broker and connect anew, once the answer has left."""
    if session.worker.resident:
        return _RESIDENT
    session.loop.call_later(_LEAVE_AFTER_S, _reconnect, session)
    return {"status": "disconnecting"}


_LEAVE_AFTER_S = 0.1
"""So that the answer leaves first."""


_RESIDENT = {"error": "this worker lives in its broker's process and leaves with the broker"}


def _leave(session: Session, how: str) -> dict[str, str]:
    if session.worker.resident:
        return _RESIDENT
    session.loop.call_later(_LEAVE_AFTER_S, session.stop, how)
    return {"status": "restarting" if how == "restart" else "shutting down"}


def _reconnect(session: Session) -> None:
    session.consumer.heartbeat.disconnect()
    session.loop.call_later(_LEAVE_AFTER_S, session.channel.reopen, "asked to by management")


_FUNCTIONS: dict[str, Callable[[Session], Any]] = {
    function.__name__: function
    for function in (show_broker, show_workers, show_clients, restart, shutdown, disconnect)
}
