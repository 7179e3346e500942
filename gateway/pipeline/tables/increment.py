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

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
    """What is carried, on disk: ``DIR/NUMBER/{calls,events,jobs,hops}.parquet``.

    Args:
        directory: made when something is kept.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def numbers(self) -> list[int]:
        """Behind which additions to bronze something is kept, in order."""
        names = [path.name for path in self.directory.iterdir()] if self.directory.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal())

    def behind(self, number: int) -> Carried:
        """What was open behind an addition to bronze."""
        import pyarrow.parquet as pq

        earlier = [each for each in self.numbers() if each <= number]
        if not earlier:
            return nothing()
        place = self.directory / str(earlier[-1])
        return {
            name: pq.read_table(place / f"{name}.parquet").select(shape.names).cast(shape)
            for name, shape in shapes().items()
        }

    def save(self, number: int, carried: Carried) -> None:
        """Keep what is open behind an addition, whole or not at all."""
        import pyarrow.parquet as pq

        place, fresh = self.directory / str(number), self.directory / f".{number}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for name, rows in carried.items():
            pq.write_table(rows, fresh / f"{name}.parquet", compression="zstd")
        shutil.rmtree(place, ignore_errors=True)
        fresh.rename(place)

    def forget(self, before: int) -> None:
        """Delete what nobody who begins behind an addition needs."""
        for old in [each for each in self.numbers() if each <= before][:-1]:
            shutil.rmtree(self.directory / str(old), ignore_errors=True)
