"""A directory of Delta tables (``lake``): ``DIR/TABLE``, by date, shared by all workers of a cluster; or the URL of a
folder in a store, which they all reach.

``messages`` is bronze, made from the journal; the others are gold, made from bronze; ``_runs`` says what each job did.
How far the jobs are stands in the commits themselves, so that a job that was killed goes on where it was:

* of ``messages``: ``bronze``, the number of its last addition; ``stream:ID``, the last batch of a stream;
  ``seg:WRITER``, ``pos:WRITER``, ``next:WRITER``, how far a writer was read (``spans``). What an addition brought
  stands in its notes: ``bronze``, ``files``, ``rows``, ``losses``;
* of a gold table: ``gold``, the addition to bronze up to which it was made;
* of ``_runs``: ``gold``, up to where all gold tables were made; ``stream:ID``, the last batch with a row.

Any number of jobs may run at once. Two that make gold take turns (``making_gold``); where they cannot see each other,
on two machines, one of their commits is a conflict, and it begins again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from broker.errors import ConfigError
from broker.journal.stores import is_url, joined
from broker.secret import masked
from broker.times import EPOCH
from gateway import delta
from gateway.delta import File
from gateway.pipeline import lake, schema
from gateway.pipeline.errors import Busy, Conflict, PipelineError
from gateway.pipeline.lake import Snapshot
from gateway.pipeline.spans import Loss

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_T = TypeVar("_T")
CHECKPOINT: Final = "_checkpoint"
FEED: Final = "headgate.feed"
"""Property of ``messages``: ingest or stream."""
BRONZE: Final = "bronze"
GOLD: Final = "gold"
STREAM: Final = "stream"
INGEST: Final = "ingest"
TRIES: Final = 5
"""How often a job begins again where others commit at the same time."""
NAMED_LOSSES: Final = 100
"""Losses named in one row of ``_runs``; all are counted."""


@dataclass
class Run:
    """One run of a job, or one batch of a stream, as it goes on: a row of ``_runs``.

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

    def finish(self) -> Self:
        """Date its end: now."""
        self.finished_ns = max(time.time_ns(), self.started_ns)
        return self

    @property
    def lost_records(self) -> int:
        """Those whose number is known."""
        return sum(loss.records or 0 for loss in self.losses)

    def row(self) -> dict[str, Any]:
        """As the table has it."""
        started, finished = (
            EPOCH + timedelta(microseconds=ns // 1000) for ns in (self.started_ns, self.finished_ns)
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


class Warehouse:
    """One warehouse.

    Args:
        place: its directory, or the URL of one in a store; made by ``ready``.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = delta.place_of(place)

    def __str__(self) -> str:
        """Where it is, for people."""
        return masked(self.place)

    @property
    def stored(self) -> bool:
        """Whether it is in a store."""
        return is_url(self.place)

    @property
    def root(self) -> Path:
        """Its directory.

        Raises:
            PipelineError: it is in a store.
        """
        if self.stored:
            raise PipelineError(f"{self}: a store, and this job needs a directory")
        return Path(self.place)

    @property
    def checkpoint(self) -> str:
        """Where Spark keeps how far a stream is, unless told otherwise.

        Raises:
            PipelineError: this is a store, which Spark itself does not reach.
        """
        if self.stored:
            raise PipelineError(
                f"{self}: a store; the stream needs --checkpoint DIR, a directory that stays: without it nobody "
                "knows how far it read, and it cannot go on"
            )
        return str(self.root / CHECKPOINT)

    def table(self, name: str) -> str:
        """The directory of a table, or the URL of it.

        Raises:
            PipelineError: no such table.
        """
        return joined(self.place, schema.table_named(name).name)

    def existing(self) -> Self:
        """This one, which has to be there.

        Raises:
            ConfigError: it is not.
            TableError: the store does not answer.
        """
        bronze = self.table(schema.MESSAGES.name)
        if not (delta.opened(bronze) is not None if self.stored else self.root.is_dir()):
            raise ConfigError(f"{self}: no such warehouse; `headgate pipeline ingest` or `stream` makes one")
        return self

    def ready(self) -> None:
        """Make it, and the tables that it lacks; nobody else may look into it.

        Raises:
            PipelineError: a table is of a version that is not read here.
            TableError: a log is damaged, or the store does not answer.
        """
        if not self.stored:  # who talked to whom is nobody else's business
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in schema.TABLES:
            until_it_passes(lambda: lake.create(self.at(name)))  # noqa: B023 - called here

    # ---------------------------------------------------------------- reading

    def at(self, name: str) -> Snapshot:
        """A table as it is now; empty where it was never made.

        Raises:
            PipelineError: no such table, or of a version that is not read here.
        """
        known = schema.table_named(name)
        table = Snapshot(known, self.table(name))
        if not table.made:
            delta.refuse_without_log(table.place)
        return table

    def dates(self, table: str) -> list[str]:
        """The dates that a table has now, in order."""
        return self.at(table).dates()

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """All rows of a table as it is now."""
        return self.at(table).read(spark)

    def scan(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The same as an Arrow table, without Spark."""
        return self.at(table).scan(columns)

    # ---------------------------------------------------------------- writing

    def write_rows(self, table: str, rows: pa.Table) -> list[File]:
        """``rows`` (with ``dt``) as files of a table, one a date; they count once they are committed.

        Raises:
            TableError: the disk or the store refuses; no file stays.
        """
        known = schema.table_named(table)
        rows = rows.combine_chunks().to_reader()
        return lake.write(self.table(table), known, rows.cast(known.arrow(partition=True)))

    def add_bronze(
        self,
        on: Snapshot,
        files: Sequence[File],
        done: Mapping[str, int],
        losses: Sequence[Mapping[str, Any]] = (),
    ) -> int:
        """Commit files of ``messages``, unless what they are ``done`` of is there; returns the number of the addition.

        Raises:
            Conflict: something else was added since ``on``.
        """
        if done and all(on.done(name) >= reached for name, reached in done.items()):
            return on.done(BRONZE)
        # gold is ahead of bronze where bronze's last commits are lost: no number may mean two additions
        number = max(on.done(BRONZE), self.gold()) + 1
        jobs = {BRONZE: number, **done}
        rows = sum(each.rows for each in files)
        paths = [each.path for each in files]
        on.commit(files, done=jobs, notes={**jobs, "files": paths, "rows": rows, "losses": list(losses)})
        return number

    # ---------------------------------------------------------------- what jobs did

    def record(self, run: Run, done: Mapping[str, int] | None = None) -> Run:
        """Put a run, which ends now, into ``_runs``, once, should ``done`` (a job's name and number) say which.

        Raises:
            Conflict: the same job did it at the same time.
        """
        import pyarrow as pa

        run.finish()
        at = self.at(schema.RUNS.name)
        if not done or any(at.done(name) < number for name, number in done.items()):
            rows = pa.Table.from_pylist([run.row()], schema.RUNS.arrow(partition=True))
            at.commit(self.write_rows(schema.RUNS.name, rows), done=done)
        return run

    def last_run(self) -> dict[str, Any] | None:
        """The row of the run that ended last; None where there was none."""
        at = self.at(schema.RUNS.name)
        for date in reversed(at.dates()):
            if rows := at.scan(files=at.files([date])).to_pylist():
                newest: dict[str, Any] = max(rows, key=lambda row: row["finished_at"])
                return newest
        return None

    # ---------------------------------------------------------------- who feeds it, how far the rest is

    def feed(self) -> dict[str, Any]:
        """Who fills bronze and how far it and gold are; ``feed`` is missing when nobody does yet."""
        bronze = self.at(schema.MESSAGES.name)
        fed = bronze.settings.get(FEED)
        return ({"feed": fed} if fed else {}) | {BRONZE: bronze.done(BRONZE), GOLD: self.gold()}

    def claim(self, feed: str) -> None:
        """Say who fills bronze from now on: ``ingest`` or ``stream``.

        Raises:
            Busy: a stream does, whose place an ingest does not take.
        """

        def claim() -> None:
            if feed == INGEST and self.feed().get("feed", feed) != feed:
                raise Busy(f"{self}: fed by a stream, which an ingest would overtake: take another warehouse")
            self.at(schema.MESSAGES.name).set({FEED: feed})

        until_it_passes(claim)

    def keep_payloads(self) -> None:
        """Let bronze have the column ``payload``."""
        until_it_passes(lambda: self.at(schema.MESSAGES.name).add_column(schema.PAYLOAD))

    def gold(self) -> int:
        """The addition to bronze up to which all gold tables were made."""
        return self.at(schema.RUNS.name).done(GOLD)

    @contextlib.contextmanager
    def making_gold(self, *, wait: bool = True) -> Iterator[bool]:
        """Nobody else of this machine makes gold meanwhile; gives False, without ``wait``, where somebody does.

        In a store nobody sees the others: commits that conflict are made again.
        """
        if self.stored:
            yield True
            return
        handle = os.open(self.root / ".gold", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            except OSError:  # a file system without locks: commits that conflict are made again
                pass
            yield True
        finally:
            os.close(handle)


def until_it_passes(job: Callable[[], _T]) -> _T:
    """Do a job again as long as others commit at the same time, ``TRIES`` times at most.

    Raises:
        Conflict: they still did.
    """
    for _turn in range(TRIES - 1):
        with contextlib.suppress(Conflict):
            return job()
    return job()


def dates_of(notes: Iterable[Mapping[str, Any]]) -> set[str]:
    """The dates of the files that additions to bronze brought."""
    return {path.partition("/")[0].partition("=")[2] for note in notes for path in note["files"]}
