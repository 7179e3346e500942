"""Gold tables of some rows in this process, by DuckDB (``sql``): no JVM, and a fraction of a second where Spark takes
several to begin. What does not fit into memory goes to temporary files.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from gateway import delta
from gateway.pipeline.errors import Missing, PipelineError
from gateway.pipeline.schema import MESSAGES, table_named
from gateway.pipeline.tables import sql

if TYPE_CHECKING:
    import pyarrow as pa

NEVER: Final = (1 << 63) - 1
"""``since_ns`` where nothing is left open."""
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
        "calls": made(sql.LEG),
        "events": of_bronze(sql.EVENT),
        "jobs": of_bronze(sql.JOB),
        "hops": made(sql.HOP),
    }


class Tables:
    """The tables of some rows; made by ``tables_of``."""

    def __init__(self, base: Any) -> None:
        self._base = base
        self._made: set[str] = set()
        for macro in sql.MACROS:
            base.execute(macro)

    def rows(self, table: str, dates: Sequence[str] | None = None) -> pa.Table:
        """The rows of a gold table (of some dates), in its schema."""
        query = sql.query(table)
        if dates is not None:
            query = f"{query} WHERE dt::VARCHAR IN ({', '.join(map(repr, dates)) or 'NULL'})"
        return self._found(query).cast(table_named(table).arrow(partition=True))

    def left_open(self) -> dict[str, pa.Table]:
        """What is left open, in ``shapes``."""
        return {
            name: self._found(sql.OPEN[name]).select(shape.names).cast(shape)
            for name, shape in shapes().items()
        }

    def _found(self, query: str) -> pa.Table:
        self._step(query)
        return self._base.sql(query).to_arrow_table()

    def _step(self, query: str) -> None:
        """Make the steps that a query names, and those that these name."""
        for name in sql.STEPS:
            if name not in self._made and re.search(rf"\b{name}\b", query):
                self._made.add(name)
                self._step(sql.STEPS[name])
                kind = "VIEW" if name in sql.VIEWS else "TABLE"
                self._base.execute(f"CREATE TEMP {kind} {name} AS {sql.STEPS[name]}")


@contextmanager
def tables_of(
    bronze: Any,
    *,
    jobs: Any = None,
    before: Mapping[str, pa.Table] | None = None,
    since_ns: int = NEVER,
    threads: int | None = None,
) -> Iterator[Tables]:
    """The gold tables of rows of bronze, valid inside.

    Args:
        bronze: an Arrow table or data set.
        jobs: rows of bronze that reach further, as NFP's jobs do; default: ``bronze``.
        before: what an earlier batch left open; None: nothing.
        since_ns: what is open and not older is left open.
        threads: of DuckDB; default: one a core.

    Raises:
        Missing: DuckDB is not installed.
        PipelineError: inside, too: a file is gone, the disk is full, or there is not enough memory.
    """
    try:
        import duckdb
    except ImportError:
        raise Missing("duckdb is not installed: pip install 'headgate[spark]'") from None
    with tempfile.TemporaryDirectory(prefix="headgate-tables-") as spill:  # private, as the warehouse is
        config: dict[str, Any] = {"temp_directory": spill, "autoinstall_known_extensions": False}
        if threads is not None:
            config["threads"] = threads
        try:
            with duckdb.connect(config=config) as base:
                base.execute("SET timezone = 'UTC'")
                base.execute(f"SET VARIABLE since_ns = {since_ns}")
                base.register("bronze", bronze)
                base.register("reaching", bronze if jobs is None else jobs)
                for name, shape in shapes().items():
                    base.register(f"before_{name}", shape.empty_table() if before is None else before[name])
                yield Tables(base)
        except duckdb.Error as error:
            raise PipelineError(f"DuckDB: {delta.one_line(error)}") from error
