"""What a broker counted, what it is owed and who holds how much, JSON-ready: for its services and its metrics."""

from __future__ import annotations

import time
from typing import Any

from broker.figures import BOUNDS_NS, NameStats
from broker.routing.port import KIND_NAMES, Port, User
from broker.routing.router import Router


class Figures:
    """Those of one broker.

    Args:
        router: what it counts in.
    """

    def __init__(self, router: Router) -> None:
        self._router = router

    def traffic(self) -> dict[str, Any]:
        """Message counts by direction and type (see ``Tally``), drops by reason, and what is open now."""
        tally, ports = self._router.tally, self._router.ports
        return {
            "rx": tally.received(),
            "tx": tally.sent(),
            "drops": dict(tally.drops),
            "connects": tally.connects,
            "pending": sum(port.open_calls for port in ports),
            "links": sum(port.link is not None for port in ports),
            "outbox_bytes": sum(port.link.outbox.queued_bytes for port in ports if port.link is not None),
        }

    def clear(self) -> None:
        """Start the counts again."""
        self._router.tally.clear()
        self._router.call_stats.clear()
        self._router.events.stats.clear()
        self._router.invalidate()  # decisions hold the counts of their methods

    def links(self) -> list[dict[str, Any]]:
        """Every attached link."""
        return [describe(port) for port in self._router.ports if port.link is not None]

    def users(self) -> dict[str, Any]:
        """Who holds how much, JSON-ready, by messages received; and the limits of a guest."""
        held = [_holding(user) for user in self._router.users]
        limits = self._router.users.limits
        return {
            "users": sorted(held, key=lambda user: -user["received"]),
            "limits": {
                "pending": limits.calls,
                "services": limits.services,
                "subscriptions": limits.subscriptions,
                "links": limits.connections,
            },
        }

    def calls(self, errors: bool) -> dict[str, Any]:
        """The methods that clients called here (see ``routing.call_stats``), the services that are registered here, and
        what else is counted here, by kind: ``event``, by topic.

        Args:
            errors: with the newest error of each method, and with the other kinds: both may be nobody else's business.
        """
        stats, own, wall = self._router.call_stats, self._router.own, time.time()
        return {
            "bounds_ns": list(BOUNDS_NS),
            "methods": {
                name: _method(method, errors, stats.now_ns, wall)
                for name, method in sorted(stats.methods.items())
            },
            "others": {"event": self._router.events.stats.table.told(stats.now_ns, wall)} if errors else {},
            "services": {
                name: {"provider": port.name, "builtin": port is own}
                for name, port in self._router.services.names()
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


def _method(method: NameStats, errors: bool, now_ns: int, wall: float) -> dict[str, Any]:
    shown = {**method.told(now_ns, wall), "buckets": method.buckets}
    if not errors or shown["last_error"] is None:
        del shown["last_error"]
    return shown
