"""``mmi.service.broker``: the broker told about and told what to do (NFP, "Broker Management Interface").

Tasks of the text: show_broker, show_workers, show_clients, show_services; restart, shutdown, disconnect (owners only).
Tasks of deployed NorFab, answered in its shapes: show_workers, get_stats, get_status, show_broker_version,
show_broker_inventory, get_logs (owners, and whom a rule allows it: logs tell names, keys and paths of others).
Ours: unpin, reload (owners only).
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from broker import __version__
from broker.errors import ConfigError
from broker.nfp.contract import Call
from broker.nfp.jobs import WorkerView
from broker.nfp.management.questions import Refused, Table, arguments, deployed, split
from broker.nfp.principal import Standing
from broker.nfp.self_report import LAST_DEFAULT, RECORDS_MAX, versions

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker

CALLED: Final = "NFPBroker"
"""How deployed NorFab's broker names itself, and its tools expect it."""
_PACKAGES: Final = ("norfab", "pyyaml", "pyzmq", "psutil", "pydantic", "tornado", "jinja2", "msgspec")


class _Which(msgspec.Struct):
    """Of what is shown: "" and all exclude nothing."""

    service: str = ""
    status: str = ""


class _Records(msgspec.Struct):
    last: Annotated[int, msgspec.Meta(ge=0, le=RECORDS_MAX)] = LAST_DEFAULT
    level: str = ""
    logger: str = ""
    since: str = ""
    until: str = ""


class _Names(msgspec.Struct):
    workers: str | list[str] = ""
    names: str | list[str] = ""
    name: str = ""


# -- shown ------------------------------------------------------------------------------------


def _status(broker: NfpBroker) -> str:
    return "stopping" if broker.stopping else "active"


def _show_broker(broker: NfpBroker, _call: Call) -> dict[str, Any]:
    workers, bus = workers_of(broker), broker.event_bus
    return {
        "name": broker.name,
        "version": __version__,
        "status": _status(broker),
        "epoch": broker.epoch,
        "endpoints": list(broker.endpoints),
        "uptime_s": round(broker.uptime_s, 1),
        "keepalive_ms": broker.settings.keepalive_ms,
        "multiplier": broker.settings.multiplier,
        "workers": {
            "alive": sum(worker.status == "alive" for worker in workers),
            "known": len(workers),
        },
        "services": len(broker.dispatcher.services()),
        "store": (broker.store.broken or "on") if broker.settings.store else "off",
        "events": {
            "sequence": bus.last,
            "held": len(bus.held),
            "subscriptions": len(bus.subscriptions()),
            "delivered": bus.delivered,
            "dropped": bus.dropped,
        },
        "counters": counters(broker),
        "process": broker.process.read(broker.uptime_s),
    }


def _show_workers(broker: NfpBroker, call: Call) -> list[dict[str, Any]]:
    wanted = arguments(call, _Which)
    found = workers_of(broker, wanted.service, wanted.status)
    if not deployed(call):
        return [worker_row(worker, owner=call.peer.principal.owner) for worker in found]
    return [_record(worker) for worker in found] or [dict(_NOBODY)]


def _show_services(broker: NfpBroker, call: Call) -> list[dict[str, Any]]:
    return service_rows(broker, arguments(call, _Which).service)


def service_rows(broker: NfpBroker, wanted: str = "") -> list[dict[str, Any]]:
    """Tell of every service, or of the one that is ``wanted``."""
    return [
        {**service._asdict(), "workers": list(service.workers)}
        for service in broker.dispatcher.services()
        if wanted in ("", "all", service.name)
    ]


def _show_clients(broker: NfpBroker, call: Call) -> list[dict[str, Any]]:
    return [
        {**client._asdict(), "dialect": client.dialect.value, "seen_s": round(client.seen_s, 1)}
        for client in broker.dispatcher.clients(broker.clock.now())
        if call.peer.principal.may_see(client.holder)
    ]


def _show_version(_broker: NfpBroker, _call: Call) -> dict[str, str]:
    return dict(_versions())


