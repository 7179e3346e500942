"""Gold tables of some rows, by DuckDB, in whatever process this is: no JVM, and bounded memory. What does not fit
goes to temporary files.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from broker.extras import lacking
from gateway import delta
from gateway.pipeline.errors import Missing, PipelineError
from gateway.pipeline.schema import MESSAGES, table_named
from gateway.pipeline.tables import calls, catalogue, events, jobs, sql, usage

if TYPE_CHECKING:
    import pyarrow as pa

NEVER: Final = (1 << 63) - 1
"""``since_ns`` where nothing is left open."""
THREADS_MOST: Final = 8
MEMORY_MIB: Final = 512
"""DuckDB's, for a thread, and twice that for any number of them; the process takes two to four times as much, for Arrow
reads ahead.
"""
SLICE_ROWS: Final = 1 << 23
"""Rows that are sorted at a time: 20 million fill ``MEMORY_MIB`` for two threads."""
BATCH_ROWS: Final = 131_072
"""Rows that are held of a table while it is written."""
_LEG_TYPES: Final = {"what": "int8", "streaming": "bool", "entered": "bool", "unseen": "bool"}
_TEXTS: Final = frozenset(("run", "origin", "topic", "source", "target", "hop"))


def shapes() -> dict[str, pa.Schema]:
    """What is left open: the columns of each of its tables."""
    import pyarrow as pa

    known = {column.name: column.arrow_type() for column in MESSAGES.columns}

    def made(names: tuple[str, ...]) -> pa.Schema:
        kinds = [pa.string() if name in _TEXTS else _LEG_TYPES.get(name, "int64") for name in names]
        return pa.schema(list(zip(names, kinds, strict=True)))

    def of_bronze(names: tuple[str, ...]) -> pa.Schema:
        return pa.schema([(name, known[name]) for name in names])

    return {
        "calls": made(calls.LEG),
        "events": of_bronze(events.EVENT),
        "jobs": of_bronze(jobs.JOB),
        "hops": made(calls.HOP),
    }


class Tables:
    """The tables of some rows; made by ``tables_of``."""

    def __init__(self, base: Any) -> None:
        self._base = base
        self._made: set[str] = set()

    def rows(self, table: str, dates: Sequence[str] | None = None) -> pa.Table:
        """The rows of a gold table (of some dates), in its schema."""
        return self.batches(table, dates).read_all()

    def batches(self, table: str, dates: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """The same bit by bit; to be read before anything else is asked for."""
        query = catalogue.query(table)
        if dates is not None:
            query = f"{query} WHERE dt::VARCHAR IN ({', '.join(map(repr, dates)) or 'NULL'})"
        rows = self._found(query).to_arrow_reader(BATCH_ROWS)
        return rows.cast(table_named(table).arrow(partition=True))

    def left_open(self) -> dict[str, pa.Table]:
        """What is left open, in ``shapes``."""
        return {
            name: self._found(catalogue.OPEN[name]).to_arrow_table().select(shape.names).cast(shape)
            for name, shape in shapes().items()
        }

    def _found(self, query: str) -> Any:
        self._step(query)
        return self._base.sql(query)

    def _step(self, query: str) -> None:
        """Make the steps and views that a query names, and those that these name."""
        for name, made in (catalogue.STEPS | catalogue.VIEWS).items():
            if name not in self._made and re.search(rf"\b{name}\b", query):
                self._made.add(name)
                if name in catalogue.SLICED:
                    self._slice_by_slice(name, made)
                    continue
                self._step(made)
                kind = "VIEW" if name in catalogue.VIEWS else "TABLE"
                self._base.execute(f"CREATE TEMP {kind} {name} AS {made}")

    def _slice_by_slice(self, name: str, made: str) -> None:
        source, before = catalogue.SLICED[name]
        self._made.add(before)
        self._step(f"{catalogue.STEPS[before]} {made}")
        ((rows,),) = self._base.sql(f"SELECT count(*) FROM {source}").fetchall()
        count = -(-rows // SLICE_ROWS) or 1
        self._base.execute(f"SET VARIABLE slices = {count}")
        for each in range(count):
            self._base.execute(f"SET VARIABLE slice = {each}")
            self._base.execute(f"CREATE OR REPLACE TEMP TABLE {before} AS {catalogue.STEPS[before]}")
            self._base.execute(
                f"INSERT INTO {name} {made}" if each else f"CREATE TEMP TABLE {name} AS {made}"
            )
        self._base.execute(f"DROP TABLE {before}")


@contextmanager
def tables_of(
    bronze: Any,
    *,
    before: Mapping[str, pa.Table] | None = None,
    since_ns: int = NEVER,
    threads: int | None = None,
) -> Iterator[Tables]:
    """The gold tables of rows of bronze, valid inside.

    Args:
        bronze: an Arrow table or data set.
        before: what an earlier batch left open; None: nothing.
        since_ns: what is open and not older is left open.
        threads: of DuckDB; default: one a core, up to ``THREADS_MOST``.

    Raises:
        Missing: DuckDB is not installed.
        PipelineError: inside, too: a file is gone, the disk is full, or there is not enough memory.
    """
    with _opened(threads) as base:
        base.execute(f"SET VARIABLE since_ns = {since_ns}")
        base.register("bronze", bronze)
        for name, shape in shapes().items():
            base.register(f"before_{name}", shape.empty_table() if before is None else before[name])
        yield Tables(base)


def added(table: str, apart: pa.Table) -> pa.Table:
    """The rows of a table of sums (``usage.ADDED``) that was made in parts, as one.

    Raises:
        PipelineError: as of ``tables_of``.
    """
    with _opened() as base:
        base.register("apart", apart)
        return base.sql(usage.ADDED[table]).to_arrow_table().select(apart.column_names).cast(apart.schema)


@contextmanager
def _opened(threads: int | None = None) -> Iterator[Any]:
    """DuckDB with the macros, a bound of memory, and a place for what is beyond it."""
    try:
        import duckdb
    except ImportError:
        raise Missing(lacking("duckdb")) from None
    import pyarrow as pa

    threads = threads or min(os.cpu_count() or 1, THREADS_MOST)
    with tempfile.TemporaryDirectory(prefix="headgate-tables-") as spill:  # private, as the warehouse is
        config: dict[str, Any] = {
            "temp_directory": spill,
            "autoinstall_known_extensions": False,
            "threads": threads,
            "memory_limit": f"{min(2, threads) * MEMORY_MIB}MiB",
        }
        try:
            with duckdb.connect(config=config) as base:
                base.execute("SET timezone = 'UTC'")
                base.execute("SET preserve_insertion_order = false")
                # its bar goes to standard output, terminal or not
                base.execute("SET enable_progress_bar_print = false")
                # it cannot count rows of Arrow, takes them for few, and would hash them instead of the other side
                base.execute("SET disabled_optimizers = 'build_side_probe_side'")
                for macro in sql.MACROS:
                    base.execute(macro)
                yield base
        except (
            duckdb.Error,
            pa.ArrowException,
            OSError,
        ) as error:  # the latter where rows are read bit by bit
            raise PipelineError(f"DuckDB: {delta.brief(error)}") from error
