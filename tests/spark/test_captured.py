"""A real session (tests/live/captured.py): journal -> bronze -> gold, held against the plain reader with the oracle,
and against what the ends of the session sent and received.
"""

import errno
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.pipeline.bronze import ingest
from gateway.pipeline.gold import batch
from gateway.pipeline.warehouse import Warehouse
from tests.live import oracle
from tests.live.captured import Captured, captured
from tests.live.gold import NOTHING, differences
from tests.tables import for_each

TIMES = 5


@pytest.fixture(scope="module")
def session() -> Iterator[Captured]:
    folder = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))  # sockets need a short path
    yield captured(folder, times=TIMES)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def rows(session: Captured) -> list[dict[str, Any]]:
    """Bronze as the reader in plain Python has it."""
    from broker.journal.reading.records import records

    found = []
    for record in records(session.journals):
        row = {name: getattr(record, name) for name in record.__struct_fields__ if name != "body"}
        row |= {name: row[name] or None for name in ("peer", "via", "topic")}
        row["ts"] = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=record.ts_ns // 1000)
        row["dt"] = row["ts"].date()
        found.append(row)
    return found


@pytest.fixture(scope="module")
def warehouse(spark: Any, session: Captured, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    made = Warehouse(tmp_path_factory.mktemp("warehouse"))
    ingest(spark, session.journals, made)
    batch(spark, made)
    return made


@for_each("table", oracle.TABLES)
def test_each_table_is_the_oracles(table: str, warehouse: Warehouse, rows: list[dict[str, Any]]) -> None:
    meant = oracle.TABLES[table](rows)
    if table not in ("event_gaps", "slow"):  # a healthy session has none
        assert meant
    assert differences(table, warehouse.scan(table).to_pylist(), meant) == NOTHING


def test_calls_are_those_the_clients_made(warehouse: Warehouse, session: Captured) -> None:
    calls = Counter(
        (row["rank"], row["topic"], row["matchtag"], row["errnum"])
        for row in warehouse.scan("rpc").to_pylist()
    )
    unserved = [row for row in warehouse.scan("errors").to_pylist() if row["topic"] == "nobody.here"]
    for rank in range(2):
        got = session.said("flux", end=f"unix{rank}", did="received", type="response")
        assert len(got) == 3 * TIMES
        for each in got:
            topic, errnum = each.facts["topic"], each.facts["errnum"]
            assert calls[rank, topic, each.facts["matchtag"], errnum] >= 1
    counted = Counter((row["rank"], row["errno"]) for row in unserved for _ in range(row["n"]))
    assert counted == {(rank, errno.ENOSYS): TIMES for rank in range(2)}
    assert {row["errno"] for row in warehouse.scan("denied").to_pylist()} <= {errno.EPERM, errno.EACCES}


def test_where_the_time_goes_adds_up(warehouse: Warehouse) -> None:
    """What rank 1 passes on to rank 0 takes at least as long there as at rank 0."""
    steps = warehouse.scan("tree_latency").to_pylist()
    up = [row for row in steps if (row["rank"], row["target"]) == (1, "rank 0")]
    root = [row for row in steps if (row["rank"], row["source"]) == (0, "rank 1")]
    assert {row["source"] for row in up} == {"client"}
    assert sum(row["n"] for row in root) > 0
    assert sum(row["sum_ns"] for row in root) <= sum(row["sum_ns"] for row in up)


def test_jobs_and_notifications_are_those_that_were(warehouse: Warehouse, session: Captured) -> None:
    jobs = {row["uuid"]: (row["task"], row["status"]) for row in warehouse.scan("job_outcomes").to_pylist()}
    for each in session.said("nfp", did="outcome"):
        assert jobs[each.facts["uuid"]] == (each.facts["task"], each.facts["status"])
    notified = warehouse.scan("notifications").to_pylist()
    assert [row["event_type"] for row in notified] == ["compute.end"] * TIMES


def test_everything_went_out_in_the_order_in_which_it_came(warehouse: Warehouse) -> None:
    pairs = warehouse.scan("order_check").to_pylist()
    assert {row["type"] for row in pairs} == {"request", "response", "event"}
    assert sum(row["out_of_order"] for row in pairs) == 0
