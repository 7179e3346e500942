"""Batches of rows -> sums per key, so that what is held is as small as the answer, not as the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from gateway.history.files import arrow
from gateway.history.scope import Scope


def stepped(table: Any, scope: Scope, step: int) -> Any:
    """The batch with a column ``at``: the step of the chart that each row's ``us`` lies in, from 0.

    A window that began before the chart does and reaches into it is of its first step.
    """
    compute = arrow("compute")
    behind = compute.subtract(table.column("us"), scope.origin(step) * 10**6)
    behind = compute.max_element_wise(behind, 0)
    return table.append_column("at", compute.divide(behind, step * 10**6))


def grouped(
    batches: Iterable[Any], keys: Sequence[str], sums: Sequence[str], most: Sequence[str] = ()
) -> list[Any]:
    """One dict per key: ``keys``, the sums of ``sums`` and the largest of ``most`` (None: never said)."""
    pa = arrow()
    wanted = [(name, "sum") for name in sums] + [(name, "max") for name in most]
    names = [*keys, *sums, *most]

    def fold(table: Any) -> Any:
        folded = table.group_by(list(keys), use_threads=False).aggregate(wanted)
        columns = {name: folded.column(name) for name in keys}
        for name, how in wanted:
            columns[name] = folded.column(f"{name}_{how}")
        return pa.table(columns)

    parts: list[Any] = []
    for batch in batches:
        parts.append(fold(_typed(batch.select(names), sums, most)))
        if len(parts) >= 64:
            parts = [fold(_joined(parts))]
    rows: list[Any] = fold(_joined(parts)).to_pylist() if parts else []
    return rows


def _typed(table: Any, sums: Sequence[str], most: Sequence[str]) -> Any:
    """Columns of numbers that a file lacks have no type: as int64 they can be added."""
    pa = arrow()
    for name in (*sums, *most):
        at = table.schema.get_field_index(name)
        if pa.types.is_null(table.column(at).type):
            table = table.set_column(at, name, table.column(at).cast(pa.int64()))
    return table


def _joined(parts: list[Any]) -> Any:
    return arrow().concat_tables(parts, promote_options="permissive")


class Newest:
    """Keeps the ``count`` newest rows of the batches it sees."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept: list[Any] = []
        self._rows = 0

    def add(self, batch: Any) -> None:
        """Look at one batch; it has a column ``us``."""
        self._kept.append(batch)
        self._rows += batch.num_rows
        if self._rows > 4 * self._count + 1024:
            table = _joined(self._kept)
            best = arrow("compute").select_k_unstable(table, self._count, [("us", "descending")])
            self._kept = [table.take(best)]
            self._rows = self._count

    def rows(self) -> list[dict[str, Any]]:
        """Newest first; ``ts`` is the time in seconds since 1970, in place of ``us``."""
        if not self._kept:
            return []
        table = _joined(self._kept)
        order = arrow("compute").sort_indices(table, [("us", "descending")])
        return [
            {"ts": row.pop("us") / 1e6, **row} for row in table.take(order).slice(0, self._count).to_pylist()
        ]


def counted(table: Any) -> Any:
    """The batch with a column ``one`` that counts its rows."""
    return table.append_column("one", arrow().array([1] * table.num_rows, arrow().int64()))


def series(
    totals: Counter[str], cells: Counter[tuple[str, int]], length: int, most: int
) -> list[dict[str, Any]]:
    """Lines of a chart, the largest first: of ``most`` names, and of all others together as ``other``."""
    top = [name for name, _ in totals.most_common(most)]
    sums = {name: [0] * length for name in top}
    for (name, at), n in cells.items():
        sums.setdefault(name if name in top else "other", [0] * length)[at] += n
    return [{"name": name, "total": sum(values), "n": values} for name, values in sums.items()]


def spread(rows: Iterable[dict[str, Any]], value: str, length: int, *, missing: Any = 0) -> list[Any]:
    """The values of rows with ``at``, one per step."""
    values = [missing] * length
    for row in rows:
        if row[value] is not None and 0 <= row["at"] < length:
            values[row["at"]] = row[value]
    return values
