"""``mmi.service.broker``: the broker told about and told what to do (NFP, "Broker Management Interface").

Tasks of the text: show_broker, show_workers, show_clients, show_services; restart, shutdown, disconnect (owners only).
Tasks of deployed NorFab, answered in its shapes: show_workers, get_stats, get_status, show_broker_version,
show_broker_inventory, get_logs (owners, and whom a rule allows it: logs tell names, keys and paths of others).
Ours: unpin, reload (owners only).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from broker import __version__
from broker.nfp.contract import Call
from broker.nfp.jobs import WorkerView
from broker.nfp.logs import LAST_DEFAULT, RECORDS_MAX
from broker.nfp.management.internal_service import (
    Deferred,
    InternalService,
    Refused,
    deployed,
    number,
    text,
    words,
)
from broker.nfp.names import MMI_BROKER
from broker.nfp.principal import Standing
from broker.nfp.process_stats import ProcessStats, versions

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker

CALLED: Final = "NFPBroker"
"""How deployed NorFab's broker names itself, and its tools expect it."""
_PACKAGES: Final = ("norfab", "pyyaml", "pyzmq", "psutil", "pydantic", "tornado", "jinja2", "msgspec")


class MmiService(InternalService):
    """The service over ``broker``."""

    def __init__(self, broker: NfpBroker) -> None:
        self._broker = broker
        self._process = ProcessStats()
        everybody, owners = Standing.GUEST, Standing.OWNER
        super().__init__(
            MMI_BROKER,
            {
                "show_broker": (everybody, self._show_broker),
                "show_workers": (everybody, self._show_workers),
                "show_services": (everybody, self._show_services),
                "show_clients": (everybody, self._show_clients),
                "show_broker_version": (everybody, lambda _: dict(_versions())),
                "show_broker_inventory": (everybody, self._show_inventory),
                "get_stats": (everybody, self._get_stats),
                "get_status": (everybody, self._get_status),
                "get_logs": (everybody, self._get_logs),  # the rules keep it for owners, unless one spells it
                "restart": (owners, lambda call: self._leave(call, restart=True)),
                "shutdown": (owners, lambda call: self._leave(call, restart=False)),
                "disconnect": (owners, self._disconnect),
                "unpin": (owners, self._unpin),
                "reload": (owners, self._reload),
            },
        )

    def _workers(self) -> list[WorkerView]:
        return self._broker.dispatcher.workers(self._broker.clock.now())

    # -- shown ------------------------------------------------------------------------------------

    def _show_broker(self, call: Call) -> dict[str, Any]:
        broker = self._broker
        workers = self._workers()
        return {
            "name": broker.name,
            "version": __version__,
            "status": "stopping" if broker.stopping else "active",
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
                "sequence": broker.event_bus.buffer.last,
                "held": len(broker.event_bus.buffer),
                "subscriptions": len(broker.event_bus.subscriptions()),
                "delivered": broker.event_bus.delivered,
                "dropped": broker.event_bus.dropped,
            },
            "counters": counters(broker),
            "process": self._process.read(broker.uptime_s),
        }

    def _show_workers(self, call: Call) -> list[dict[str, Any]]:
        found = _chosen(self._workers(), text(call, "service"), text(call, "status"))
        if not deployed(call):
            return [_detailed(worker, owner=call.peer.principal.owner) for worker in found]
        return [_record(worker) for worker in found] or [dict(_NOBODY)]

    def _show_services(self, call: Call) -> list[dict[str, Any]]:
        wanted = text(call, "service")
        return [
            {**service._asdict(), "workers": list(service.workers)}
            for service in self._broker.dispatcher.services()
            if wanted in ("", "all", service.name)
        ]

    def _show_clients(self, call: Call) -> list[dict[str, Any]]:
        return [
            {**client._asdict(), "dialect": client.dialect.value, "seen_s": round(client.seen_s, 1)}
            for client in self._broker.dispatcher.clients(self._broker.clock.now())
            if call.peer.principal.may_see(client.holder)
        ]

    def _show_inventory(self, call: Call) -> Any:
        """Owners see all of it, users what does not look like a secret; a rule for guests does not open it to them."""
        principal = call.peer.principal
        if principal.standing is Standing.GUEST:
            raise Refused("not allowed: the inventory is not for guests")
        datastore = self._broker.datastore
        return Deferred(self._broker.reader.look, lambda _: datastore.whole(redacted=not principal.owner))

    def _get_stats(self, call: Call) -> dict[str, Any]:
        broker = self._broker
        workers = [_figures(worker) for worker in self._workers()]
        return {
            "schema_version": "1.0",
            "collected_at": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "name": CALLED,
            "role": "broker",
            "status": "stopping" if broker.stopping else "active",
            "process": self._process.read(broker.uptime_s),
            "messaging": _messaging(broker),
            "endpoint": broker.endpoints[0] if broker.endpoints else "",
            "worker_count": len(workers),
            "service_count": len(broker.dispatcher.services()),
            "keepalive_interval_ms": broker.settings.keepalive_ms,
            "keepalive_multiplier": broker.settings.multiplier,
            "workers": workers,
        }

    def _get_status(self, call: Call) -> dict[str, Any]:
        """As deployed NorFab's, without the paths of its folders and keys, which tell a stranger where to look."""
        broker, settings = self._broker, self._broker.settings
        return {
            "name": CALLED,
            "role": "broker",
            "status": "stopping" if broker.stopping else "active",
            "endpoint": broker.endpoints[0] if broker.endpoints else "",
            "directories": {},
            "security": {
                "curve": settings.curve,
                "server_key": broker.server_key,
                "unlisted": settings.unlisted,
                "offer_unlisted": settings.offer_unlisted,
                "listed_keys": len(settings.keys),
            },
        }

    def _get_logs(self, call: Call) -> list[dict[str, Any]]:
        wanted = {name: text(call, name) for name in ("level", "logger", "since", "until")}
        try:
            return self._broker.log.read(last=number(call, "last", LAST_DEFAULT, 0, RECORDS_MAX), **wanted)
        except ValueError as error:
            raise Refused(str(error)) from error

    # -- done -------------------------------------------------------------------------------------

    def _leave(self, call: Call, *, restart: bool) -> dict[str, str]:
        doing = "restarting" if restart else "shutting down"
        self._broker.leave(restart=restart, reason=f"{doing} as {call.peer.name} asked")
        return {"status": doing}

    def _disconnect(self, call: Call) -> dict[str, list[str]]:
        names = words(call, "workers") or words(call, "names")
        wanted = None if not names or names == ("all",) else names
        reason, now = f"disconnected as {call.peer.name} asked", self._broker.clock.now()
        return {"disconnected": self._broker.dispatcher.disconnect_workers(wanted, reason, now)}

    def _unpin(self, call: Call) -> dict[str, bool]:
        name = text(call, "name")
        if not name:
            raise Refused("unpin needs the name of a peer")
        return {"unpinned": self._broker.name_owners.release_name(name)}

    def _reload(self, call: Call) -> Deferred:
        """Answered once it was read."""
        return Deferred(self._broker.reader.reload, _reloaded)


