"""A small warehouse written with pyarrow: two days of an instance of two brokers, with everything a history shows.

The first day is quiet. On the second one, at noon, calls of ``store`` take fifty times as long for five minutes, a
subscriber is too slow, a guest tries what it may not, one event is missing and two responses overtake each other.
"""

import datetime as dt
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gateway.delta import File
from gateway.pipeline import lake
from gateway.pipeline.schema import TABLES

DAY_S = 86400
FIRST = int(dt.datetime(2026, 3, 1, tzinfo=dt.UTC).timestamp())
"""When the first day begins."""
LAST = FIRST + 2 * DAY_S
"""When the second one ends."""
SPIKE = FIRST + DAY_S + DAY_S // 2
"""Noon of the second day."""
SPIKE_S = 300
CAUSES = (
    "unmatched_no_response", "not_captured", "unmatched_no_request", "unmatched_noresponse", "unmatched_untagged",
    "reused_tags",
)  # fmt: skip
EVERY_S = 1200
"""Between two windows of traffic: a real one would have a window each ten seconds."""
SERVICES = {"store": ("store.get", "store.put"), "job": ("job.submit", "job.list"), "log": ("log.append",)}
USERS = (1001, 1002, 1003)
NS_PER_MS = 1_000_000

Row = dict[str, Any]


