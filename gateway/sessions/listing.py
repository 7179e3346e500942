"""Sessions, counters and states as ``gateway.session``, ``gateway.sessions`` and ``gateway.stats`` show them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.hub import Hub
    from gateway.sessions.session import Session


def session(one: Session) -> dict[str, Any]:
    """The row of a session; times are wall clock seconds since 1970."""
    outbox = one.link.outbox
    return {
        "session": one.id,
        "user": one.principal.name,
        "userid": one.principal.userid,
        "roles": one.principal.role_names,
        "credential": one.principal.kind,
        "expires": one.principal.expires,
        "kind": one.kind,
        "address": one.address,
        "opened_at": one.opened_at,
        "subscriptions": [prefix.decode("utf-8", "replace") for prefix in one.subscriptions],
        "services": sorted(one.services),
        "in_flight": one.calls.count,
        "owed": one.provider.count,
        "received": one.received_msgs,
        "answered": one.answered_msgs,
        "denied": one.denied_msgs,
        "dropped": one.dropped + outbox.dropped_events + int(getattr(one.link, "lost", 0)),
        "queued_bytes": outbox.parked_bytes,
        "choked": one.busy,
    }


def sessions(hub: Hub, limit: int, offset: int) -> list[dict[str, Any]]:
    """At most ``limit`` rows, oldest session first."""
    return [session(one) for one in islice(hub.sessions.values(), offset, offset + limit)]


def stats(hub: Hub) -> dict[str, Any]:
    """Counters since the start, and the present states, of this process."""
    upstream, history = hub.upstream, hub.history
    return {
        "started_at": hub.started_at,
        "sessions": len(hub.sessions),
        "by_kind": hub.counters.by_kind(hub.sessions.values()),
        "services": sorted(hub.registrations.names()),
        "prefixes": len(hub.fanout.prefixes()),
        "counters": hub.counters.plain(),
        "events": {"received": hub.fanout.events, "delivered": hub.fanout.deliveries},
        "history": {
            "epoch": history.epoch,
            "last": history.last,
            "msgs": len(history),
            "bytes": history.bytes,
        },
        "upstream": hub.upstream_state(),
        "queued_bytes": hub.options.budget.used_bytes,
        "choked": upstream.choked,
    }
