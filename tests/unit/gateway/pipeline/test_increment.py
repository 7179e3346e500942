"""What a stream adds batch by batch, and what it leaves open, is together what one batch over everything gives."""

from collections import Counter
from typing import Any

import pyarrow.dataset as ds
import pytest

from gateway.pipeline.tables import increment
from gateway.pipeline.tables.inprocess import tables_of
from tests.live import oracle, traffic
from tests.live.gold import NOTHING, counted, differences, drawn_rows
from tests.tables import for_each

pytestmark = pytest.mark.patient
"""What steps add is seen by `test_follow.py`, too."""

BATCHES = 3
LONG = [
    ("request", 1, 1, "kvs.get", traffic.STREAMING),
    *[("response", 1, 1, "kvs.get", 0), ("wait", -traffic.S), ("event", 2, 1, 0)] * 4,
]
"""A stream of responses through all batches, still open at the end, under a clock that steps back."""
PARTED = [("event", 2, 1, 0), ("forbidden", 1, 1, "kvs.get", 1), *[("event", 2, 1, 0)] * 3]
"""Six records; the request is the last one of the first batch, its refusal the first one of the second."""
UNANSWERED = [("event", 2, 1, 0), ("request", 1, 1, "kvs.get", 0)]
_SUMS = (
    "n",
    "sum_ns",
    "unmatched_no_response",
    "not_captured",
    "unmatched_no_request",
    "unmatched_noresponse",
    "unmatched_untagged",
    "reused_tags",
)


@pytest.fixture(scope="module")
def rows() -> list[traffic.Row]:
    drawn = drawn_rows(24)
    writer = traffic.Writer(rank=60, both=True)
    parted = traffic.Player(traffic.Writer(rank=61)).play(PARTED)
    asked = traffic.Player(traffic.Writer(rank=62)).play(UNANSWERED)
    return drawn + traffic.Player(writer).play(LONG) + parted + asked


@pytest.fixture(scope="module")
def streamed(rows: list[traffic.Row], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """All tables as a stream adds them step by step, one of them done again; then what is open."""
    of_writer = Counter(row["writer"] for row in rows)
    seen: Counter[str] = Counter()
    parts: list[list[traffic.Row]] = [[] for _ in range(BATCHES)]
    for row in oracle.in_order(rows):
        parts[seen[row["writer"]] * BATCHES // of_writer[row["writer"]]].append(row)
        seen[row["writer"]] += 1
    kept = increment.Kept(str(tmp_path_factory.mktemp("open")))
    made: dict[str, list[Any]] = {}
    for batch, part in enumerate(parts):
        if batch == 1:  # it was nearly done before: what it carried was saved, the checkpoint not
            kept.save(batch, increment.nothing())
        added, carried = increment.increment(ds.dataset(traffic.arrow(part)), kept.behind(batch - 1))
        for name, table in added.items():
            made.setdefault(name, []).extend(table.to_pylist())
        kept.save(batch, carried)
    assert kept.numbers() == list(range(BATCHES))
    kept.forget(1)
    assert kept.numbers() == [1, 2]
    with tables_of(traffic.arrow([]), before=kept.behind(BATCHES - 1)) as left:
        made["open"] = left.rows("rpc").to_pylist()
        made["rpc"] += made["open"]
        for name in ("rpc_latency", "tree_latency"):
            made[name] += left.rows(name).to_pylist()
    return made


@for_each("table", ["rpc", "denied", "event_gaps", "notifications", "slow"])
def test_rows_are_those_of_one_batch(
    table: str, streamed: dict[str, list[Any]], rows: list[traffic.Row]
) -> None:
    assert differences(table, streamed[table], oracle.TABLES[table](rows)) == NOTHING


def test_something_was_open_over_batches(streamed: dict[str, list[Any]]) -> None:
    assert any(row["streaming"] and row["n_responses"] == 4 for row in streamed["open"])
    assert any(not row["n_responses"] for row in streamed["open"])


def added(
    rows: list[dict[str, Any]], keys: tuple[str, ...], sums: tuple[str, ...]
) -> dict[Any, Counter[str]]:
    table: dict[Any, Counter[str]] = {}
    for row in rows:
        key = tuple(row[name].replace(tzinfo=None) if name == "window" else row[name] for name in keys)
        table.setdefault(key, Counter()).update({name: row[name] for name in sums})
    return table


@for_each(
    ("table", "keys", "sums"),
    [
        (
            "traffic",
            ("window", "rank", "writer", "direction", "topic", "type", "userid"),
            ("n", "payload_bytes", "wire_bytes"),
        ),
        ("tree_traffic", ("window", "rank", "peer", "direction", "type", "service"), ("n", "wire_bytes")),
        ("rpc_latency", ("window", "rank", "topic", "le_ns"), _SUMS),
        ("tree_latency", ("window", "rank", "source", "target", "topic"), ("n", "sum_ns")),
        ("errors", ("window", "rank", "topic", "errno", "kind", "userid"), ("n",)),
    ],
)
def test_counts_add_up(
    table: str,
    keys: tuple[str, ...],
    sums: tuple[str, ...],
    streamed: dict[str, list[Any]],
    rows: list[traffic.Row],
) -> None:
    assert added(streamed[table], keys, sums) == added(oracle.TABLES[table](rows), keys, sums)


def test_usage_adds_up_but_for_open_calls(streamed: dict[str, list[Any]], rows: list[traffic.Row]) -> None:
    sums = ("requests", "responses", "events", "denied", "errors", "payload_bytes", "wire_bytes", "rpc_ns")
    open_calls = [dict.fromkeys(sums, 0) | {"rpc_ns": row["lat_ns"] or 0} | row for row in streamed["open"]]
    assert added(streamed["user_usage"] + open_calls, ("dt", "userid"), sums) == added(
        oracle.user_usage(rows), ("dt", "userid"), sums
    )


def test_each_job_that_ended_is_told_once(streamed: dict[str, list[Any]], rows: list[traffic.Row]) -> None:
    ended = Counter(row["uuid"] for row in oracle.job_outcomes(rows) if row["t_done"])
    assert Counter(row["uuid"] for row in streamed["job_outcomes"]) == ended
    assert ended
    assert counted("job_outcomes", streamed["job_outcomes"])
