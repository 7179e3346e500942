"""What a broker has counted, what it is owed and which user holds how much: JSON-ready for its services (``Figures``),
as text for Prometheus (``Metrics``, by ``broker.exposition``). The corridor only counts.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from errno import errorcode
from typing import TYPE_CHECKING, Any

from broker.exposition import Sample, Values, histogram, render
from broker.journal.samples import samples as samples_of_journal
from broker.name_stats import BOUNDS_NS, NameStats
from broker.routing.counters import CallStats, EventStats
from broker.routing.port import KIND_NAMES, OWN, Port, User
from broker.routing.router import Router

if TYPE_CHECKING:
    from broker.journal.recorder import Recorder
    from broker.node.lifecycle import Lifecycle
    from broker.node.overlay.overlay import Overlay
    from broker.wire.event_history import FrameHistory

USERS_SHOWN = 10
"""Each is a time series of its own: `headgate stats --users` has all of them."""


class Figures:
    """Those of one broker.

    Args:
        router: what it counts in.
    """

    def __init__(self, router: Router) -> None:
        self._router = router

    def traffic(self) -> dict[str, Any]:
        """Message counts by direction and type (see ``MessageCounters``), drops by reason, and what is open now."""
        counters, ports = self._router.counters, self._router.ports
        return {
            "rx": counters.received(),
            "tx": counters.sent(),
            "drops": dict(counters.drops),
            "connects": counters.connects,
            "pending": sum(port.open_calls for port in ports),
            "links": sum(port.link is not None for port in ports),
            "outbox_bytes": sum(port.link.outbox.queued_bytes for port in ports if port.link is not None),
        }

    def clear(self) -> None:
        """Start the counts again."""
        self._router.counters.clear()
        self._router.call_stats.clear()
        self._router.events.stats.clear()
        self._router.invalidate()  # decisions hold the counts of their methods

    def links(self) -> list[dict[str, Any]]:
        """Every attached link."""
        return [describe(port) for port in self._router.ports if port.link is not None]

    def users(self) -> dict[str, Any]:
        """What each user holds, JSON-ready, sorted by messages received; and the limits of a guest."""
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
        """The methods that clients called here (see ``routing.counters``), the services that are registered here, and
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
    # an error's text and userid may be nobody else's business (``calls``)
    if not errors or shown["last_error"] is None:
        del shown["last_error"]
    return shown


# wings use what is below with no broker beside them, and a broker that records nothing loads no journal

StatsByName = Mapping[str, NameStats]


class Metrics(Figures):
    """The figures of one broker, and their text.

    Args:
        router, overlay, lifecycle: of the broker. recorder: its journal's; None where there is none.

    Attributes:
        more: what runs beside the broker adds to its figures by these.
    """

    def __init__(
        self, router: Router, overlay: Overlay, lifecycle: Lifecycle, recorder: Recorder | None
    ) -> None:
        super().__init__(router)
        self.more: list[Callable[[], list[Sample]]] = []
        self._overlay = overlay
        self._lifecycle = lifecycle
        self._recorder = recorder

    def text(self) -> str:
        """All of them now, in the Prometheus text format."""
        return render(self.samples())

    def samples(self) -> list[Sample]:
        """All of them now."""
        counts = self.traffic()
        router = self._router
        types = ("request", "response", "event", "control")
        usage = resource.getrusage(resource.RUSAGE_SELF)
        attached = [port.kind for port in router.ports if port.link is not None]
        return [
            (
                "info",
                "gauge",
                "Constant 1.",
                [({"rank": str(router.rank), "size": str(router.topology.size)}, 1.0)],
            ),
            ("state", "gauge", "Lifecycle state number; 5 is run.", [({}, float(self._lifecycle.number))]),
            (
                "received_messages_total",
                "counter",
                "Messages received.",
                [({"type": t}, counts["rx"][t]) for t in types],
            ),
            (
                "sent_messages_total",
                "counter",
                "Messages passed on or made here, events once per receiver.",
                [({"type": t}, counts["tx"][t]) for t in types],
            ),
            (
                "dropped_messages_total",
                "counter",
                "Messages that went nowhere.",
                [({"reason": reason}, float(count)) for reason, count in counts["drops"].items()]
                or [({"reason": ""}, 0.0)],
            ),
            ("pending_calls", "gauge", "Requests not answered yet.", [({}, float(counts["pending"]))]),
            (
                "links",
                "gauge",
                "Attached links.",
                [({"kind": KIND_NAMES[kind]}, float(attached.count(kind))) for kind in range(OWN)],
            ),
            (
                "outbox_bytes",
                "gauge",
                "Bytes that wait for slow readers.",
                [({}, float(counts["outbox_bytes"]))],
            ),
            ("event_sequence", "counter", "Last event sequence.", [({}, float(router.events.sequence))]),
            (
                "event_gaps_total",
                "counter",
                "Times that event numbers were missing.",
                [({}, float(self._overlay.event_gaps))],
            ),
            (
                "missed_events_total",
                "counter",
                "Event numbers that were missing.",
                [({}, float(self._overlay.events_missed))],
            ),
            *history_samples(router.events.history),
            *call_samples(router.call_stats),
            *event_samples(router.events.stats),
            *user_samples(self.users()),
            (
                "cpu_seconds_total",
                "counter",
                "CPU time of the process.",
                [({}, usage.ru_utime + usage.ru_stime)],
            ),
            ("max_resident_bytes", "gauge", "Largest resident set size.", [({}, usage.ru_maxrss * 1024.0)]),
            *(samples_of_journal(self._recorder) if self._recorder is not None else ()),
            *(sample for more in self.more for sample in more()),
        ]


