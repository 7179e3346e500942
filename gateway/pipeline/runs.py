"""The table ``_runs``: one row for each run of a job, for each batch of a stream; dashboards see from it how fresh
the rest is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gateway.pipeline import schema
from gateway.pipeline.spans import Loss
from gateway.pipeline.warehouse import Warehouse

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NAMED_LOSSES: Final = 100
"""Losses named in one row; all are counted."""


@dataclass
class Run:
    """One run, as it goes on; ``finish`` dates its end.

    Attributes:
        job: ingest, batch, stream, gold, compact.
        feed: ingest or stream.
        batch_id: of a stream its batch, of gold the last addition to bronze; of others ms since 1970 at the begin.
        offsets: how far each writer was read.
        losses: what could not be read.
    """

    job: str
    feed: str = ""
    batch_id: int = -1
    rows_in: int = 0
    rows_out: int = 0
    offsets: dict[str, Any] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    started_ns: int = field(default_factory=time.time_ns)
    finished_ns: int = 0

    def __post_init__(self) -> None:
        if self.batch_id < 0:
            self.batch_id = self.started_ns // 1_000_000

    def finish(self) -> Run:
        """It has ended now."""
        self.finished_ns = max(time.time_ns(), self.started_ns)
        return self

    @property
    def lost_records(self) -> int:
        """Those whose number is known."""
        return sum(loss.records or 0 for loss in self.losses)

    def row(self) -> dict[str, Any]:
        """As the table has it."""
        started, finished = (
            _EPOCH + timedelta(microseconds=ns // 1000) for ns in (self.started_ns, self.finished_ns)
        )
        offsets: dict[str, Any] = {"writers": self.offsets}
        if self.losses:
            offsets["losses"] = [json.loads(loss.as_json()) for loss in self.losses[:NAMED_LOSSES]]
        told = {
            "started_at": started,
            "finished_at": finished,
            "bad_blocks": len(self.losses),
            "offsets": json.dumps(offsets),
            "duration_s": (self.finished_ns - self.started_ns) / 1e9,
            "dt": finished.date(),
        }
        return {name: told[name] if name in told else getattr(self, name) for name in schema.RUNS.names}

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        row = self.row()
        times = {name: row[name].isoformat() for name in ("started_at", "finished_at", "dt")}
        return row | times | {"offsets": json.loads(row["offsets"]), "by": "Spark"}


def add(warehouse: Warehouse, run: Run, done: Mapping[str, int] | None = None) -> None:
    """Put the row of a finished run into the table, once, should ``done`` (a job's name and number) say which.

    Raises:
        Conflict: the same job did it at the same time.
    """
    import pyarrow as pa

    at = warehouse.at(schema.RUNS.name)
    if done and all(at.done(name) >= number for name, number in done.items()):
        return
    rows = pa.Table.from_pylist([run.row()], schema.RUNS.arrow(partition=True))
    at.commit(warehouse.write_rows(schema.RUNS.name, rows), done=done)


def last(warehouse: Warehouse, job: str | None = None) -> dict[str, Any] | None:
    """The run that ended last, of that job or of any; None where there was none."""
    at = warehouse.at(schema.RUNS.name)
    for date in reversed(at.dates()):
        rows = at.scan(files=at.files([date])).to_pylist()
        if rows := [row for row in rows if job in (None, row["job"])]:
            newest: dict[str, Any] = max(rows, key=lambda row: row["finished_at"])
            return newest
    return None
