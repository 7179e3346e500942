"""Batches of rows -> sums per key, so that what is held is as small as the answer, not as the table; and what answers
have of them: lines of a chart, tables of the largest, the newest rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.history.files import arrow
from gateway.history.scope import Scope

ROWS: Final = "rows"
"""Names the number of rows among the sums of ``grouped``."""
Row = dict[str, Any]


def stepped(batches: Iterable[Any], scope: Scope, step: int) -> Iterator[Any]:
    """Batches with a column ``at``: the step of the chart that each row's ``us`` lies in, from 0.

    A window that began before the chart does and reaches into it is of its first step.
    """
    compute = arrow("compute")
    for batch in batches:
        behind = compute.subtract(batch.column("us"), scope.origin(step) * 10**6)
        behind = compute.max_element_wise(behind, 0)
        yield batch.append_column("at", compute.divide(behind, step * 10**6))


def grouped(
    batches: Iterable[Any], keys: Sequence[str], sums: Sequence[str], most: Sequence[str] = ()
) -> list[Row]:
    """One dict per key: ``keys``, the sums of ``sums`` and the largest of ``most`` (None: never said)."""
    pa = arrow()
    wanted = [(name, "sum") for name in sums] + [(name, "max") for name in most]

    def fold(table: Any) -> Any:
        folded = table.group_by(list(keys), use_threads=False).aggregate(wanted)
        columns = {name: folded.column(name) for name in keys}
        for name, how in wanted:
            columns[name] = folded.column(f"{name}_{how}")
        return pa.table(columns)

    parts: list[Any] = []
    for batch in batches:
        if ROWS in sums:
            batch = batch.append_column(ROWS, pa.array([1] * batch.num_rows, pa.int64()))
        parts.append(fold(_typed(batch.select([*keys, *sums, *most]), sums, most)))
        if len(parts) >= 64:
            parts = [fold(_joined(parts))]
    rows: list[Row] = fold(_joined(parts)).to_pylist() if parts else []
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

    def seen(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The same batches, which have a column ``us``, looked at."""
        for batch in batches:
            self._kept.append(batch)
            self._rows += batch.num_rows
            if self._rows > 4 * self._count + 1024:
                table = _joined(self._kept)
                best = arrow("compute").select_k_unstable(table, self._count, [("us", "descending")])
                self._kept = [table.take(best)]
                self._rows = self._count
            yield batch

    def rows(self) -> list[Row]:
        """Newest first; ``ts`` is the time in seconds since 1970, in place of ``us``."""
        if not self._kept:
            return []
        table = _joined(self._kept)
        order = arrow("compute").sort_indices(table, [("us", "descending")])
        return [
            {"ts": row.pop("us") / 1e6, **row} for row in table.take(order).slice(0, self._count).to_pylist()
        ]


def spread(rows: Iterable[Row], value: str, length: int, *, missing: Any = 0) -> list[Any]:
    """The sums of rows with ``at``, one per step; ``missing`` where no row has a value."""
    values = [missing] * length
    for row in rows:
        if row[value] is not None and 0 <= row["at"] < length:
            values[row["at"]] = (values[row["at"]] or 0) + row[value]
    return values


def series(
    rows: Iterable[Row], name: Callable[[Row], str], sums: Mapping[str, str], length: int, most: int
) -> list[Row]:
    """Lines of a chart of rows with ``at``, the largest first: of ``most`` names, and of all others as ``other``.

    Args:
        rows: as ``grouped`` gives them.
        name: of the line that a row is of.
        sums: what a line has -> the column that it is the sum of, per step; the first one says which lines are largest.
        length: how many steps.
        most: lines with a name.
    """
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(name(row), []).append(row)
    first = next(iter(sums.values()))
    totals = {each: sum(row[first] or 0 for row in some) for each, some in by_name.items()}
    ranked = sorted(totals, key=lambda each: -totals[each])
    lines = {each: by_name[each] for each in ranked[:most]}
    if rest := [row for each in ranked[most:] for row in by_name[each]]:
        lines["other"] = [*lines.get("other", ()), *rest]  # a line may have that name, too
    return [
        {
            "name": each,
            "total": sum(row[first] or 0 for row in some),
            **{told: spread(some, column, length) for told, column in sums.items()},
        }
        for each, some in lines.items()
    ]


def ranked(
    rows: Iterable[Row], keys: Sequence[str], sums: Mapping[str, str], limit: int | None = None
) -> list[Row]:
    """One dict per key: ``keys``, and by name what it is the sum of (``sums``); largest in the first of these first."""
    by_key: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        entry = by_key.setdefault(key, {**dict(zip(keys, key, strict=True)), **dict.fromkeys(sums, 0)})
        for name, column in sums.items():
            entry[name] += row[column] or 0
    first = next(iter(sums))
    return sorted(by_key.values(), key=lambda entry: -entry[first])[:limit]
