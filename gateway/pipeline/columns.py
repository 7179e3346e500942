"""What a table of the warehouse is: columns with types and meanings, and a version.

Evolution is add-only: a column is never renamed, retyped or removed; one that is added later stands at the end with
the version that brought it (``@3``), and files written before give null there. A table's version is the highest of
its columns. Where that could not be held, the table begins anew: ``oldest`` is the first version that is still read,
and tables before it are refused with what to do about them. Tables, and files, carry ``headgate.table`` and
``headgate.v``; the partition column ``dt`` is in the path (``dt=2026-01-31``), not in the files.

pyarrow is imported where it is asked for; the names and types are plain Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gateway.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

PARTITION: Final = "dt"
"""UTC date of the row's time; names the directory."""
TABLE_KEY: Final = "headgate.table"
VERSION_KEY: Final = "headgate.v"
TYPES: Final = {
    "long": "int64", "int": "int32", "double": "float64", "boolean": "bool", "string": "string", "binary": "binary",
    "timestamp": "timestamp[us]", "date": "date32",
}  # fmt: skip
"""Types of columns, as Arrow names them; Spark's names are ours but for ``bigint``. Times are of UTC."""
ANEW: Final = (
    "make the warehouse anew from its journal: headgate pipeline batch --journal DIR --warehouse NEW"
)
"""What to do with files of a version that is not read any more."""


@dataclass(frozen=True)
class Column:
    """One column; ``type`` is one of ``TYPES``."""

    name: str
    type: str
    doc: str
    since: int = 1

    @property
    def ddl(self) -> str:
        """As Spark's DDL has it."""
        return f"`{self.name}` {'bigint' if self.type == 'long' else self.type}"

    def arrow_type(self) -> pa.DataType:
        """As pyarrow has it."""
        import pyarrow as pa

        return pa.timestamp("us", "UTC") if self.type == "timestamp" else pa.type_for_alias(TYPES[self.type])


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

    def refuse_foreign(self, settings: Mapping[str, str], place: str) -> None:
        """Raise where a table's properties say that it is another one, or of a version that is not read here.

        Raises:
            PipelineError: with the place, the version seen and the one known.
        """
        name, version = settings.get(TABLE_KEY, self.name), int(settings.get(VERSION_KEY, self.version))
        if name != self.name:
            raise PipelineError(f"{place}: table {name:.64}; expected {self.name}")
        seen = f"{place}: version {version} of table {self.name}; this program"
        if version > self.version:
            raise PipelineError(f"{seen} knows up to {self.version}")
        if version < self.oldest:
            raise PipelineError(f"{seen} reads from {self.oldest} on: {ANEW}")


def tables_of(text: str) -> dict[str, Table]:
    """Tables by name, each of ``NAME OLDEST WHAT`` and, indented, its columns: ``NAME TYPE[@VERSION] WHAT``, several
    names with commas between, or names alone, which are columns as of the first table. The partition stands last
    where no line has it.
    """
    tables: dict[str, Table] = {}
    known: dict[str, Column] = {}
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        head = [line for line in lines if not line.startswith(" ")]
        name, first, doc = " ".join(head).split(None, 2)
        oldest, columns = int(first), []
        for line in lines[len(head) :]:
            words = line.split(None, 2)
            kind, _, since = words[1].partition("@") if len(words) == 3 else ("", "", "")
            if kind in TYPES:
                columns += [
                    Column(each, kind, words[2], int(since or oldest)) for each in words[0].split(",")
                ]
            else:
                columns += [replace(known[each], since=oldest) for each in line.split()]
        if not known:
            known = {column.name: column for column in columns}
        elif all(column.name != PARTITION for column in columns):
            columns.append(replace(known[PARTITION], since=oldest))
        tables[name] = Table(name, doc, tuple(columns), oldest)
    return tables