def _reloaded(outcome: Any) -> dict[str, Any]:
    if isinstance(outcome, Exception):
        raise Refused(f"the inventory was not reloaded: {outcome}") from outcome
    return dict(outcome)


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
        "unsent": sum(router.dropped for router in routers) + broker.dropped,
        "failures": ingress.failures,
        "denied": ingress.denied,
        "pins": len(names),
        "pins_in_memory": names.passing,
        "pin_violations": names.violations,
        "names_refused": names.refused,
        "workers_called": broker.nudge.sent,
        "invalid": ingress.invalid.total(),
        "cut": ingress.cut,
        "unstored_ops": broker.store.lost,
    }
    counts.update((f"invalid_{kind}", count) for kind, count in ingress.invalid.items())
    counts.update((f"jobs_{name}", count) for name, count in broker.dispatcher.counts.as_dict().items())
    return counts


def _messaging(broker: NfpBroker) -> dict[str, int]:
    """Tell the messages since the start, as deployed NorFab does; failures were dropped or could not be sent."""
    return {
        "sent": sum(router.sent for router in broker.routers),
        "received": sum(router.received for router in broker.routers),
        "events_received": broker.event_bus.buffer.last,
        "send_failures": sum(router.dropped for router in broker.routers),
        "receive_failures": broker.ingress.invalid.total(),
    }


# -- workers ----------------------------------------------------------------------------------

_NOBODY: Final = {"name": "", "service": "", "status": ""}
"""What deployed NorFab tells instead of an empty list."""


def _status_of(worker: WorkerView) -> str:
    """``alive`` or ``dead``: there are no others in deployed NorFab."""
    return "alive" if worker.status == "alive" else "dead"


def _chosen(workers: Iterable[WorkerView], service: str, status: str) -> list[WorkerView]:
    """Return the workers of ``service`` ("" or all: any) that are ``status`` (alive or dead; anything else: both)."""
    return [
        worker
        for worker in workers
        if service in ("", "all", worker.service)
        and (status not in ("alive", "dead") or _status_of(worker) == status)
    ]


def _record(worker: WorkerView) -> dict[str, str]:
    """As deployed NorFab's clients print it, all texts; ``resources`` is an addition of ours."""
    return {
        "name": worker.name,
        "service": worker.service,
        "status": _status_of(worker),
        "holdtime": str(round(max(0.0, worker.holdtime_s), 1)),
        "keepalives tx/rx": f"{worker.keepalives_sent} / {worker.keepalives_received}",
        "alive (s)": str(int(worker.alive_s)),
        "resources": ", ".join(worker.resources),
    }


def _detailed(worker: WorkerView, *, owner: bool) -> dict[str, Any]:
    """As our own clients get it: the record, with numbers and lists; keys and jobs are for owners."""
    told: dict[str, Any] = {
        "name": worker.name,
        "service": worker.service,
        "status": _status_of(worker),
        "state": worker.status,
        "holdtime": round(max(0.0, worker.holdtime_s), 1),
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
        "name": worker.name,
        "service": worker.service,
        "status": _status_of(worker),
        "holdtime_seconds": round(max(0.0, worker.holdtime_s), 1),
        "uptime_seconds": int(worker.alive_s),
        "keepalives_sent": worker.keepalives_sent,
        "keepalives_received": worker.keepalives_received,
    }
