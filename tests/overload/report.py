"""The table of docs/reliability.md: a row for each load, a column for each way in, and what it cost the victims."""

from collections import defaultdict
from collections.abc import Iterable

from tests.overload.figures import MEMORY_MIB, P99_S, WORST_S, Figures
from tests.overload.table import WAYS

MARKS = "<!-- overload table: begin -->", "<!-- overload table: end -->"
OTHERS = "others"
"""The column of the ways that have loads of their own."""


def markdown(results: Iterable[Figures]) -> str:
    """Return the table without its marks. A cell has p99 and worst in ms, of several seeds the worst, and in bold what
    is below a bar.
    """
    rows: dict[str, dict[str, list[Figures]]] = defaultdict(lambda: defaultdict(list))
    results = list(results)
    for figures in results:
        way, _, name = figures.load.partition(".")
        if way in WAYS and name:
            rows[name][way].append(figures)
        else:
            rows[figures.load][OTHERS].append(figures)
    columns = [way for way in (*WAYS, OTHERS) if any(way in row for row in rows.values())]
    lines = [["load", *columns], ["---", *("---:" for _ in columns)]]
    lines += [[name, *(_cell(row[way]) for way in columns)] for name, row in rows.items()]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", _summary(results)])


def _cell(some: list[Figures]) -> str:
    if not some:
        return ""
    p99_ms = max(figures.p99_ms for figures in some)
    worst_ms = max(op.worst_ms for figures in some for op in figures.ops.values())
    text = f"{p99_ms:.0f} / {worst_ms:.0f}"
    return f"**{text}**" if any(figures.below() for figures in some) else text


def _summary(results: list[Figures]) -> str:
    seeds = sum(bool(figures.seed) for figures in results)
    held = sum(not figures.below() for figures in results)
    ended, lost = sum(len(each.ended) for each in results), sum(each.lost for each in results)
    failed = sum(sum(each.failed.values()) for each in results)
    kept_mib = max(each.grown_mib for each in results)
    return (
        f"{len(results)} runs, {seeds} of them drawn by seed. The bars: p99 {P99_S * 1000:.0f} ms, worst "
        f"{WORST_S * 1000:.0f} ms, memory back to within {MEMORY_MIB:.0f} MiB, nothing ended, lost or failed. {held} "
        f"runs reach all of them. Links of innocents ended: {ended}; events lost: {lost}; calls failed: {failed}; the "
        f"most that a process kept: {kept_mib:.0f} MiB."
    )
