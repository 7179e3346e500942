"""``GET /metrics``: one answer for the whole gateway, whichever worker process it reaches; and what it is made of.

The corridor only counts; samples are made of its counts when somebody asks, as plain data: ``[name, kind, help,
[[labels, value], ...]]``. Of several workers, values with the same labels are added, counters and gauges alike:
sessions, bytes that wait, CPU seconds of the whole gateway. Of kind ``least`` the smallest counts: when the first
certificate ends.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from broker import exposition
from broker.identity import Role
from gateway.administration.listing import withheld
from gateway.closes import MEANINGS
from gateway.sessions.counters import PLAIN
from gateway.settings.rules import METRICS
from gateway.web.answers import Refusal
from gateway.web.app_context import CALLER, FRONT

if TYPE_CHECKING:
    from gateway.fleet.member import Fleet
    from gateway.identity.authenticate import Authenticator
    from gateway.sessions.delivery import Delivery
    from gateway.sessions.sessions import Sessions
    from gateway.upstream.upstream import Upstream
    from gateway.web.admission import Admission


COUNTER: Final = "counter"
GAUGE: Final = "gauge"
LEAST: Final = "least"
"""A gauge of which the smallest of all workers is shown."""

Snapshot = list[list[Any]]
"""The samples of one process; survives JSON unchanged."""


def merged(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The sum of several processes."""
    found: dict[str, tuple[str, str, dict[tuple[tuple[str, str], ...], float]]] = {}
    for snapshot in snapshots:
        for name, kind, text, values in snapshot:
            _, _, sums = found.setdefault(name, (kind, text, {}))
            for labels, value in values:
                key = tuple(sorted(labels.items()))
                sums[key] = min(sums.get(key, value), value) if kind == LEAST else sums.get(key, 0) + value
    return [
        [name, kind, text, [[dict(key), value] for key, value in sums.items()]]
        for name, (kind, text, sums) in found.items()
    ]


def counters_only(snapshot: Snapshot) -> Snapshot:
    """What stays true of a process that has ended."""
    return [sample for sample in snapshot if sample[1] == COUNTER]


def render(snapshot: Snapshot) -> bytes:
    """Prometheus text exposition format."""
    samples = (
        (f"gateway_{name}_total", kind, text, values)
        if kind == COUNTER
        else (f"gateway_{name}", GAUGE, text, values)
        for name, kind, text, values in snapshot
    )
    return exposition.render(samples).encode()


_WORDS = {
    "requests": "Requests of clients sent upstream.",
    "responses": "Responses handed to clients.",
    "published": "Events sent upstream for clients.",
    "delivered": "Requests handed to services of clients.",
    "refused": "Requests answered here with an error.",
    "denied": "Attempts without the right.",
    "limited": "Messages above the rate limit.",
    "late": "Responses to no open call, dropped.",
    "forged": "Responses of providers to nothing they were delivered, dropped.",
    "missed": "Events of the upstream that never came, as far as they could be counted; clients are told.",
    "faults": "Messages whose handling raised.",
}


def samples(
    sessions: Sessions,
    delivery: Delivery,
    identity: Authenticator,
    admission: Admission,
    fleet: Fleet | None,
    expiries: Iterable[float],
    hook: Mapping[str, int],
) -> Snapshot:
    """The counts of this process."""
    counters = sessions.counters
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found: Snapshot = [
        _plain("workers", GAUGE, "Worker processes that answered.", 1),
        *(_plain(name, COUNTER, _WORDS.get(name, name), getattr(counters, name)) for name in PLAIN),
        _labelled("sessions_opened", COUNTER, "Sessions opened.", "kind", counters.opened),
        _labelled("sessions_refused", COUNTER, "Sessions not opened.", "reason", counters.refusals),
        _labelled(
            "sessions_ended",
            COUNTER,
            "Sessions this side ended, by close code.",
            "code",
            dict.fromkeys(MEANINGS, 0)
            | counters.ended,  # each from 0 on: a rate needs to see where it begins
        ),
        _labelled("dropped", COUNTER, "Messages dropped.", "reason", counters.dropped),
        _labelled(
            "sessions",
            GAUGE,
            "Open sessions; over HTTP one for each kept connection and user.",
            "kind",
            sessions.by_kind(),
        ),
        *_connections(admission),
        _plain(
            "calls_in_flight",
            GAUGE,
            "Calls of clients not answered yet.",
            sum(each.calls.count for each in sessions.by_id.values()),
        ),
        *_events(sessions, delivery),
        *_upstream(delivery.upstream),
        _labelled("authorization_hook", COUNTER, "Questions to the authorisation hook.", "outcome", hook),
        *_fleet(fleet),
        _plain("credentials_refused", COUNTER, "Credentials that were refused.", identity.attempts.failed),
        _plain("cpu_seconds", COUNTER, "CPU time.", usage.ru_utime + usage.ru_stime),
        _plain("resident_bytes", GAUGE, "Largest resident set size.", usage.ru_maxrss * 1024),
    ]
    if ends := list(expiries):
        found.append(
            _plain("certificate_expires", LEAST, "When the first certificate ends, since 1970.", min(ends))
        )
    return found


