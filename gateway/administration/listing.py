"""Sessions, counters and states as ``gateway.session``, ``gateway.sessions`` and ``gateway.stats`` show them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.administration.service import Administration
    from gateway.events.fanout import Fanout
    from gateway.sessions.session import Session
    from gateway.sessions.sessions import Place, Sessions

NAMES_A_ROW: Final = 16
"""So many subscriptions in a row cost a page what a further row does."""


def row(one: Session) -> dict[str, Any]:
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
        "services": sorted(one.provider.names),
        "in_flight": one.calls.count,
        "owed": one.provider.count,
        "received": one.received_msgs,
        "answered": one.answered_msgs,
        "denied": one.denied_msgs,
        "dropped": one.dropped + outbox.dropped_events + int(getattr(one.link, "lost", 0)),
        "queued_bytes": outbox.queued_bytes,
        "choked": one.busy,
    }


def sessions(of: Sessions, limit: int, after: Place) -> dict[str, Any]:
    """Rows of the sessions of this process behind ``after``, oldest first, at most ``limit``; whether more follow."""
    rows: list[dict[str, Any]] = []
    page = {"sessions": rows, "more": False, "total": len(of)}
    for one in of.behind(after) if limit else ():
        if limit <= 0:
            page["more"] = True
            break
        rows.append(row(one))
        limit -= 1 + len(one.subscriptions) // NAMES_A_ROW
    return page


def joined(pages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One page of those of several processes, up to where the first ends that has more; and where the next begins."""
    ends = [_place(page["sessions"][-1]) for page in pages if page["more"]]
    rows = sorted((row for page in pages for row in page["sessions"]), key=_place)
    found: dict[str, Any] = {"sessions": rows, "total": sum(page["total"] for page in pages)}
    if ends:
        found["sessions"] = [row for row in rows if _place(row) <= min(ends)]
        opened_at, name = min(ends)
        found["next"] = f"{opened_at!r}:{name}"
    return found


def place_of(text: str) -> Place:
    """The place that ``next`` says.

    Raises:
        ValueError: it is none.

    >>> place_of("12.5:89abcdef")
    (12.5, '89abcdef')
    """
    said, _, name = text.partition(":")
    opened_at = float(said)
    if not (math.isfinite(opened_at) and name.isascii()):
        raise ValueError(text)
    return opened_at, name


def _place(row: Mapping[str, Any]) -> Place:
    return row["opened_at"], row["session"]


def stats(service: Administration) -> dict[str, Any]:
    """Counters since the start, and the present states, of this process."""
    sessions, delivery = service.sessions, service.delivery
    upstream, history = delivery.upstream, delivery.history
    return {
        "gateway": sessions.peers.label,
        "started_at": sessions.started_at,
        "sessions": len(sessions),
        "by_kind": sessions.by_kind(),
        "services": sorted(delivery.registrations.names()),
        "prefixes": len(delivery.fanout.prefixes()),
        "counters": sessions.counters.plain(),
        "events": {
            "received": delivery.fanout.events,
            "delivered": delivery.fanout.deliveries,
            "withheld": withheld(delivery.fanout),
        },
        "history": {
            "epoch": history.epoch,
            "last": history.last,
            "msgs": len(history),
            "bytes": history.held_bytes,
        },
        "upstream": upstream.state,
        "queued_bytes": sessions.options.budget.used_bytes,
        "choked": upstream.choked,
    }


def withheld(fanout: Fanout) -> dict[str, int]:
    """Topic, ids left out -> deliveries that the access rules kept from subscribers of a wider prefix."""
    return {name: stats.calls for name, stats in sorted(fanout.withheld.by_name.items()) if stats.calls}


SUMMED: Final = ("sessions", "by_kind", "counters", "events", "queued_bytes")
"""What of the statistics of several processes is added up."""
GATEWAYS_MAX: Final = 200
"""Rows of one answer: some 500 bytes each."""


def all_stats(service: Administration, others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The statistics of this process, and beside them those of every gateway and all together.

    ``silent`` names the gateways of which a process did not answer.
    """
    own = stats(service)
    told: dict[str, list[Mapping[str, Any]]] = {}
    for each in (own, *others):
        # an older release may lack some
        if all(name in each for name in ("gateway", "started_at", "upstream", *SUMMED)):
            told.setdefault(each["gateway"], []).append(each)
    rows = [
        {
            "gateway": name,
            "processes": len(parts),
            "started_at": min(part["started_at"] for part in parts),
            "joined": sum(part["upstream"]["joined"] for part in parts),
            **_sum([_summed(part) for part in parts]),
        }
        for name, parts in sorted(told.items())
    ]
    return own | {
        "gateways": rows[:GATEWAYS_MAX],
        "more": len(rows[GATEWAYS_MAX:]),
        "all": _sum([_summed(row) for row in rows]),
        "silent": sorted(
            name
            for name, count in service.sessions.peers.processes.items()
            if len(told.get(name, ())) < count
        ),
    }


def _summed(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: figures[name] for name in SUMMED}


def _sum(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers added up by name, tables within tables, too."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] for part in parts if name in part]
        found[name] = _sum(values) if isinstance(values[0], dict) else sum(values)
    return found
