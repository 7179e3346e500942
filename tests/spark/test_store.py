"""A warehouse in a store: Spark's tasks write and read it through pyarrow, and it holds what one in a folder does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import pipeline
from gateway.pipeline.errors import PipelineError
from tests.live import oracle
from tests.live.gold import NOTHING, differences, drawn_rows, fill
from tests.live.s3 import Apart, s3_apart

TABLES = ("traffic", "event_gaps")


@pytest.fixture
def s3() -> Iterator[Apart]:
    with s3_apart() as served:
        yield served


def test_batch_makes_the_same_tables_in_a_store(spark: Any, s3: Apart, tmp_path: Path) -> None:
    from gateway.pipeline.batch import batch
    from gateway.pipeline.compact import compact
    from gateway.pipeline.warehouse import Warehouse

    rows = drawn_rows(8)
    warehouse = Warehouse(s3.place("warehouse"))
    fill(warehouse, rows)
    compact(warehouse, ["messages"])
    s3.tell(refuse=2)
    run = batch(spark, warehouse, tables=TABLES)
    made = {name: warehouse.scan(name).to_pylist() for name in TABLES}
    assert (run.rows_in, run.rows_out) == (len(rows), sum(map(len, made.values())))
    for name in TABLES:
        assert differences(name, made[name], oracle.TABLES[name](rows)) == NOTHING, name
    pipeline.views(spark, warehouse.place)
    assert spark.sql("SELECT count(*), count(DISTINCT run) FROM messages").first() == (
        len(rows),
        len({row["run"] for row in rows}),
    )
    from gateway.pipeline.stream import Stream

    with pytest.raises(
        PipelineError, match=r"s3://journals/warehouse\?.*: a store.*headgate pipeline ingest"
    ):
        Stream(spark, tmp_path, warehouse)
