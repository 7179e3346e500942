"""Gold in pieces: the tables of some ranks, made of the rows of these ranks alone, as a task of Spark or in this
process.

What happened at one rank says nothing of another: calls, hops, sequences of events, order and windows of time are a
rank's. So a cluster makes as many pieces at once as there are ranks, and the largest rank takes longest. Of two tables
that is not so:

``user_usage``    a user is at many ranks: its rows are made for each piece and added up by the driver; there are few
``job_outcomes``  a job of NFP is heard of at many ranks, and over more days than other things: a piece of its own, of
                  all ranks, whose rows are few, as those of NFP are
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gateway import delta
from gateway.pipeline.lake import File, dataset
from gateway.pipeline.schema import MESSAGES
from gateway.pipeline.tables import inprocess, usage
from gateway.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

    from gateway.pipeline.lake import Snapshot

JOBS: Final = "job_outcomes"


@dataclass(frozen=True)
class Piece:
    """What a task makes.

    Attributes:
        place: of the warehouse.
        tables: their names, and the dates that are made of each.
        paths: files of bronze.
        ranks: whose rows; none: all.
        since_ns: what is open and not older is left out.
        threads: of DuckDB; None: one a core.
    """

    place: str
    tables: Mapping[str, Sequence[str]]
    paths: Sequence[str]
    ranks: Sequence[int] = ()
    since_ns: int = inprocess.NEVER
    threads: int | None = None

    def bronze(self) -> ds.Dataset:
        """Its rows."""
        import pyarrow.dataset as ds

        rows = dataset(MESSAGES, Warehouse(self.place).table(MESSAGES.name), self.paths)
        return rows.filter(ds.field("rank").isin(self.ranks)) if self.ranks else rows


@dataclass(frozen=True)
class Made:
    """What became of a piece: the files of each table, and rows that the driver adds up."""

    files: Mapping[str, list[File]]
    apart: Mapping[str, pa.Table]


@contextlib.contextmanager
def uncommitted(house: Warehouse) -> Iterator[dict[str, list[File]]]:
    """Files of each table that were written and that no commit has yet; an error deletes those still there."""
    files: dict[str, list[File]] = defaultdict(list)
    try:
        yield files
    except BaseException:
        for name, each in files.items():
            house.discard(name, each)
        raise


def make(piece: Piece, done: Callable[[], None] = lambda: None) -> Made:
    """Make a piece; ``done`` is called behind each table. An error leaves no file.

    Raises:
        PipelineError: a file is gone, or a disk is full.
        TableError: the warehouse takes no files.
    """
    house, apart = Warehouse(piece.place), {}
    with (
        uncommitted(house) as files,
        inprocess.tables_of(piece.bronze(), since_ns=piece.since_ns, threads=piece.threads) as tables,
    ):
        for name, dates in piece.tables.items():
            if name in usage.ADDED:
                apart[name] = tables.rows(name, dates)
            else:
                files[name] = house.write_rows(name, tables.batches(name, dates))
            done()
    return Made(dict(files), apart)


def together(house: Warehouse, made: Iterable[Made], files: dict[str, list[File]]) -> None:
    """Put the files of all pieces into ``files``, as they are made; then those of what is added up.

    Raises:
        PipelineError: as of ``make``.
        TableError: as of ``make``.
    """
    import pyarrow as pa

    apart: dict[str, list[pa.Table]] = defaultdict(list)
    for each in made:
        for name, written in each.files.items():
            files[name] += written
        for name, rows in each.apart.items():
            apart[name].append(rows)
    for name, parts in apart.items():
        files[name] = house.write_rows(name, inprocess.added(name, pa.concat_tables(parts)))


def by_rank(piece: Piece, bronze: Snapshot, count: int) -> list[Piece]:
    """The same in up to ``count`` pieces, each of some ranks and of the files that have rows of them."""
    ranks = ranks_of(bronze, piece.paths)
    return [
        replace(piece, ranks=some, paths=sorted({path for rank in some for path in ranks[rank]}))
        for some in shared_out(ranks, count)
    ]


def ranks_of(bronze: Snapshot, paths: Sequence[str]) -> dict[int, Counter[str]]:
    """Which ranks files have rows of, and how many: read of one column, which is small."""
    import pyarrow.compute as pc

    ranks: dict[int, Counter[str]] = defaultdict(Counter)
    with delta.plain_errors(bronze.place):
        for path in paths:
            for batch in dataset(bronze.known, bronze.place, [path]).scanner(columns=["rank"]).to_batches():
                for each in pc.value_counts(batch["rank"]).to_pylist():
                    ranks[each["values"]][path] += each["counts"]
    return dict(ranks)


def shared_out(ranks: Mapping[int, Counter[str]], count: int) -> list[list[int]]:
    """The ranks in up to ``count`` groups of about as many rows.

    >>> from collections import Counter
    >>> shared_out({0: Counter(a=9), 1: Counter(a=4), 2: Counter(b=4), 3: Counter(b=2)}, 2)
    [[0], [1, 2, 3]]
    """
    groups: list[list[int]] = [[] for _ in range(min(count, len(ranks)))]
    rows = [0] * len(groups)
    for rank in sorted(ranks, key=lambda each: (-ranks[each].total(), each)):
        least = rows.index(min(rows))
        groups[least].append(rank)
        rows[least] += ranks[rank].total()
    return [sorted(each) for each in groups]
