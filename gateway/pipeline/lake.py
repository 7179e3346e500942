"""A table as Delta Lake keeps it: Parquet files in ``dt=2026-01-31/``, and ``_delta_log``, which says which of them
count. Written through ``deltalake``, without a JVM; in a folder, or in a store that a URL names (``gateway.delta``).

What a job writes is seen by nobody until it is committed, and then whole: each commit adds files and takes others out
in one step. Many may write at once. A commit carries how far jobs have come (``done``: name -> number), so a job that
was killed sees what it did. Two commits that set the same name, or that both take files out, do not both succeed: the
second is a ``Conflict``, and whoever made it begins again from the newest version.

Files that no version names are of jobs that were killed, or were taken out; ``compact`` deletes them when they are old.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from broker.journal.stores import is_url
from broker.secret import masked
from gateway import delta
from gateway.delta import PARTITION, File
from gateway.pipeline.errors import Conflict
from gateway.pipeline.schema import PAYLOAD, VERSION_KEY, Column, Table

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

SETTINGS: Final = {
    "delta.logRetentionDuration": "interval 2 days",
    "delta.deletedFileRetentionDuration": "interval 2 days",
}
"""How far one can look back; a stream makes some ten thousand versions a day."""
SO_FAR: Final = "open"
"""What the names of such files begin with whose rows are of a time."""
_NOTES: Final = "headgate"
_REPLACED: Final = "replaced"
"""Counts the commits that took files out."""
_LOOKED: Final = 64
"""Commits looked through for notes at first; then four times as many, and so on."""
_RETRIES: Final = 100
"""How often a commit goes behind others that are no conflict."""
_READERS: Final = 8
"""Footers read at once."""
_PLAIN_TEXT: Final = frozenset(("detail", "offsets"))
"""Columns of JSON, which nobody looks for by its order."""
_TEXT_MOST: Final = 64
"""Characters of a bound; a column with a longer one has none."""
_TASKS_A_CORE: Final = 4
"""Of a read from a store at most; each reads its share of the files."""
OPEN_MOST: Final = 64
"""Dates written at once; a clock that runs wild closes the oldest, which then gets a second file."""
ROW_GROUP: Final = 131_072
"""Rows."""
FILE_ROWS: Final = 4_000_000
"""Behind so many it goes on in another file."""
_COUNTING: Final = frozenset(("seq", "ts", "ts_ns"))
"""Columns of numbers that are all different and lie near each other: as differences they take half the time of all, and
a tenth of the space, of a dictionary that turns out not to be worth it.
"""


class Snapshot:
    """A table as it was when this was made; empty where there is none.

    Args:
        known: which.
        place: its directory, or the URL of it.

    Raises:
        PipelineError: its version is not one that is read here.
        TableError: its log is damaged, or the store does not answer.
    """

    def __init__(self, known: Table, place: str | os.PathLike[str]) -> None:
        self.known, self.place = known, os.fspath(place)
        self._delta = delta.opened(self.place)
        if self._delta is not None:
            known.refuse_foreign(self.settings, masked(self.place))

    @property
    def delta(self) -> DeltaTable:
        """The table of ``deltalake``.

        Raises:
            FileNotFoundError: there is none.
        """
        if self._delta is None:
            raise FileNotFoundError(f"{masked(self.place)}: no table")
        return self._delta

    @property
    def made(self) -> bool:
        """Whether there is one."""
        return self._delta is not None

    @property
    def settings(self) -> Mapping[str, Any]:
        """Properties of the table."""
        return {} if self._delta is None else self._delta.metadata().configuration

    @property
    def columns(self) -> list[str]:
        """Its columns, also those that are not known here."""
        return [field.name for field in self.delta.schema().fields]

    def done(self, name: str) -> int:
        """How far a job has come, -1 where it never was."""
        number = None if self._delta is None else self._delta.transaction_version(name)
        return -1 if number is None else number

    # ---------------------------------------------------------------- files

    @cached_property
    def _files(self) -> list[File]:
        return [] if self._delta is None else delta.files_of(self._delta)

    def files(self, dates: Iterable[str] | None = None) -> list[File]:
        """The files (of those dates), by date and name."""
        wanted = None if dates is None else set(dates)
        return [each for each in self._files if wanted is None or each.date in wanted]

    def has(self, files: Sequence[File]) -> bool:
        """Whether files are on disk; those that no version names are deleted some day.

        Raises:
            TableError: the store does not answer.
        """
        system, folder = delta.filesystem(self.place)
        with delta.plain_errors(self.place):
            about = system.get_file_info([f"{folder}/{each.path}" for each in files])
        return all(each.is_file for each in about)

    def dates(self) -> list[str]:
        """The dates that have rows, in order."""
        return sorted({each.date for each in self._files})

    # ---------------------------------------------------------------- rows

    def read(self, spark: SparkSession, files: Sequence[File] | None = None) -> DataFrame:
        """The rows (of some files) in the schema known here: a column that older files lack is null."""
        known, paths = self.known, [file.path for file in (self.files() if files is None else files)]
        if not paths:
            return spark.createDataFrame([], known.ddl)
        if is_url(self.place):
            return _read_stored(spark, known, self.place, paths)
        whole = [f"{self.place}/{path}" for path in paths]
        return (
            spark.read.schema(known.ddl).option("basePath", self.place).parquet(*whole).select(*known.names)
        )

    def scan(self, columns: Sequence[str] | None = None, files: Sequence[File] | None = None) -> pa.Table:
        """The same as an Arrow table, without Spark.

        Raises:
            TableError: a file is gone, or the store does not answer.
        """
        with delta.plain_errors(self.place):
            return self.dataset(files).to_table(columns=list(columns or self.known.names))

    def dataset(self, files: Sequence[File] | None = None) -> ds.Dataset:
        """The same as a data set of Arrow; it has ``payload``, too."""
        paths = [each.path for each in (self.files() if files is None else files)]
        return dataset(self.known, self.place, paths)

    # ---------------------------------------------------------------- commits

    def commit(
        self,
        added: Sequence[File],
        *,
        removed: Sequence[File] = (),
        done: Mapping[str, int] | None = None,
        notes: Mapping[str, Any] | None = None,
        same: bool = False,
    ) -> None:
        """Make a version: ``added`` files come in, ``removed`` ones go, jobs are ``done``, ``notes`` say more of it;
        ``same``: the rows are. The table's history calls all of it WRITE, for whoever writes files itself may say
        nothing else; so the notes have what it was, REPLACE or OPTIMIZE.

        Raises:
            Conflict: another commit since this snapshot took files out, too, or is of the same job.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction, RemoveAction

        now_ms = time.time_ns() // 1_000_000
        jobs = {**(done or {}), **({_REPLACED: self.done(_REPLACED) + 1} if removed else {})}
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                each.path,
                each.size,
                {PARTITION: each.date},
                now_ms,
                not same,
                each.stats or json.dumps({"numRecords": each.rows}),
            )
            for each in added
        ]
        actions += [
            RemoveAction(each.path, not same, now_ms, each.size, {PARTITION: each.date}) for each in removed
        ]
        told = {**({"operation": "OPTIMIZE" if same else "REPLACE"} if removed else {}), **(notes or {})}
        about = CommitProperties(
            custom_metadata={_NOTES: told} if told else None,
            max_commit_retries=_RETRIES,
            app_transactions=[Transaction(name, number) for name, number in jobs.items()],
        )
        with _conflicts(self.place):
            self.delta.create_write_transaction(
                actions, "append", self.delta.schema(), [PARTITION], commit_properties=about
            )

    def set(self, settings: Mapping[str, str]) -> None:
        """Change properties of the table, those that are not so yet.

        Raises:
            Conflict: something else changed them meanwhile.
        """
        if any(self.settings.get(key) != value for key, value in settings.items()):
            with _conflicts(self.place):
                self.delta.alter.set_table_properties(dict(settings), raise_if_not_exists=False)

    def add_column(self, column: Column) -> None:
        """Let the table have a column, should it lack it; files without it give null there.

        Raises:
            Conflict: as of ``set``.
        """
        import pyarrow as pa
        from deltalake import Schema as DeltaSchema

        if column.name not in self.columns:
            shape = pa.schema([pa.field(column.name, column.arrow_type())])
            with _conflicts(self.place):
                self.delta.alter.add_columns(DeltaSchema.from_arrow(shape).fields)

    def notes(self, since: int, name: str, until: int) -> list[dict[str, Any]]:
        """What commits said of themselves, those whose ``name`` lies above ``since`` and up to ``until``, in order.

        There are fewer than that where the log does not reach back so far.

        Raises:
            TableError: the store does not answer.
        """
        limit = _LOOKED
        wanted: dict[int, dict[str, Any]] = {}
        while self._delta is not None and len(wanted) < until - since:
            with delta.plain_errors(self.place):
                seen = self._delta.history(limit)
            notes = [each[_NOTES] for each in seen if _NOTES in each]
            wanted = {each[name]: each for each in notes if since < each.get(name, since) <= until}
            if len(seen) < limit:
                break
            limit *= 4
        return [wanted[number] for number in sorted(wanted)]


