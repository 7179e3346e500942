"""What a broker counted, what it is owed and who holds how much, JSON-ready: for its services and its metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from broker.figures import BOUNDS_NS, NameStats
from broker.routing.port import KIND_NAMES, Port, User

if TYPE_CHECKING:
    from broker.node.broker import Broker


def traffic(broker: Broker) -> dict[str, Any]:
    """Message counts of one broker by direction and type (see ``Tally``), drops by reason, and what is open now."""
    tally, ports = broker.router.tally, broker.router.ports
    return {
        "rx": tally.received(),
        "tx": tally.sent(),
        "drops": dict(tally.drops),
        "connects": tally.connects,
        "pending": sum(port.open_calls for port in ports),
        "links": sum(port.link is not None for port in ports),
        "outbox_bytes": sum(port.link.outbox.queued_bytes for port in ports if port.link is not None),
    }


def users(broker: Broker) -> dict[str, Any]:
    """Who holds how much, JSON-ready, by messages received; and the limits of a guest."""
    held = [_holding(user) for user in broker.router.users]
    limits = broker.router.users.limits
    return {
        "users": sorted(held, key=lambda user: -user["received"]),
        "limits": {
            "pending": limits.calls,
            "services": limits.services,
            "subscriptions": limits.subscriptions,
            "links": limits.connections,
        },
    }


def _holding(user: User) -> dict[str, Any]:
    ports = list(user.ports)
    return {
        "userid": user.userid,
        "owner": user.owner,
        "links": len(ports),
        "pending": sum(port.open_calls for port in ports),
        "services": user.services,
        "subscriptions": user.subscriptions,
        "outbox_bytes": sum(port.link.outbox.queued_bytes for port in ports if port.link is not None),
        "received": sum(port.received for port in ports),
    }


def describe(port: Port) -> dict[str, Any]:
    """One attached link, JSON-ready."""
    outbox = port.link.outbox
    return {
        "name": port.name,
        "uuid": port.uuid,
        "kind": KIND_NAMES[port.kind],
        "rank": port.rank,
        "userid": port.cred.userid,
        "pid": port.link.peer.pid if port.link.peer.pid is not None else -1,
        "rolemask": int(port.cred.rolemask),
        "services": sorted(name.decode("utf-8", "replace") for name in port.services),
        "subscriptions": len(port.subscriptions),
        "pending": port.open_calls,
        "received": port.received,
        "sent": outbox.sent,
        "untranslatable": port.link.untranslatable,
        "queued": len(outbox.unflushed) + len(outbox.queue or ()),
        "outbox_bytes": outbox.queued_bytes,
        "dropped_events": outbox.dropped_events,
    }


def calls(broker: Broker, errors: bool) -> dict[str, Any]:
    """The methods that clients called here, and the services that are registered here (see ``routing.call_stats``); and
    what else is counted here, by kind: ``event``, by topic.

    Args:
        broker: which.
        errors: with the newest error of each method, and with the other kinds: both may be nobody else's business.
    """
    stats, own, wall = broker.router.call_stats, broker.own, time.time()
    return {
        "bounds_ns": list(BOUNDS_NS),
        "methods": {
            name: _method(method, errors, stats.now_ns, wall)
            for name, method in sorted(stats.methods.items())
        },
        "others": {"event": broker.router.events.stats.table.told(stats.now_ns, wall)} if errors else {},
        "services": {
            name: {"provider": port.name, "builtin": port is own}
            for name, port in broker.router.services.names()
        },
    }


def _method(method: NameStats, errors: bool, now_ns: int, wall: float) -> dict[str, Any]:
    shown = {**method.told(now_ns, wall), "buckets": method.buckets}
    if not errors or shown["last_error"] is None:
        del shown["last_error"]
    return shown