def at(seconds: float) -> dt.datetime:
    """A timestamp as the tables have it."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def write(
    directory: Path, table: str, rows: Iterable[Row], name: str = "part-0", *, day: str | None = None
) -> None:
    """Rows into their partitions; the day is that of ``_when`` unless given, keys that are no columns are left out."""
    schema = TABLES[table].arrow()
    days: dict[str, list[Row]] = {}
    for row in rows:
        days.setdefault(day or at(row["_when"]).date().isoformat(), []).append(row)
    for date, inside in days.items():
        folder = directory / table / f"dt={date}"
        folder.mkdir(parents=True, exist_ok=True)
        content = [{field: row.get(field) for field in schema.names} for row in inside]
        pq.write_table(pa.Table.from_pylist(content, schema), folder / f"{name}.parquet", row_group_size=500)
    register(directory, table)


def register(directory: Path, table: str) -> None:
    """Let the table have what lies in its folders and is not in its log yet, also what is no Parquet at all."""
    place = directory / table
    lake.create(lake.Snapshot(TABLES[table], place))
    at = lake.Snapshot(TABLES[table], place)
    known = {file.path for file in at.files()}
    found = []
    for path in sorted(place.glob("dt=*/*.parquet")):
        name = str(path.relative_to(place))
        if name not in known:
            found.append(File(name, path.parent.name.removeprefix("dt="), 0, path.stat().st_size))
    if found:
        at.commit(found)


def withdraw(directory: Path, table: str, name: str) -> None:
    """Take the files of that name out of a table."""
    at = lake.Snapshot(TABLES[table], directory / table)
    at.commit([], removed=[file for file in at.files() if file.path.endswith(f"/{name}.parquet")])


def load(seconds: float) -> float:
    """How busy the instance is, 0 to 1: a wave with a peak in the afternoon."""
    return 0.55 - 0.45 * math.cos((seconds % DAY_S) / DAY_S * 2 * math.pi)


def spiking(seconds: float) -> bool:
    return SPIKE <= seconds < SPIKE + SPIKE_S


def traffic() -> Iterable[Row]:
    """Requests, responses and events of both brokers, and deliveries, which charts leave out."""
    for when in range(FIRST, LAST, EVERY_S):
        for rank in (0, 1):
            for number, (service, topics) in enumerate(SERVICES.items()):
                for topic in topics:
                    n = round(40 * load(when) * (3 - number)) + 1
                    shared = {
                        "_when": when, "window": at(when), "rank": rank, "writer": f"rank{rank}",
                        "transport": "unix" if rank else "websocket", "direction": "in", "kind": "flux",
                        "service": service, "topic": topic, "userid": USERS[(number + rank) % 3],
                    }  # fmt: skip
                    sizes = {"n": n, "payload_bytes": n * 200, "wire_bytes": n * 260}
                    yield shared | sizes | {"type": "request"}
                    yield shared | sizes | {"type": "response"}
                    yield shared | sizes | {"type": "response", "direction": "out"}
            yield {
                "_when": when, "window": at(when), "rank": rank, "writer": f"rank{rank}", "transport": "curve",
                "direction": "in", "kind": "flux", "service": "heartbeat", "topic": "heartbeat.pulse",
                "type": "event", "userid": 1001, "n": 300, "payload_bytes": 6000, "wire_bytes": 18000,
            }  # fmt: skip
        yield {
            "_when": when, "window": at(when), "rank": 0, "writer": "nfp", "transport": "curve", "direction": "in",
            "kind": "nfp", "service": "nfp", "topic": "nfp.net.post", "type": None, "userid": None, "n": 4,
            "payload_bytes": 900, "wire_bytes": 1200,
        }  # fmt: skip
        yield {
            "_when": when, "window": at(when), "rank": 0, "writer": "rank0", "transport": "none", "direction": "in",
            "kind": "state", "service": "link", "topic": "link.up", "type": None, "userid": None, "n": 1,
            "payload_bytes": 90, "wire_bytes": 120,
        }  # fmt: skip


def latency() -> Iterable[Row]:
    """A bucket for the median and one for the longest of each topic: with traffic, and each minute of the spike."""
    minutes = [*range(FIRST, LAST, EVERY_S), *range(SPIKE + 60, SPIKE + SPIKE_S, 60)]
    for when in minutes:
        for rank in (0, 1):
            for service, topics in SERVICES.items():
                for topic in topics:
                    slow = 50 if spiking(when) and service == "store" else 1
                    p50 = round(NS_PER_MS * (0.4 + load(when) + 0.1 * rank) * slow)
                    shared = {
                        "_when": when,
                        "window": at(when),
                        "rank": rank,
                        "topic": topic,
                        "service": service,
                    }
                    zero = dict.fromkeys(CAUSES, 0) | {"n": 0, "sum_ns": 0}
                    for le_ns, n in ((p50, round(194 * load(when))), (p50 * 9, round(6 * load(when)))):
                        yield shared | zero | {"le_ns": le_ns, "n": n, "sum_ns": le_ns * n, "max_ns": le_ns}
                    yield shared | zero | {"unmatched_no_response": int(spiking(when)), "unmatched_noresponse": 2,
                                           "not_captured": 3 if service == "log" else 0}  # fmt: skip


def tree() -> Iterable[Row]:
    """Clients at both ranks call a service at rank 0, which takes 1 ms; what is between takes 3 ms."""
    for when in range(FIRST, LAST, EVERY_S):
        for rank, source, target, ms in (
            (0, "client", "client", 1),
            (0, "rank 1", "client", 1),
            (1, "client", "rank 0", 4),
        ):
            yield {
                "_when": when, "window": at(when), "rank": rank, "source": source, "target": target,
                "topic": "store.get", "service": "store", "n": 10, "sum_ns": 10 * ms * NS_PER_MS,
                "max_ns": 2 * ms * NS_PER_MS,
            }  # fmt: skip


def errors() -> Iterable[Row]:
    """Calls that found nothing while the service was slow, a service that is not there, and a link."""
    for when in range(SPIKE, SPIKE + SPIKE_S, 60):
        for topic, errnum, kind, n in (
            ("store.get", 2, "answer", 5),
            ("nobody.here", 38, "request", 2),
            (None, 71, "link", 1),
        ):
            yield {
                "_when": when, "window": at(when), "rank": 0, "topic": topic, "errno": errnum, "kind": kind, "n": n,
                "service": None if topic is None else topic.partition(".")[0], "userid": 1001,
            }  # fmt: skip


def denied() -> Iterable[Row]:
    for number in range(40):
        when = SPIKE + number * 30
        yield {
            "_when": when, "ts": at(when), "rank": number % 2, "transport": "websocket", "peer": f"web-{number % 3}",
            "claimed": 1001, "userid": 1003, "rolemask": 2, "topic": "secret.read" if number % 4 else "job.cancel",
            "errno": 1, "kind": "web" if number % 2 else "request",
        }  # fmt: skip
    when = FIRST + 3600
    yield {
        "_when": when, "ts": at(when), "rank": 0, "transport": "unix", "peer": "uid 4711", "claimed": 4294967295,
        "userid": 4294967295, "rolemask": 0, "topic": None, "errno": 13, "kind": "link",
    }  # fmt: skip


def order() -> Iterable[Row]:
    for day in (0, 1):
        begin = FIRST + day * DAY_S
        for number in range(12):
            wrong = day == 1 and number == 4
            yield {
                "_when": begin, "rank": number % 2, "run": "ab" * 16, "origin": f"client-{number}",
                "peer": "store-1" if number % 2 else "job-1", "type": "response" if number % 3 else "request",
                "n": 1000 + number, "out_of_order": 2 if wrong else 0, "missing": 1 if wrong else 0,
                "first_ts": at(begin + 60), "last_ts": at(begin + DAY_S - 60),
            }  # fmt: skip


def event_gaps() -> Iterable[Row]:
    for kind, prev, following, missing in (("gap", 41, 43, 1), ("reorder", 43, 42, 0)):
        yield {
            "_when": SPIKE + 10, "rank": 1, "writer": "rank1", "run": "ab" * 16, "peer": "rank 0",
            "prev_seq": prev, "next_seq": following, "missing": missing, "kind": kind, "ts": at(SPIKE + 10),
        }  # fmt: skip


def slow() -> Iterable[Row]:
    for number in range(20):
        yield {
            "_when": SPIKE + number * 15, "ts": at(SPIKE + number * 15), "rank": 0, "peer": "web-2",
            "what": "drop", "events": 50 + number, "bytes": 12_000, "reason": "reads too slowly",
        }  # fmt: skip
    yield {
        "_when": SPIKE + 60, "ts": at(SPIKE + 60), "rank": 1, "peer": "rank1", "what": "shed", "events": 7,
        "bytes": None, "reason": "the queue is full",
    }  # fmt: skip


def jobs() -> Iterable[Row]:
    for number in range(120):
        when = FIRST + number * 1440 + 30
        status = "running" if number == 119 else "failed" if number % 17 == 0 else "done"
        over = status != "running"
        yield {
            "_when": when, "uuid": f"{number:032x}", "service": "net", "task": "backup" if number % 3 else "ping",
            "client": "cli-1", "status": status, "attempts": 2 if status == "failed" else 1, "workers": 1 + number % 3,
            "t_submit": at(when), "t_done": at(when + 3) if over else None,
            "duration_ns": 3 * 10**9 if over else None,
        }  # fmt: skip


def notifications() -> Iterable[Row]:
    for number in range(300):
        when = FIRST + number * 570
        yield {
            "_when": when, "ts": at(when), "exchange": "openstack", "topic": "notifications",
            "event_type": "compute.instance.create.end" if number % 3 else "image.update",
            "priority": "error" if spiking(when) or number % 40 == 0 else "info",
            "publisher_id": f"compute.host{number % 4}", "payload_len": 700 + number,
        }  # fmt: skip


def usage() -> Iterable[Row]:
    for day in (0, 1):
        for userid in USERS:
            yield {
                "_when": FIRST + day * DAY_S, "userid": userid, "requests": 10_000 * (userid - 1000), "responses": 5000,
                "events": 900, "denied": 40 * day, "errors": 5 * day, "payload_bytes": 10**6,
                "wire_bytes": 10**6 * (userid - 1000), "rpc_ns": 60 * 10**9,
            }  # fmt: skip


def runs(finished_at: float) -> Iterable[Row]:
    for number, job in enumerate(("ingest", "batch")):
        end = finished_at - 60 * (1 - number)
        yield {
            "_when": end, "job": job, "batch_id": round(end * 1000) - 20_000, "feed": "ingest",
            "started_at": at(end - 20), "finished_at": at(end), "rows_in": 1_250_000,
            "rows_out": 1_250_000 - number * 9,
            "bad_blocks": 1 - number, "lost_records": 0, "offsets": "{}", "duration_s": 20.0,
        }  # fmt: skip


def rich(directory: Path, *, finished_at: float = LAST + 120) -> Path:
    """All tables; the pipeline ended last at ``finished_at``."""
    for table, rows in {
        "traffic": traffic(), "rpc_latency": latency(), "tree_latency": tree(), "errors": errors(), "denied": denied(),
        "order_check": order(),
        "event_gaps": event_gaps(), "slow": slow(), "job_outcomes": jobs(), "notifications": notifications(),
        "user_usage": usage(), "_runs": runs(finished_at),
    }.items():  # fmt: skip
        write(directory, table, rows)
    return directory


# -- a session of seconds: one row of each table

BEGIN = FIRST + 12_980
"""Of the only window of traffic, which is in the middle of a minute."""
WHEN = BEGIN + 8.7
"""Of everything that has a time of its own: behind the begin of the last window."""
ONCE = {
    "denied": {"ts": at(WHEN), "rank": 0, "userid": 1, "topic": "secret.read", "errno": 1, "kind": "request"},
    "slow": {"ts": at(WHEN), "rank": 0, "peer": "web-1", "what": "drop", "events": 3},
    "event_gaps": {"ts": at(WHEN), "rank": 0, "peer": "rank 0", "missing": 1, "kind": "gap"},
    "job_outcomes": {"t_submit": at(WHEN), "service": "lab", "task": "echo", "status": "COMPLETED"},
    "notifications": {"ts": at(WHEN), "event_type": "compute.end", "priority": "info", "payload_len": 3},
    "order_check": {"first_ts": at(BEGIN + 1), "last_ts": at(WHEN), "rank": 0, "type": "request", "n": 4,
                    "origin": "a", "peer": "b", "out_of_order": 0, "missing": 0},
    "traffic": {"window": at(BEGIN), "rank": 0, "direction": "in", "kind": "flux", "service": "broker",
                "topic": "broker.ping", "type": "request", "userid": 1, "n": 9, "wire_bytes": 90},
    "rpc_latency": {"window": at(BEGIN // 60 * 60), "rank": 0, "topic": "broker.ping", "service": "broker", "n": 9,
                    "le_ns": 40_959, "sum_ns": 90_000, "max_ns": 40_000},
    "tree_latency": {"window": at(BEGIN // 60 * 60), "rank": 0, "source": "client", "target": "own", "n": 9,
                     "topic": "broker.ping", "service": "broker", "sum_ns": 90_000, "max_ns": 40_000},
    "errors": {"window": at(BEGIN // 60 * 60), "rank": 0, "topic": "broker.ping", "service": "broker", "errno": 110,
               "kind": "answer", "userid": 1, "n": 1},
    "user_usage": {"userid": 1, "requests": 9, "wire_bytes": 90},
}  # fmt: skip
