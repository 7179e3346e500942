"""``mmi.service.worker``: what may be asked of a worker itself (NFP, "Worker Management Interface").

The broker passes such requests on and asks its rules before: without any, show_* is for users and owners, restart,
shutdown and disconnect are for owners, and guests get nothing. A resident worker, one that lives in its broker's
process, leaves with the broker and not before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from broker.nfp.bodies import read_request

if TYPE_CHECKING:
    from broker.nfp.frames import Packet
    from broker.nfp.worker.shift import Shift


def answer(shift: Shift, packet: Packet) -> bytes:
    """The JSON that answers ``packet``; an unknown function is answered with the list of known ones."""
    request = read_request(packet.data)
    function = _FUNCTIONS.get(request.task)
    said: Any
    if function is None:
        said = {"error": f"no function {request.task[:64]!r}, expected one of {', '.join(_FUNCTIONS)}"}
    else:
        said = function(shift)
    return msgspec.json.encode(said)


def show_broker(shift: Shift) -> dict[str, Any]:
    """The broker as this worker sees it."""
    presence = shift.duty.presence
    return {
        "endpoint": shift.channel.broker,
        "connected": presence.registered,
        "trouble": shift.channel.trouble,
        "opened": shift.duty.opened,
        "keepalive_ms": round(presence.interval_s * 1000),
        "multiplier": presence.multiplier,
        "holdtime": presence.hold_s,
        "keepalives_sent": presence.sent,
        "keepalives_received": presence.received,
        "connections": shift.channel.traffic.connections,
    }


def show_workers(shift: Shift) -> list[dict[str, Any]]:
    """This worker: status and statistics."""
    return [{**shift.status(), "stats": shift.stats(), "resources": list(shift.resources)}]


def show_clients(shift: Shift) -> list[dict[str, Any]]:
    """Clients whose jobs are known here, with their numbers."""
    every = Counter(job.asker for job in shift.duty.jobs)
    running = Counter(job.asker for job in shift.duty.jobs if not job.ended)
    return [{"name": name, "jobs": count, "unfinished": running[name]} for name, count in every.items()]


def restart(shift: Shift) -> dict[str, str]:
    """Finish what runs, then start anew."""
    return _leave(shift, "restart")


def shutdown(shift: Shift) -> dict[str, str]:
    """Finish what runs, then end."""
    return _leave(shift, "shutdown")


def disconnect(shift: Shift) -> dict[str, str]:
    """Say goodbye to the broker and connect anew, once the answer has left."""
    if shift.resident:
        return _RESIDENT
    shift.loop.call_later(_LEAVE_AFTER_S, _reconnect, shift)
    return {"status": "disconnecting"}


_LEAVE_AFTER_S = 0.1
"""So that the answer leaves first."""


_RESIDENT = {"error": "this worker lives in its broker's process and leaves with the broker"}


def _leave(shift: Shift, how: str) -> dict[str, str]:
    if shift.resident:
        return _RESIDENT
    shift.loop.call_later(_LEAVE_AFTER_S, shift.stop, how)
    return {"status": "restarting" if how == "restart" else "shutting down"}


def _reconnect(shift: Shift) -> None:
    shift.duty.presence.leave()
    shift.loop.call_later(_LEAVE_AFTER_S, shift.channel.reopen, "asked to by management")


_FUNCTIONS: dict[str, Callable[[Shift], Any]] = {
    function.__name__: function
    for function in (show_broker, show_workers, show_clients, restart, shutdown, disconnect)
}