# ---------------------------------------------------------------- writing files


@dataclass
class _Part:
    """A file that is being written."""

    path: str
    writer: pq.ParquetWriter
    footer: list[pq.FileMetaData]
    rows: int = 0


def write(
    place: str,
    known: Table,
    batches: Iterable[pa.RecordBatch],
    *,
    stem: str = "part",
    extra: Iterable[Column] = (),
) -> list[File]:
    """Rows as files of a table, which nobody sees before they are committed; an error leaves none.

    Args:
        place: the directory of the table, or the URL of it.
        known: which table.
        batches: rows with all its columns.
        stem: what the name of each file begins with.
        extra: columns that they have besides.

    Raises:
        TableError: they cannot be written.
    """
    import pyarrow.parquet as pq

    shape = known.arrow(extra=extra)
    counting = _COUNTING & set(shape.names)
    system, folder = delta.filesystem(place)
    growing: dict[str, _Part] = {}
    parts: list[_Part] = []

    def begin(date: str) -> _Part:
        path = f"{PARTITION}={date}/{stem}-{uuid.uuid4().hex[:12]}.parquet"
        if not is_url(place):  # a store needs no folders
            os.makedirs(f"{folder}/{PARTITION}={date}", exist_ok=True)
        footer: list[pq.FileMetaData] = []
        writer = pq.ParquetWriter(
            f"{folder}/{path}",
            shape,
            filesystem=system,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in shape.names if name not in counting],
            column_encoding=dict.fromkeys(counting, "DELTA_BINARY_PACKED"),
            metadata_collector=footer,
        )
        growing[date] = _Part(path, writer, footer)
        parts.append(growing[date])
        return growing[date]

    def end(date: str) -> None:
        growing.pop(date).writer.close()

    try:
        with delta.plain_errors(place):
            for batch in batches:
                for date, rows in _by_date(batch):
                    if date not in growing and len(growing) >= OPEN_MOST:
                        end(next(iter(growing)))
                    part = growing.get(date) or begin(date)
                    part.writer.write_batch(rows.select(shape.names), row_group_size=ROW_GROUP)
                    part.rows += rows.num_rows
                    if part.rows >= FILE_ROWS:
                        end(date)
            while growing:
                end(next(iter(growing)))
            sizes = [system.get_file_info(f"{folder}/{each.path}").size for each in parts]
    except BaseException:
        for left in growing.values():
            with contextlib.suppress(Exception):  # a store takes what is closed late, behind its deletion
                left.writer.close()
        discard(place, [each.path for each in parts])
        raise
    return [file_of(each.path, size, each.footer[0]) for each, size in zip(parts, sizes, strict=True)]


