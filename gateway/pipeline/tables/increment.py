"""What one step of a stream's gold adds to each table, and what it leaves open for the next one.

Rows go into gold when they are settled: a call when it has ended, its tag was taken, or it is older than ``EXPIRES_S``;
a job when its final status passed, or nothing was heard of it for as long. What is open until then is *carried*
(``sql.OPEN``), kept by the number of the last addition to bronze (``Kept``): a step that is done again starts from the
same. It is made in this process (``inprocess``): what comes in seconds is little, and Spark takes longer to begin.

Tables of sums (``traffic``, ``rpc_latency``, ``errors`` and the like) get several rows for one key this way: they add
up, percentiles included, and ``batch`` makes one row of them. ``order_check`` compares two ends of a broker that need
not lie in one step: only ``batch`` makes it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from broker.journal.stores import is_url
from gateway import delta
from gateway.pipeline.schema import GOLD
from gateway.pipeline.tables.inprocess import shapes, tables_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

    Carried = Mapping[str, pa.Table]
    """What is open, by the names of ``sql.OPEN``."""

EXPIRES_S: Final = 86_400.0
"""A call or job that is open for so long goes into gold as it is; what comes later has no request."""
TABLES: Final = tuple(table.name for table in GOLD if table.name != "order_check")


def nothing() -> Carried:
    """What the first step starts from."""
    return {name: shape.empty_table() for name, shape in shapes().items()}


def open_since(newest_ns: int) -> int:
    """What is open and older than this, when ``newest_ns`` is the time of the last record, is waited for no more."""
    return newest_ns - int(EXPIRES_S * 1e9)


def newest_ns(rows: ds.Dataset) -> int:
    """The time of the last one of some rows of bronze; 0 without any."""
    import pyarrow.compute as pc

    times = (each["ts_ns"] for each in rows.scanner(columns=["ts_ns"]).to_batches())
    return max((pc.max(each).as_py() for each in times if len(each)), default=0)


def increment(rows: ds.Dataset, before: Carried) -> tuple[dict[str, pa.Table], Carried]:
    """What ``rows`` of bronze add to each table, and what is open behind them."""
    with tables_of(rows, before=before, since_ns=open_since(newest_ns(rows))) as tables:
        return {name: tables.rows(name) for name in TABLES}, tables.left_open()


class Kept:
    """What is carried, beside the tables: ``PLACE/NUMBER/{calls,events,jobs,hops}.parquet``. A number counts once it
    has all of them, so that what was killed while it kept them left nothing.

    Args:
        place: directory, or the URL of one in a store; made when something is kept.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._system, self._folder = delta.filesystem(place)

    def numbers(self) -> list[int]:
        """Behind which additions to bronze something is kept, in order.

        Raises:
            TableError: the store does not answer, or the disk refuses.
        """
        with delta.plain_errors(self._place):
            files = delta.listed(self._system, self._folder, recursive=True)
        names = Counter(PurePath(each.path).parent.name for each in files if each.extension == "parquet")
        whole = len(shapes())
        return sorted(int(name) for name, count in names.items() if name.isdecimal() and count == whole)

    def behind(self, number: int) -> Carried:
        """What was open behind an addition to bronze.

        Raises:
            TableError: the store does not answer, or the disk refuses.
        """
        import pyarrow.parquet as pq

        earlier = [each for each in self.numbers() if each <= number]
        if not earlier:
            return nothing()
        with delta.plain_errors(self._place):
            return {
                name: pq.read_table(self._path(earlier[-1], name), filesystem=self._system)
                .select(shape.names)
                .cast(shape)
                for name, shape in shapes().items()
            }

    def save(self, number: int, carried: Carried) -> None:
        """Keep what is open behind an addition, each table whole or not at all.

        Raises:
            TableError: the store does not answer, or the disk refuses.
        """
        import pyarrow.parquet as pq

        with delta.plain_errors(self._place):
            if not is_url(self._place):  # a store needs no folders
                self._system.create_dir(f"{self._folder}/{number}", recursive=True)
            for name, rows in carried.items():
                path = self._path(number, name)
                pq.write_table(rows, f"{path}.part", compression="zstd", filesystem=self._system)
                self._system.move(f"{path}.part", path)

    def forget(self, before: int) -> None:
        """Delete what nobody who begins behind an addition needs, as far as that can be done."""
        for old in [each for each in self.numbers() if each <= before][:-1]:
            with contextlib.suppress(OSError):
                self._system.delete_dir(f"{self._folder}/{old}")

    def _path(self, number: int, name: str) -> str:
        return f"{self._folder}/{number}/{name}.parquet"