async def _show_inventory(broker: NfpBroker, call: Call) -> Any:
    """Owners see all of it, users what does not look like a secret; a rule for guests does not open it to them."""
    principal = call.peer.principal
    if principal.standing is Standing.GUEST:
        raise Refused("not allowed: the inventory is not for guests")
    await broker.reader.look()
    return broker.datastore.whole(redacted=not principal.owner)


def _named(broker: NfpBroker) -> dict[str, Any]:
    return {
        "name": CALLED,
        "role": "broker",
        "status": _status(broker),
        "endpoint": broker.endpoints[0] if broker.endpoints else "",
    }


def _get_stats(broker: NfpBroker, _call: Call) -> dict[str, Any]:
    """As deployed NorFab's; messages that failed were dropped or could not be sent."""
    workers = [_figures(worker) for worker in workers_of(broker)]
    return {
        **_named(broker),
        "schema_version": "1.0",
        "collected_at": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        "process": broker.process.read(broker.uptime_s),
        "messaging": {
            "sent": sum(router.sent for router in broker.routers),
            "received": sum(router.received for router in broker.routers),
            "events_received": broker.event_bus.last,
            "send_failures": broker.dropped,
            "receive_failures": broker.ingress.invalid.total(),
        },
        "worker_count": len(workers),
        "service_count": len(broker.dispatcher.services()),
        "keepalive_interval_ms": broker.settings.keepalive_ms,
        "keepalive_multiplier": broker.settings.multiplier,
        "workers": workers,
    }


def _get_status(broker: NfpBroker, _call: Call) -> dict[str, Any]:
    """As deployed NorFab's, without the paths of its folders and keys, which tell a stranger where to look."""
    settings = broker.settings
    return {
        **_named(broker),
        "directories": {},
        "security": {
            "curve": settings.curve,
            "server_key": broker.server_key,
            "unlisted": settings.unlisted,
            "offer_unlisted": settings.offer_unlisted,
            "listed_keys": len(settings.keys),
        },
    }


def _get_logs(broker: NfpBroker, call: Call) -> list[dict[str, Any]]:
    wanted = msgspec.structs.asdict(arguments(call, _Records))
    try:
        return broker.log.read(**wanted)
    except ValueError as error:
        raise Refused(str(error)) from error


# -- done -------------------------------------------------------------------------------------


def _leave(broker: NfpBroker, call: Call, *, restart: bool) -> dict[str, str]:
    doing = "restarting" if restart else "shutting down"
    broker.leave(restart=restart, reason=f"{doing} as {call.peer.name} asked")
    return {"status": doing}


def _disconnect(broker: NfpBroker, call: Call) -> dict[str, list[str]]:
    asked = arguments(call, _Names)
    names = split(asked.workers) or split(asked.names)
    wanted = None if not names or names == ("all",) else names
    reason, now = f"disconnected as {call.peer.name} asked", broker.clock.now()
    return {"disconnected": broker.dispatcher.disconnect_workers(wanted, reason, now)}


def _unpin(broker: NfpBroker, call: Call) -> dict[str, bool]:
    name = arguments(call, _Names).name
    if not name:
        raise Refused("unpin needs the name of a peer")
    return {"unpinned": broker.name_owners.release_name(name)}


async def _reload(broker: NfpBroker, _call: Call) -> dict[str, Any]:
    """Answered once it was read."""
    try:
        return dict(await broker.reader.reload())
    except ConfigError as error:
        raise Refused(f"the inventory was not reloaded: {error}") from error


TASKS: Final[Table] = {
    "show_broker": (Standing.GUEST, _show_broker),
    "show_workers": (Standing.GUEST, _show_workers),
    "show_services": (Standing.GUEST, _show_services),
    "show_clients": (Standing.GUEST, _show_clients),
    "show_broker_version": (Standing.GUEST, _show_version),
    "show_broker_inventory": (Standing.GUEST, _show_inventory),
    "get_stats": (Standing.GUEST, _get_stats),
    "get_status": (Standing.GUEST, _get_status),
    "get_logs": (Standing.GUEST, _get_logs),  # the rules keep it for owners, unless one spells it
    "restart": (Standing.OWNER, partial(_leave, restart=True)),
    "shutdown": (Standing.OWNER, partial(_leave, restart=False)),
    "disconnect": (Standing.OWNER, _disconnect),
    "unpin": (Standing.OWNER, _unpin),
    "reload": (Standing.OWNER, _reload),
}