def _by_date(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows by their date, as days of numpy name it: any that ns of 64 bits can mean."""
    import numpy as np
    import pyarrow as pa

    days = batch.column(PARTITION).to_numpy(zero_copy_only=False)
    found = np.unique(days)
    for day in found:
        yield str(day), batch if len(found) == 1 else batch.filter(pa.array(days == day))


def discard(place: str, paths: Iterable[str]) -> None:
    """Delete files of a table that nobody committed, as far as that can be done."""
    system, folder = delta.filesystem(place)
    for path in paths:
        with contextlib.suppress(OSError):
            system.delete_file(f"{folder}/{path}")


# ---------------------------------------------------------------- files that somebody wrote


def files_in(place: str, folder: str) -> list[File]:
    """The Parquet files below a folder of a table's place, whoever wrote them, as a commit takes them: their date is
    that of a folder ``dt=...`` on the way. Marks like ``_SUCCESS`` are passed over, and so are files without rows.

    Raises:
        TableError: one is no Parquet, the disk or the store refuses.
    """
    import pyarrow.parquet as pq

    system, root = delta.filesystem(place)
    with delta.plain_errors(place):
        found = delta.listed(system, f"{root}/{folder}", recursive=True)
        names = [
            each for each in found if each.base_name.endswith(".parquet") and each.base_name[0] not in "._"
        ]
        with ThreadPoolExecutor(_READERS, "footers") as pool:
            footers = list(pool.map(lambda each: pq.read_metadata(each.path, filesystem=system), names))
    files = [
        file_of(each.path.removeprefix(f"{root}/"), each.size, footer)
        for each, footer in zip(names, footers, strict=True)
    ]
    return sorted((each for each in files if each.rows), key=lambda each: (each.date, each.path))


def is_so_far(file: File) -> bool:
    """Whether its rows say what is open so far: the next step of gold takes it out, so it stays by itself."""
    return os.path.basename(file.path).startswith(f"{SO_FAR}-")


def file_of(path: str, size: int, footer: pq.FileMetaData) -> File:
    """A file as a commit takes it, of what stands in its footer."""
    date = path.partition(f"{PARTITION}=")[2].partition("/")[0]
    return File(path, date, footer.num_rows, size, stats_of(footer))


def stats_of(footer: pq.FileMetaData) -> str:
    """Least, greatest and how many nulls of each column, by which readers pass files over, as JSON of Delta's log."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for index in range(footer.num_columns if groups else 0):
        chunks = [group.column(index) for group in groups]
        name, seen = chunks[0].path_in_schema, [chunk.statistics for chunk in chunks]
        if not all(each is not None and each.has_null_count for each in seen):
            continue
        nulls[name] = sum(each.null_count for each in seen)
        filled = [each for each in seen if each.num_values]
        if name in _PLAIN_TEXT or not filled or not all(each.has_min_max for each in filled):
            continue
        low = _edge(min(each.min for each in filled), up=False)
        high = _edge(max(each.max for each in filled), up=True)
        if low is not None and high is not None:
            least[name], most[name] = low, high
    told = {"numRecords": footer.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps(told, separators=(",", ":"))


def _edge(value: Any, *, up: bool) -> Any:
    """A bound as Delta writes it: times to the millisecond, outwards; None where there is none to be had."""
    if isinstance(value, datetime):
        at = value.astimezone(UTC) + timedelta(microseconds=-value.microsecond % 1000 if up else 0)
        return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= _TEXT_MOST else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) else None


def dataset(known: Table, place: str, paths: Sequence[str]) -> ds.Dataset:
    """Files of a table, paths within its place, as Arrow reads them in the schema known here, with ``payload``.

    Raises:
        TableError: one is gone, or the store does not answer.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    shape = known.arrow(partition=True, extra=[PAYLOAD])
    if not paths:
        return ds.dataset(shape.empty_table())
    system, folder = delta.filesystem(place)
    with delta.plain_errors(place):
        return ds.dataset(
            [f"{folder}/{path}" for path in paths],
            schema=shape,
            format="parquet",
            filesystem=system,
            partitioning=ds.partitioning(pa.schema([shape.field(PARTITION)]), flavor="hive"),
            partition_base_dir=folder,
        )


def _read_stored(spark: SparkSession, known: Table, place: str, paths: Sequence[str]) -> DataFrame:
    """Files of a store, read by pyarrow in Spark's tasks: Spark itself would need Hadoop's libraries for that store."""

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = [paths[number] for batch in numbers for number in batch.column(0).to_pylist()]
        with delta.plain_errors(place):
            yield from dataset(known, place, wanted).to_batches(columns=list(known.names))

    tasks = min(len(paths), _TASKS_A_CORE * spark.sparkContext.defaultParallelism)
    return spark.range(0, len(paths), 1, tasks).mapInArrow(read, known.ddl)


@contextlib.contextmanager
def _conflicts(place: str) -> Iterator[None]:
    """Commits that fail because of others are a ``Conflict``."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        with delta.plain_errors(place):
            yield
    except CommitFailedError as error:
        raise Conflict(f"{masked(place)}: {delta.brief(error)}") from None
    except DeltaError as error:
        raise delta.TableError(f"{masked(place)}: {delta.brief(error)}") from None


def create(at: Snapshot) -> None:
    """Make a table that is not there, or give one that an older program made the columns that are new.

    Raises:
        TableError: the store does not answer.
        Conflict: somebody else does the same.
    """
    from deltalake import CommitProperties, DeltaTable

    known = at.known
    if at.made:
        if at.settings.get(VERSION_KEY) != str(known.version):
            for column in known.columns:
                at.add_column(column)
            at.set(known.metadata)
        return
    settings = {**SETTINGS, **known.metadata}
    where, options = delta.address_of(at.place)
    with _conflicts(at.place):
        DeltaTable.create(
            where,
            known.arrow(partition=True),
            "ignore",
            [PARTITION],
            configuration=settings,
            storage_options=options,
            raise_if_key_not_exists=False,
            # no second try, or it would be made anew behind the other one
            commit_properties=CommitProperties(max_commit_retries=0),
        )
