"""What a table of the warehouse is: columns with types and meanings, and a version.

Evolution is add-only: a column is never renamed, retyped or removed; one that is added later stands at the end with
the version that brought it (``@3``), and files written before give null there. A table's version is the highest of
its columns. Where that could not be held, the table begins anew: ``oldest`` is the first version that is still read,
and tables before it are refused with what to do about them. Tables, and files, carry ``headgate.table`` and
``headgate.v``; the partition column ``dt`` is in the path (``dt=2026-01-31``), not in the files.

pyarrow is imported where it is asked for; the names and types are plain Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

PARTITION: Final = "dt"
"""UTC date of the row's time; names the directory."""
TABLE_KEY: Final = "headgate.table"
VERSION_KEY: Final = "headgate.v"
_SPARK_KEY: Final = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK: Final = {"long": "bigint"}
"""Where Spark's name of a type differs from ours."""
ANEW: Final = (
    "make the warehouse anew from its journal: headgate pipeline batch --journal DIR --warehouse NEW"
)
"""What to do with files of a version that is not read any more."""


@dataclass(frozen=True)
class Column:
    """One column. ``type``: long, int, double, boolean, string, binary, timestamp (us, UTC) or date."""

    name: str
    type: str
    doc: str
    since: int = 1

    @property
    def ddl(self) -> str:
        """As Spark's DDL has it."""
        return f"`{self.name}` {_SPARK.get(self.type, self.type)}"

    def arrow_type(self) -> pa.DataType:
        """As pyarrow has it."""
        import pyarrow as pa

        return {
            "long": pa.int64(),
            "int": pa.int32(),
            "double": pa.float64(),
            "boolean": pa.bool_(),
            "string": pa.string(),
            "binary": pa.binary(),
            "timestamp": pa.timestamp("us", "UTC"),
            "date": pa.date32(),
        }[self.type]


@dataclass(frozen=True)
class Table:
    """One table. All columns may be null for Spark and Arrow; ``doc`` of a column says when. ``oldest``: the first
    version that is read.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    oldest: int = 1

    @property
    def version(self) -> int:
        """The highest version of a column."""
        return max(self.oldest, *(column.since for column in self.columns))

    @property
    def names(self) -> tuple[str, ...]:
        """All columns in their order, the partition last or where it stands."""
        return tuple(column.name for column in self.columns)

    @property
    def ddl(self) -> str:
        """All columns as one DDL string for ``spark.read.schema``."""
        return ", ".join(column.ddl for column in self.columns)

    @property
    def metadata(self) -> dict[str, str]:
        """What each file of this table carries."""
        return {TABLE_KEY: self.name, VERSION_KEY: str(self.version)}

    def arrow(self, *, partition: bool = False, extra: Iterable[Column] = ()) -> pa.Schema:
        """The Arrow schema of a file; with ``partition`` the column ``dt``, too, as a scan gives it."""
        import pyarrow as pa

        fields = [
            pa.field(column.name, column.arrow_type())
            for column in (*self.columns, *extra)
            if partition or column.name != PARTITION
        ]
        return pa.schema(fields, metadata=self.metadata)

    def refuse_foreign(self, metadata: Mapping[bytes, bytes] | None, path: str) -> None:
        """Raise when a file says that it is of another table or of a version that is not read here.

        Raises:
            PipelineError: with the file, the version seen and the one known.
        """
        seen = version_of(metadata)
        named = (metadata or {}).get(TABLE_KEY.encode(), self.name.encode()).decode("utf-8", "replace")
        if named != self.name:
            raise PipelineError(f"{path}: a file of table {named:.64}; expected {self.name}")
        if seen is not None and seen > self.version:
            raise PipelineError(
                f"{path}: version {seen} of table {self.name}; this program knows up to {self.version}"
            )
        if seen is not None and seen < self.oldest:
            raise PipelineError(
                f"{path}: version {seen} of table {self.name}; this program reads from {self.oldest} on: {ANEW}"
            )


def version_of(metadata: Mapping[bytes, bytes] | None) -> int | None:
    """The version in a file's metadata: our key, or what Spark's writer carries of our columns; None without one."""
    if not metadata:
        return None
    if (own := metadata.get(VERSION_KEY.encode())) is not None:
        return int(own)
    fields = json.loads(metadata.get(_SPARK_KEY, b"{}")).get("fields", [])
    seen = [int(v) for field in fields if (v := field.get("metadata", {}).get(VERSION_KEY)) is not None]
    return max(seen, default=None)


def table_of(name: str, doc: str, text: str, oldest: int = 1) -> Table:
    """The table whose columns are the lines ``NAME TYPE[@VERSION] WHAT`` of ``text``."""
    columns = []
    for line in filter(None, map(str.strip, text.splitlines())):
        column, kind, meaning = line.split(None, 2)
        kind, _, since = kind.partition("@")
        columns.append(Column(column, kind, meaning, int(since or oldest)))
    return Table(name, doc, tuple(columns), oldest)