def call_samples(stats: CallStats) -> list[Sample]:
    """Rate, errors and duration of the clients' calls, by method."""
    calls = "Calls that clients made at this broker, by topic; ids in it are *."
    return [
        counted("calls_total", calls, "method", stats.methods),
        failed(
            "call_errors_total", "Of those, what ended with an error, by errno, too.", "method", stats.methods
        ),
        still_open("open_calls", "Of those, what is not answered yet.", "method", stats.methods),
        took("call_seconds", "Time until the first response.", "method", stats.methods),
    ]


def history_samples(history: FrameHistory | None) -> list[Sample]:
    """The events that are kept; nothing where none are."""
    if history is None:
        return []
    events = "Events that rank 0 keeps for whoever was away."
    return [
        ("event_history_events", "gauge", events, [({}, float(len(history)))]),
        ("event_history_bytes", "gauge", "Memory that they take.", [({}, float(history.held_bytes))]),
    ]


def event_samples(stats: EventStats) -> list[Sample]:
    """Events by topic."""
    topics = stats.table.by_name
    events = "Events that rank 0 numbered, and those that were refused here, by topic; ids in it are *."
    return [
        counted("published_events_total", events, "topic", topics),
        failed("refused_events_total", "Of those, what was refused, by errno, too.", "topic", topics),
    ]


def counted(metric: str, text: str, label: str, by_name: StatsByName) -> Sample:
    """How many there were of each name."""
    values = [({label: name}, float(stats.calls)) for name, stats in sorted(by_name.items())]
    return metric, "counter", text, values


def failed(metric: str, text: str, label: str, by_name: StatsByName) -> Sample:
    """How many of them failed, by errno."""
    values = [
        ({label: name, "errno": errorcode.get(errnum, str(errnum))}, float(count))
        for name, stats in sorted(by_name.items())
        for errnum, count in stats.errors.items()
    ]
    return metric, "counter", text, values


def still_open(metric: str, text: str, label: str, by_name: StatsByName) -> Sample:
    """How many of them are not answered."""
    return (
        metric,
        "gauge",
        text,
        [({label: name}, float(each.open)) for name, each in sorted(by_name.items())],
    )


def took(metric: str, text: str, label: str, by_name: StatsByName) -> Sample:
    """How long they took, in few buckets of two octaves each: there are as many time series as names times buckets."""
    values: Values = []
    for name, stats in sorted(by_name.items()):
        counts = [sum(stats.buckets[max(0, at - 3) : at + 1]) for at in range(0, len(BOUNDS_NS), 4)]
        left = stats.buckets[len(BOUNDS_NS) :]
        bounds = [bound / 1e9 for bound in BOUNDS_NS[::4]]
        values += histogram({label: name}, bounds, [*counts, *left], stats.total_ns / 1e9)
    return metric, "histogram", text, values


def user_samples(users: Mapping[str, Any]) -> list[Sample]:
    """What the clients of the busiest users hold, over all links of each."""
    shown = [
        ({"userid": str(user["userid"]), "owner": "yes" if user["owner"] else "no"}, user)
        for user in users["users"][:USERS_SHOWN]
    ]
    kinds = (
        ("links", "Links of one user; the ten whose clients sent most are shown.", "links"),
        ("pending_calls", "Requests of one user that are not answered yet.", "pending"),
        ("services", "Services that one user registered.", "services"),
        ("subscriptions", "Prefixes that one user subscribed to, each counted once a link.", "subscriptions"),
        ("outbox_bytes", "Bytes that wait until one user reads.", "outbox_bytes"),
        ("received_messages", "Messages that came by the links one user has now.", "received"),
    )
    return [
        (
            f"user_{name}",
            "gauge",
            text,
            [(labels, float(user[key])) for labels, user in shown],
        )
        for name, text, key in kinds
    ]