def _connections(admission: Admission) -> Snapshot:
    open_ = {"anonymous": len(admission.strangers), "user": len(admission.users)}
    said = "Connections without a credential; HTTP and closing ones of users."
    ended, pauses = "Ended for newer ones, by the limit.", "Times accepting rested, out of file descriptors."
    return [
        _labelled("connections", GAUGE, said, "of", open_),
        _labelled("connections_ended", COUNTER, ended, "limit", admission.ended),
        _plain("accept_pauses", COUNTER, pauses, admission.pauses),
    ]


def _fleet(fleet: Fleet | None) -> Snapshot:
    away = "Workers that do not reach the Redis of the fleet: limits of a user are each gateway's own."
    others = "Processes of other gateways, as each worker knows them."
    return [
        _plain("fleet_away", GAUGE, away, int(fleet is not None and fleet.away)),
        _plain("fleet_others", GAUGE, others, fleet.others if fleet is not None else 0),
    ]


def _events(sessions: Sessions, delivery: Delivery) -> Snapshot:
    return [
        _plain("events", COUNTER, "Events that came from upstream.", delivery.fanout.events),
        _plain(
            "event_deliveries",
            COUNTER,
            "Events handed to sessions, once for each.",
            delivery.fanout.deliveries,
        ),
        _plain(
            "events_dropped",
            COUNTER,
            "Events that slow clients missed instead of being ended.",
            sessions.counters.events_dropped
            + sum(each.link.outbox.dropped_events for each in sessions.by_id.values()),
        ),
        _labelled(
            "events_withheld",
            COUNTER,
            "Deliveries that rules kept from subscribers of a wider prefix; ids in topics are *.",
            "topic",
            withheld(delivery.fanout),
        ),
        _plain(
            "queued_bytes", GAUGE, "Bytes that wait for slow clients.", sessions.options.budget.used_bytes
        ),
        _plain("history_events", GAUGE, "Events kept for clients that come back.", len(delivery.history)),
        _plain("history_bytes", GAUGE, "Bytes of them.", delivery.history.held_bytes),
    ]


def _upstream(upstream: Upstream) -> Snapshot:
    return [
        _plain("upstream_joined", GAUGE, "Workers that are joined to the upstream.", int(upstream.joined)),
        _plain("upstream_joins", COUNTER, "Times the upstream was joined.", upstream.joins),
        _plain("upstream_losses", COUNTER, "Times the upstream was lost.", upstream.losses),
    ]


def _plain(name: str, kind: str, text: str, value: float) -> list[Any]:
    return [name, kind, text, [[{}, value]]]


def _labelled(name: str, kind: str, text: str, label: str, values: Mapping[Any, int]) -> list[Any]:
    return [name, kind, text, [[{label: str(key)}, value] for key, value in values.items()]]


async def metrics(request: web.Request) -> web.Response:
    """The counts of all workers; on public listeners for owners, admins and whom a rule lets call ``METRICS``, unless
    ``gateway.metrics_public``.
    """
    front = request.app[FRONT]
    caller = request.get(CALLER)  # missing where they are public
    roles = Role.OWNER if caller is None else caller.principal.roles
    if not roles & (Role.OWNER | Role.ADMIN) and not front.sessions.access.allows(roles, "call", METRICS):
        text = f"reading the metrics needs the role owner or admin, or a rule for calling {METRICS}"
        raise Refusal(403, text)
    return await open_metrics(request)


async def open_metrics(request: web.Request) -> web.Response:
    """The same without asking who reads: for ``gateway.metrics_listen``."""
    text = render(merged(await request.app[FRONT].snapshots()))
    return web.Response(body=text, headers={"Content-Type": exposition.TEXT})
