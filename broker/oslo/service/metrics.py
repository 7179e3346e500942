"""What the rooms of a node count, as Prometheus is told: from what they answer to STATUS (pure).

Every series has few labels with few values: rooms, names of counters, which stand in the code, and of topics those with
most listeners. Names begin with ``headgate_oslo_``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from errno import errorcode
from typing import Any, Final

from broker.exposition import Sample
from broker.journal.samples import samples_of
from broker.oslo.names import Pipeline
from broker.oslo.node import DIRECTORY

TOPICS_SHOWN: Final = 10
"""Of each pipeline; the listeners of all others are one number."""
OTHER: Final = "other"
PIPELINES: Final = tuple(map(str, Pipeline))

Status = Mapping[str, Any]
Statuses = Mapping[str, Status | None]

DELIVERED: Final = ("handed", "published", "delivered")
REFUSED: Final = ("denied",)
"""Counts of what was refused, beside ``refused_REASON``."""
DROPPED: Final = frozenset({
    "abandoned", "backlog_disk", "backlog_expired", "backlog_full", "client_gone", "doubled", "foreign_replies",
    "full", "late_replies", "lost_again", "lost_at_close", "lost_full", "lost_pool", "lost_unknown", "malformed",
    "malformed_subscription", "no_route", "nobody", "orphaned", "repeat_lost", "requeue_unknown", "stranger",
    "subscribers_cut", "too_many_filters", "unaddressed", "unconfirmed", "unexpected", "unknown_filter",
    "unknown_version",
})  # fmt: skip
"""Counts of what went nowhere."""
EXPIRED: Final = ("expired", "refused_expired")
PAUSES: Final = ("pauses", "pauses_still", "pauses_slow")
Values = list[tuple[dict[str, str], float]]


def samples(statuses: Statuses) -> list[Sample]:
    """Every family is there whatever runs; of rooms that do not answer only ``room_up`` tells."""
    there = {room: said for room, said in statuses.items() if said is not None}
    pipelines = {room: said for room, said in there.items() if room in PIPELINES}
    return [
        _family(
            "room_up", "gauge", "1 while the room answers, 0 while its socket is there and it does not.",
            [({"room": room}, float(said is not None)) for room, said in statuses.items()],
        ),
        *_traffic(pipelines),
        *_losses(pipelines),
        *_held(pipelines),
        *_listeners(pipelines),
        *_topics(pipelines),
        *_directory(there.get(DIRECTORY)),
        *_settings(there),
        *_journals(there),
    ]  # fmt: skip


def _family(name: str, kind: str, text: str, values: Iterable[tuple[dict[str, str], float]]) -> Sample:
    return f"oslo_{name}", kind, text, list(values)


def _each(pipelines: Mapping[str, Status], value: Callable[[Status], float]) -> Values:
    return [({"pipeline": room}, float(value(said))) for room, said in pipelines.items()]


def _counts(said: Status) -> Mapping[str, int]:
    return said.get("counts") or {}


def _sum(said: Status, names: Iterable[str]) -> int:
    counts = _counts(said)
    return sum(counts.get(name, 0) for name in names)


def _entries(said: Status, name: str) -> int:
    return sum(each.get(name, 0) for each in said.get("entries") or ())


def _delivered(said: Status) -> int:
    if said.get("pipeline") == "call":
        return int((said.get("control") or {}).get("out", 0))
    return _sum(said, DELIVERED)


def _traffic(pipelines: Mapping[str, Status]) -> list[Sample]:
    return [
        _family(
            "received_messages_total", "counter", "Messages of clients, from other nodes and from this one.",
            _each(pipelines, lambda said: _entries(said, "in")),
        ),
        _family(
            "received_bytes_total", "counter", "Their bytes.",
            _each(pipelines, lambda said: _entries(said, "in_bytes")),
        ),
        _family(
            "delivered_messages_total", "counter",
            "Messages given to local servers and listeners; of calls what controls them, too; fan-outs once for all.",
            _each(pipelines, _delivered),
        ),
    ]  # fmt: skip


def _losses(pipelines: Mapping[str, Status]) -> list[Sample]:
    refused: Values = []
    dropped: Values = []
    for room, said in pipelines.items():
        reasons: dict[str, int] = {}
        for name, count in _counts(said).items():
            if name not in EXPIRED and (name in REFUSED or name.startswith("refused_")):
                reason = name.removeprefix("refused_")
                reasons[reason] = reasons.get(reason, 0) + count
            elif name in DROPPED:
                dropped.append(({"pipeline": room, "reason": name}, float(count)))
        refused += [({"pipeline": room, "reason": reason}, float(n)) for reason, n in reasons.items()]
    return [
        _family("refused_messages_total", "counter", "Messages that were not taken: not allowed, nowhere to put them, "
                "nobody there.", refused),
        _family("dropped_messages_total", "counter", "What went nowhere, by cause.", dropped),
        _family("expired_messages_total", "counter", "Calls and casts whose time was over before they were given "
                "to a server or answered.", _each(pipelines, lambda said: _sum(said, EXPIRED))),
        _family("subscribers_cut_total", "counter", "Slow consumers of fan-outs that were cut off.",
                _each(pipelines, lambda said: _sum(said, ("subscribers_cut",)))),
        _family("connections_denied_total", "counter", "Connections turned away on the ports of the process "
                "of this pipeline.",
                _each(pipelines, lambda said: said.get("connections_denied", 0))),
    ]  # fmt: skip


def _waiting(said: Status) -> int:
    sockets = [*(said.get("entries") or ()), said.get("control") or {}]
    return sum(int(each.get("waiting", 0)) for each in sockets) + int(said.get("waiting", 0))


def _held(pipelines: Mapping[str, Status]) -> list[Sample]:
    return [
        _family("waiting_messages", "gauge", "Messages in queues, for servers, listeners or clients.",
                _each(pipelines, _waiting)),
        _family("pending_calls", "gauge", "Calls that wait for their replies.",
                _each(pipelines, lambda said: said.get("pending", 0))),
        _family("backlog_messages", "gauge", "Notifications kept for listeners that are away.",
                _each(pipelines, lambda said: (said.get("backlog") or {}).get("messages", 0))),
        _family("backlog_bytes", "gauge", "Their bytes.",
                _each(pipelines, lambda said: (said.get("backlog") or {}).get("bytes", 0))),
        _family("backlog_kept_total", "counter", "Notifications that were kept so.",
                _each(pipelines, lambda said: _sum(said, ("backlog_kept",)))),
        _family("backlog_given_total", "counter", "Those that a listener was given when it came.",
                _each(pipelines, lambda said: _sum(said, ("backlog_given",)))),
        _family("paused", "gauge", "1 while nothing is read, so that senders wait.",
                _each(pipelines, lambda said: bool((said.get("back_pressure") or {}).get("paused", False)))),
        _family("pauses_total", "counter", "Times that senders had to wait, and that it was in vain.",
                [({"pipeline": room, "kind": name}, float(_counts(said).get(name, 0)))
                 for room, said in pipelines.items() for name in PAUSES]),
    ]  # fmt: skip


def _listeners(pipelines: Mapping[str, Status]) -> list[Sample]:
    topics: Values = []
    for room, said in pipelines.items():
        ranked = sorted((said.get("topics") or {}).items(), key=lambda each: (-each[1], each[0]))
        topics += [
            ({"pipeline": room, "topic": topic}, float(count)) for topic, count in ranked[:TOPICS_SHOWN]
        ]
        rest = sum(count for _topic, count in ranked[TOPICS_SHOWN:])
        topics.append(({"pipeline": room, "topic": OTHER}, float(rest)))
    return [
        _family("listeners", "gauge", "Registered listeners; of fan-outs subscriptions.",
                _each(pipelines, lambda said: sum((said.get("topics") or {}).values()))),
        _family("topic_listeners", "gauge", "The same of the ten topics with most, and of all others.", topics),
        _family("links", "gauge", "Server processes of this node.",
                _each(pipelines, lambda said: said.get("links", 0))),
        _family("lapsed_links", "gauge", "Those that have said nothing for a lease.",
                _each(pipelines, lambda said: said.get("lapsed", 0))),
    ]  # fmt: skip


def _topics(pipelines: Mapping[str, Status]) -> list[Sample]:
    told = [
        ({"pipeline": room, "topic": topic}, figures)
        for room, said in pipelines.items()
        for topic, figures in (said.get("figures") or {}).items()
    ]
    errors = [
        ({**whose, "errno": errorcode.get(int(errnum), errnum)}, float(count))
        for whose, figures in told
        for errnum, count in figures["errors"].items()
    ]
    return [
        _family("topic_messages_total", "counter", "Messages to a topic, those that were refused, too; of topics whose "
                "number is bounded, and of all others.",
                [(whose, float(figures["calls"])) for whose, figures in told]),
        _family("topic_errors_total", "counter", "Of those, what was refused or is lost, by errno: EAGAIN no room, "
                "EHOSTUNREACH nobody there, ETIMEDOUT too late, EPERM not allowed.", errors),
        _family("topic_open_calls", "gauge", "Of those, calls that wait for their replies.",
                [(whose, float(figures["open"])) for whose, figures in told if whose["pipeline"] == Pipeline.CALL]),
    ]  # fmt: skip


def _directory(said: Status | None) -> list[Sample]:
    known: Status = said or {}
    registry, replica = known.get("registry") or {}, known.get("replica") or {}
    sources = [each for name, each in (replica.get("sources") or {}).items() if name != "here"]

    def one(value: float) -> Values:
        return [({}, float(value))] if said is not None else []

    refused = [
        ({"reason": name}, float(known.get(name, 0)))
        for name in ("malformed", "refused", "forbidden", "denied")
    ]
    return [
        _family("directory_states", "gauge", "Pipelines known, of this node and of others.",
                one(replica.get("states", 0))),
        _family("directory_records", "gauge", "Listeners announced here first hand.", one(known.get("records", 0))),
        _family("directory_leases_expired_total", "counter", "Pipelines forgotten because nobody renewed their lease.",
                one(registry.get("expired", 0))),
        _family("directory_sources_live", "gauge", "Other directories and Redis servers that answer.",
                one(sum(bool(each.get("live")) for each in sources))),
        _family("directory_sources_lost", "gauge", "Those that do not: what they told stays in use, and gets old.",
                one(_lost(known, sources))),
        _family("directory_refused_total", "counter", "Messages and connections that were not taken.",
                refused if said is not None else []),
    ]  # fmt: skip


def _lost(known: Status, sources: list[Any]) -> int:
    """Links that are configured and do not answer; one that led to ourselves is closed."""
    links = [each for each in known.get("uplinks") or () if not each.get("closed")]
    dead = sum(not each.get("alive") for each in links)
    return max(dead, sum(not each.get("live") for each in sources))


def _settings(there: Mapping[str, Status]) -> list[Sample]:
    told = {room: said.get("settings") or {} for room, said in there.items()}
    return [
        _family("settings_read_timestamp_seconds", "gauge", "When keys, rules and certificate were read, since 1970.",
                [({"room": room}, float(each.get("read_at", 0))) for room, each in told.items()]),
        _family("reloads_refused_total", "counter", "SIGHUPs that changed nothing because of an error.",
                [({"room": room}, float(each.get("refused", 0))) for room, each in told.items()]),
    ]  # fmt: skip


def _journals(there: Mapping[str, Status]) -> list[Sample]:
    """What is recorded: of each process one room tells."""
    merged: dict[str, Sample] = {}
    for room, said in there.items():
        if (journal := said.get("journal")) is not None:
            for name, kind, text, values in samples_of(
                journal["state"], journal, "oslo_journal", {"room": room}
            ):
                merged.setdefault(name, (name, kind, text, []))[3].extend(values)
    return list(merged.values())
