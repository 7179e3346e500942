"""A directory of tables: ``DIR/TABLE/dt=2026-01-31/FILE.parquet``, shared by all workers of a cluster.

Files of bronze are named after what they were made of, so that doing it again replaces them:
``WRITER-FIRSTSEQ.parquet`` of a segment, ``batch-ID-PART.parquet`` of a stream's batch; ``compact-N-HASH.parquet``
stands for many. A file gets its name when it is whole (written as ``.NAME.tmp``); a partition that is rewritten gets
its place in one step. Readers skip names that begin with ``.`` or ``_``.

``_feed`` (JSON) says who fills bronze, and how far the rest has come::

    feed      ingest or stream; a warehouse has one
    query     stream: uuid of its checkpoint
    bronze    stream: last batch that is whole in bronze
    gold      stream: last batch that the gold tables know of
    losses    stream: of the last batch, should its row in ``_runs`` still be missing
    ingesting ingest: segments that are being read; their dates are dirty
    dirty     ingest: dates whose bronze changed and whose gold was not made since

One job writes at a time: ``lock``.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.pipeline import schema
from gateway.pipeline.errors import Busy, PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FEED: Final = "_feed"
MANIFESTS: Final = "_ingested"
STAGING: Final = ".staging"
CHECKPOINT: Final = "_checkpoint"
_LOCK: Final = ".lock"
NEVER: Final = "1000-01-01"
"""A date that no record can have, for times in ns begin in 1677: that of files without rows."""
_PARTITION: Final = re.compile(r"dt=(-?\d{4}-\d{2}-\d{2})")
_BATCH: Final = re.compile(r"batch-(\d{10,})-")
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


class Warehouse:
    """One warehouse.

    Args:
        root: its directory; made when something is written.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self._changing = threading.Lock()

    # ---------------------------------------------------------------- where things are

    def table(self, name: str) -> Path:
        """The directory of a table.

        Raises:
            PipelineError: no such table.
        """
        return self.root / schema.table_named(name).name

    def partition(self, table: str, date: str) -> Path:
        """The directory of one date (``2026-01-31``) of a table."""
        return self.table(table) / f"{schema.PARTITION}={date}"

    def dates(self, table: str) -> list[str]:
        """The dates that a table has, in order."""
        with contextlib.suppress(FileNotFoundError):
            found = [_PARTITION.fullmatch(name) for name in os.listdir(self.table(table))]
            return sorted(match.group(1) for match in found if match and match.group(1) != NEVER)
        return []

    def files(self, table: str, dates: Iterable[str] | None = None) -> list[Path]:
        """The files of a table (of those dates), in order."""
        found: list[Path] = []
        for date in self.dates(table) if dates is None else dates:
            with contextlib.suppress(FileNotFoundError):
                inside = self.partition(table, date).glob("*.parquet")
                found += sorted(path for path in inside if path.name[0] not in "._")
        return found

    # ---------------------------------------------------------------- reading

    def read(
        self,
        spark: SparkSession,
        table: str,
        dates: Iterable[str] | None = None,
        extra: Sequence[schema.Column] = (),
    ) -> DataFrame:
        """A table (or some of its dates) in the schema known here: a column that older files lack is null.

        Args:
            spark: where.
            table: its name; one that was never written is empty.
            dates: only these partitions.
            extra: columns beyond the table's, such as ``schema.PAYLOAD``.
        """
        ddl = ", ".join([schema.table_named(table).ddl, *(column.ddl for column in extra)])
        places = [
            str(self.partition(table, date))
            for date in self.dates(table)
            if dates is None or date in set(dates)
        ]
        if not places:
            return spark.createDataFrame([], ddl)
        names = [*schema.table_named(table).names, *(column.name for column in extra)]
        reader = spark.read.schema(ddl).option("basePath", str(self.table(table)))
        return reader.parquet(*places).select(*names)

    def scan(
        self, table: str, columns: Sequence[str] | None = None, dates: Iterable[str] | None = None
    ) -> pa.Table:
        """The same as an Arrow table, without Spark.

        Raises:
            PipelineError: a file is of a newer version.
        """
        import pyarrow as pa
        import pyarrow.dataset as ds

        known = schema.table_named(table)
        shape = known.arrow(partition=True)
        paths = self.files(table, dates)
        if not paths:
            return shape.empty_table().select(list(columns or known.names))
        dated = ds.partitioning(pa.schema([(schema.PARTITION, pa.date32())]), flavor="hive")
        for path in paths:
            known.refuse_foreign(_metadata(path), str(path))
        found = ds.dataset(
            list(map(str, paths)),
            schema=shape,
            format="parquet",
            partitioning=dated,
            partition_base_dir=str(self.table(table)),
        )
        return found.to_table(columns=list(columns or known.names))

    def check(self) -> None:
        """See whether the newest file of each table is of a version that is read here.

        Raises:
            PipelineError: it is not; the text says what to do.
        """
        for known in schema.TABLES.values():
            for path in self.files(known.name, self.dates(known.name)[-1:])[-1:]:
                known.refuse_foreign(_metadata(path), str(path))

    # ---------------------------------------------------------------- writing

    @contextlib.contextmanager
    def lock(self, job: str) -> Iterator[None]:
        """Nobody else writes meanwhile.

        Raises:
            Busy: another job does; the text says which, since when, by which process.
        """
        self.root.mkdir(
            mode=0o700, parents=True, exist_ok=True
        )  # who talked to whom is nobody else's business
        handle = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.pread(handle, 200, 0).decode("utf-8", "replace").strip()
                raise Busy(
                    f"{self.root}: another job writes into this warehouse ({holder or 'unknown'})"
                ) from None
            os.truncate(handle, 0)
            os.pwrite(handle, f"{job}, process {os.getpid()}".encode(), 0)
            shutil.rmtree(self.root / STAGING, ignore_errors=True)  # of a job that was killed
            self.check()
            self._declare()
            yield
        finally:
            os.close(handle)

    def _declare(self) -> None:
        """A file without rows for each table: a reader that knows no schema finds one where nothing happened yet."""
        for known in schema.TABLES.values():
            path = self.partition(known.name, NEVER) / "empty.parquet"
            if not path.exists():
                write_file(path, known.arrow().empty_table())

    def write_rows(self, table: str, rows: pa.Table, name: str) -> list[Path]:
        """Put ``rows`` (with ``dt``) into a file ``NAME.parquet`` in each of their dates; replaces that of the same
        name.

        A file of that name in a date that ``rows`` do not have stays: a stream's batch gives the same dates again.
        """
        import pyarrow.compute as pc

        known = schema.table_named(table)
        written = []
        for date in pc.unique(rows[schema.PARTITION]):
            some = rows.filter(pc.equal(rows[schema.PARTITION], date)).select(known.arrow().names)
            path = self.partition(table, date.as_py().isoformat()) / f"{name}.parquet"
            write_file(path, some.cast(known.arrow()))
            written.append(path)
        return written

    def overwrite(self, df: DataFrame, table: str, dates: Sequence[str]) -> int:
        """Make ``df`` (with ``dt``) all that the ``dates`` of a table hold; returns the rows written.

        Each date changes in one step; a date without rows goes. Rows of other dates are refused, not lost.

        Raises:
            PipelineError: ``df`` has rows of a date that is not among ``dates``.
        """
        known = schema.table_named(table)
        staging = self.root / STAGING / f"{table}-{uuid.uuid4().hex[:8]}"
        columns = [
            df[column.name]
            .cast(_cast(column))
            .alias(column.name, metadata={schema.VERSION_KEY: column.since})
            for column in known.columns
        ]
        df.select(*columns).write.partitionBy(schema.PARTITION).parquet(str(staging))
        try:
            made = {match.group(1) for name in os.listdir(staging) if (match := _PARTITION.fullmatch(name))}
            undated = [
                name
                for name in os.listdir(staging)
                if name.startswith("dt=") and not _PARTITION.fullmatch(name)
            ]
            if stray := sorted((made - set(dates)) | set(undated)):
                raise PipelineError(
                    f"{table}: rows of {stray[0]}; expected {', '.join(dates) or 'no date'} only"
                )
            rows = 0
            for date in dates:
                if date in made:
                    rows += _rows_in(staging / f"dt={date}")
                self.swap(table, date, staging / f"dt={date}" if date in made else None)
            return rows
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def swap(self, table: str, date: str, fresh: Path | None) -> None:
        """Give the directory ``fresh`` the place of a partition, in one step; None takes the partition away."""
        place = self.partition(table, date)
        old = self.root / STAGING / f"old-{uuid.uuid4().hex[:8]}"
        old.parent.mkdir(parents=True, exist_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        if fresh is None:
            with contextlib.suppress(FileNotFoundError):
                os.rename(place, old)
        elif not place.exists():
            os.rename(fresh, place)
        elif _exchange(fresh, place):
            old = fresh
        else:  # a file system without it: for a moment the partition is not there
            os.rename(place, old)
            os.rename(fresh, place)
        shutil.rmtree(old, ignore_errors=True)

    # ---------------------------------------------------------------- who feeds it

    def feed(self) -> dict[str, Any]:
        """What ``_feed`` says; empty when nobody fed it.

        Raises:
            PipelineError: it is no JSON object.
        """
        try:
            value = json.loads((self.root / FEED).read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise PipelineError(f"{self.root / FEED}: {error}; expected a JSON object") from None
        if not isinstance(value, dict):
            raise PipelineError(f"{self.root / FEED}: {type(value).__name__}; expected a JSON object")
        return value

    def update_feed(self, **changes: Any) -> dict[str, Any]:
        """Change keys of ``_feed`` (under the lock); returns all."""
        with self._changing:  # bronze and gold of a stream are made by two threads
            told = self.feed() | changes
            replace_text(self.root / FEED, json.dumps(told))
        return told

    def claim(self, feed: str, query: str = "") -> dict[str, Any]:
        """Say who fills bronze: ``ingest`` or ``stream`` (of the checkpoint with uuid ``query``); returns ``_feed``.

        Raises:
            Busy: something else does: both would bring every record twice.
        """
        told = self.feed()
        if told.get("feed", feed) != feed:
            raise Busy(
                f"{self.root}: fed by {told['feed']}; {feed} would bring every record twice: take another warehouse"
            )
        if query and told.get("query", query) != query:
            raise Busy(
                f"{self.root}: fed by the stream whose checkpoint is {told['query']}, this one is {query}: take its "
                "checkpoint, or another warehouse"
            )
        return self.update_feed(feed=feed, **({"query": query} if query else {}))

    def settle(self) -> list[str]:
        """Take away what a killed stream left half done in bronze; returns the dates that gold does not know yet.

        A job that makes gold anew calls this first, makes these dates too, and then calls ``gold_made``.
        """
        told = self.feed()
        if told.get("feed") != "stream":
            from gateway.pipeline.ingest import settle_dirty

            return settle_dirty(self) if told else []
        whole, known = told.get("bronze", -1), told.get("gold", -1)
        dates = set()
        for path in self.files("messages"):
            batch = batch_of(path)
            if batch is not None:
                if batch > whole:
                    path.unlink()
                elif batch > known:
                    dates.add(path.parent.name.removeprefix("dt="))
        return sorted(dates)

    def gold_made(self) -> None:
        """Gold knows all that is in bronze now."""
        told = self.feed()
        if told.get("feed") == "stream":
            self.update_feed(gold=told.get("bronze", -1))
        else:
            self.update_feed(dirty=[])

    def forget_batch(self, table: str, batch: int) -> None:
        """Remove the files of one batch of a stream: it is about to be written again."""
        for path in self.table(table).glob(f"dt=*/{batch_name(batch)}-*.parquet"):
            path.unlink(missing_ok=True)


def batch_name(batch: int) -> str:
    """What the files of a stream's batch begin with.

    >>> batch_name(7)
    'batch-0000000007'
    """
    return f"batch-{batch:010d}"


def batch_of(path: Path) -> int | None:
    """The batch of a stream that a file is of; None of other files."""
    match = _BATCH.match(path.name)
    return int(match.group(1)) if match else None


def write_file(path: Path, rows: pa.Table) -> None:
    """A Parquet file that has its name only when it is whole."""
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        pq.write_table(rows, hidden, compression="zstd")
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """A small file changed in one step, on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with hidden.open("w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)


def _metadata(path: Path) -> dict[bytes, bytes] | None:
    import pyarrow.parquet as pq

    found: dict[bytes, bytes] | None = pq.read_metadata(path).metadata
    return found


def _rows_in(directory: Path) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in directory.glob("*.parquet"))


def _cast(column: schema.Column) -> str:
    return column.ddl.rpartition(" ")[2]


def _exchange(one: Path, other: Path) -> bool:
    """Let two directories change places in one step; False where the system cannot."""
    rename: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return not rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
