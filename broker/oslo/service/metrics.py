"""What the rooms of a node count, as Prometheus is told: from what they answer to STATUS (pure).

Every series has few labels with few values: rooms, names of counters, which stand in the code, and of topics those with
most listeners. Names begin with ``headgate_oslo_``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
NOT_TAKEN: Final = ("malformed", "refused", "forbidden", "denied")
"""Counts of a directory."""
Values = list[tuple[dict[str, str], float]]
Row = tuple[str, str, str, Callable[[Status], float]]
"""Name, type, help, and the value of one room."""


def _counts(said: Status) -> Mapping[str, int]:
    return said.get("counts") or {}


def _sum(said: Status, *names: str) -> int:
    counts = _counts(said)
    return sum(counts.get(name, 0) for name in names)


def _entries(said: Status, name: str) -> int:
    return sum(each.get(name, 0) for each in said.get("entries") or ())


def _delivered(said: Status) -> int:
    if said.get("pipeline") == "call":
        return int((said.get("control") or {}).get("out", 0))
    return _sum(said, *DELIVERED)


def _waiting(said: Status) -> int:
    control = said.get("control") or {}
    return _entries(said, "waiting") + int(control.get("waiting", 0)) + int(said.get("waiting", 0))


def _sources(said: Status) -> list[Mapping[str, Any]]:
    replica = said.get("replica") or {}
    return [each for name, each in (replica.get("sources") or {}).items() if name != "here"]


def _lost(said: Status) -> int:
    """Links that are configured and do not answer; one that led to ourselves is closed."""
    links = [each for each in said.get("uplinks") or () if not each.get("closed")]
    dead = sum(not each.get("alive") for each in links)
    return max(dead, sum(not each.get("live") for each in _sources(said)))


_OF_PIPELINES: Final[tuple[Row, ...]] = (
    ("received_messages_total", "counter", "Messages of clients, from other nodes and from this one.",
     lambda said: _entries(said, "in")),
    ("received_bytes_total", "counter", "Their bytes.", lambda said: _entries(said, "in_bytes")),
    ("delivered_messages_total", "counter",
     "Messages given to local servers and listeners; of calls what controls them, too; fan-outs once for all.",
     _delivered),
    ("expired_messages_total", "counter",
     "Calls and casts whose time was over before they were given to a server or answered.",
     lambda said: _sum(said, *EXPIRED)),
    ("subscribers_cut_total", "counter", "Slow consumers of fan-outs that were cut off.",
     lambda said: _sum(said, "subscribers_cut")),
    ("connections_denied_total", "counter",
     "Connections turned away on the ports of the process of this pipeline.",
     lambda said: said.get("connections_denied", 0)),
    ("waiting_messages", "gauge", "Messages in queues, for servers, listeners or clients.", _waiting),
    ("pending_calls", "gauge", "Calls that wait for their replies.", lambda said: said.get("pending", 0)),
    ("backlog_messages", "gauge", "Notifications kept for listeners that are away.",
     lambda said: (said.get("backlog") or {}).get("messages", 0)),
    ("backlog_bytes", "gauge", "Their bytes.", lambda said: (said.get("backlog") or {}).get("bytes", 0)),
    ("backlog_kept_total", "counter", "Notifications that were kept so.", lambda said: _sum(said, "backlog_kept")),
    ("backlog_given_total", "counter", "Those that a listener was given when it came.",
     lambda said: _sum(said, "backlog_given")),
    ("paused", "gauge", "1 while nothing is read, so that senders wait.",
     lambda said: bool((said.get("back_pressure") or {}).get("paused", False))),
    ("listeners", "gauge", "Registered listeners; of fan-outs subscriptions.",
     lambda said: sum((said.get("topics") or {}).values())),
    ("links", "gauge", "Server processes of this node.", lambda said: said.get("links", 0)),
    ("lapsed_links", "gauge", "Those that have said nothing for a lease.", lambda said: said.get("lapsed", 0)),
)  # fmt: skip
_OF_DIRECTORIES: Final[tuple[Row, ...]] = (
    ("directory_states", "gauge", "Pipelines known, of this node and of others.",
     lambda said: (said.get("replica") or {}).get("states", 0)),
    ("directory_records", "gauge", "Listeners announced here first hand.", lambda said: said.get("records", 0)),
    ("directory_leases_expired_total", "counter", "Pipelines forgotten because nobody renewed their lease.",
     lambda said: (said.get("registry") or {}).get("expired", 0)),
    ("directory_sources_live", "gauge", "Other directories and Redis servers that answer.",
     lambda said: sum(bool(each.get("live")) for each in _sources(said))),
    ("directory_sources_lost", "gauge", "Those that do not: what they told stays in use, and gets old.", _lost),
)  # fmt: skip
_OF_ROOMS: Final[tuple[Row, ...]] = (
    ("settings_read_timestamp_seconds", "gauge", "When keys, rules and certificate were read, since 1970.",
     lambda said: (said.get("settings") or {}).get("read_at", 0)),
    ("reloads_refused_total", "counter", "SIGHUPs that changed nothing because of an error.",
     lambda said: (said.get("settings") or {}).get("refused", 0)),
)  # fmt: skip


def samples(statuses: Statuses) -> list[Sample]:
    """Every family is there whatever runs; of rooms that do not answer only ``room_up`` tells."""
    there = {room: said for room, said in statuses.items() if said is not None}
    pipelines = {room: said for room, said in there.items() if room in PIPELINES}
    directory = {room: said for room, said in there.items() if room == DIRECTORY}
    up = [({"room": room}, float(said is not None)) for room, said in statuses.items()]
    return [
        _family("room_up", "gauge", "1 while the room answers, 0 while its socket is there and it does not.", up),
        *(_of_each(row, pipelines, "pipeline") for row in _OF_PIPELINES),
        *_losses(pipelines),
        *_topics(pipelines),
        *(_of_each(row, directory, "") for row in _OF_DIRECTORIES),
        _family("directory_refused_total", "counter", "Messages and connections that were not taken.",
                [({"reason": name}, float(said.get(name, 0))) for said in directory.values() for name in NOT_TAKEN]),
        *(_of_each(row, there, "room") for row in _OF_ROOMS),
        *_journals(there),
    ]  # fmt: skip


def _family(name: str, kind: str, text: str, values: Values) -> Sample:
    return f"oslo_{name}", kind, text, values


def _of_each(row: Row, rooms: Mapping[str, Status], label: str) -> Sample:
    name, kind, text, value = row
    values = [({label: room} if label else {}, float(value(said))) for room, said in rooms.items()]
    return _family(name, kind, text, values)


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
    pauses = [({"pipeline": room, "kind": name}, float(_sum(said, name))) for room, said in pipelines.items()
              for name in PAUSES]  # fmt: skip
    return [
        _family("refused_messages_total", "counter", "Messages that were not taken: not allowed, nowhere to put them, "
                "nobody there.", refused),
        _family("dropped_messages_total", "counter", "What went nowhere, by cause.", dropped),
        _family("pauses_total", "counter", "Times that senders had to wait, and that it was in vain.", pauses),
    ]  # fmt: skip


def _topics(pipelines: Mapping[str, Status]) -> list[Sample]:
    listeners: Values = []
    for room, said in pipelines.items():
        ranked = sorted((said.get("topics") or {}).items(), key=lambda each: (-each[1], each[0]))
        shown = [*ranked[:TOPICS_SHOWN], (OTHER, sum(count for _topic, count in ranked[TOPICS_SHOWN:]))]
        listeners += [({"pipeline": room, "topic": topic}, float(count)) for topic, count in shown]
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
        _family("topic_listeners", "gauge", "Listeners of the ten topics with most, and of all others.", listeners),
        _family("topic_messages_total", "counter", "Messages to a topic, those that were refused, too; of topics whose "
                "number is bounded, and of all others.",
                [(whose, float(figures["calls"])) for whose, figures in told]),
        _family("topic_errors_total", "counter", "Of those, what was refused or is lost, by errno: EAGAIN no room, "
                "EHOSTUNREACH nobody there, ETIMEDOUT too late, EPERM not allowed.", errors),
        _family("topic_open_calls", "gauge", "Of those, calls that wait for their replies.",
                [(whose, float(figures["open"])) for whose, figures in told if whose["pipeline"] == Pipeline.CALL]),
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