@cache
def _versions() -> dict[str, str]:
    """Of what this broker runs on. Keys as deployed NorFab's, and ours."""
    of_python = {"python": sys.version.split(" ", 1)[0], "platform": sys.platform}
    return {"headgate": __version__} | versions(_PACKAGES) | of_python


# -- counted ----------------------------------------------------------------------------------


def counters(broker: NfpBroker) -> dict[str, int]:
    """Tell everything that was counted since the start: messages, connections, invalid messages by class, jobs."""
    routers, names, ingress = broker.routers, broker.name_owners, broker.ingress
    counts = {
        "received": sum(router.received for router in routers),
        "sent": sum(router.sent for router in routers),
        "peers": sum(1 for _ in broker.peers()),
        "refused_keys": sum(router.denied for router in routers),
        "failed_handshakes": sum(router.failed for router in routers),
        "cut_as_dead": sum(router.cut_dead for router in routers),
        "unsent": broker.dropped,
        "failures": ingress.failures,
        "denied": ingress.denied,
        "pins": len(names),
        "pins_in_memory": names.passing,
        "pin_violations": names.violations,
        "names_refused": names.refused,
        "workers_called": broker.called_back,
        "invalid": ingress.invalid.total(),
        "cut": ingress.cut,
        "unstored_ops": broker.store.lost,
    }
    counts.update((f"invalid_{kind}", count) for kind, count in ingress.invalid.items())
    counts.update((f"jobs_{name}", count) for name, count in broker.dispatcher.counts.as_dict().items())
    return counts


# -- workers ----------------------------------------------------------------------------------

_NOBODY: Final = {"name": "", "service": "", "status": ""}
"""What deployed NorFab tells instead of an empty list."""


def _status_of(worker: WorkerView) -> str:
    """``alive`` or ``dead``: there are no others in deployed NorFab."""
    return "alive" if worker.status == "alive" else "dead"


def _head(worker: WorkerView) -> dict[str, str]:
    return {"name": worker.name, "service": worker.service, "status": _status_of(worker)}


def workers_of(broker: NfpBroker, service: str = "", status: str = "") -> list[WorkerView]:
    """Return the workers of ``service`` ("" or all: any) that are ``status`` (alive or dead; anything else: both)."""
    return [
        worker
        for worker in broker.dispatcher.workers(broker.clock.now())
        if service in ("", "all", worker.service)
        and (status not in ("alive", "dead") or _status_of(worker) == status)
    ]


def _record(worker: WorkerView) -> dict[str, str]:
    """As deployed NorFab's clients print it, all texts; ``resources`` is an addition of ours."""
    return {
        **_head(worker),
        "holdtime": str(round(worker.holdtime_s, 1)),
        "keepalives tx/rx": f"{worker.keepalives_sent} / {worker.keepalives_received}",
        "alive (s)": str(int(worker.alive_s)),
        "resources": ", ".join(worker.resources),
    }


def worker_row(worker: WorkerView, *, owner: bool) -> dict[str, Any]:
    """As our own clients and those on Flux get it: with numbers and lists; keys and jobs are for owners."""
    told: dict[str, Any] = {
        **_head(worker),
        "state": worker.status,
        "holdtime": round(worker.holdtime_s, 1),
        "alive_s": round(worker.alive_s, 1),
        "keepalives": {"sent": worker.keepalives_sent, "received": worker.keepalives_received},
        "dialect": worker.dialect.value,
        "features": sorted(worker.features),
        "credits": worker.credits,
        "busy": worker.busy,
        "waiting": worker.waiting,
        **worker.ended,
        "resources": list(worker.resources),
        "tasks": list(worker.tasks),
    }
    if owner:
        told |= {"key": worker.key, "holder": worker.holder, "jobs": list(worker.jobs)}
    return told


def _figures(worker: WorkerView) -> dict[str, Any]:
    """As in deployed NorFab's ``get_stats``."""
    return {
        **_head(worker),
        "holdtime_seconds": round(worker.holdtime_s, 1),
        "uptime_seconds": int(worker.alive_s),
        "keepalives_sent": worker.keepalives_sent,
        "keepalives_received": worker.keepalives_received,
    }
