"""The pipeline: segments to bronze, what the source decodes, the age of what a stream shows.

Sessions of one core, so that a rate is that of a core; the first turn of each warms up and does not count. A stream has
two, and is looked at when it has run for five minutes. Files are in the page cache. Requests, responses and events of
2000 clients, 164 bytes a record.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from gateway.pipeline import schema, session, spans
from gateway.pipeline.arrow import Decoder
from gateway.pipeline.bronze import ingest
from gateway.pipeline.stream import Stream
from gateway.pipeline.warehouse import BRONZE, Run, Warehouse
from tests.bench.journal_read import CLIENTS, DISTINCT_BLOCKS, ROWS_PER_BLOCK, traffic
from tests.bench.spoken import Spoken
from tests.bench.targets import Row
from tests.bench.works import Bench, say
from tests.live.segments import block, header, name_of, peer

SEGMENTS = 8
REPEATS = 12
"""Each distinct block stands so often in a segment; 2.4 million records,
for what a query costs at its begin shall not decide."""
FOUR = ("seq", "ts", "topic", "userid")
WARM = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
RATE = 20_000
"""Messages a second of the stream."""
WARM_S = 300.0
"""So long a stream has run before it is looked at, as one does for days: the JVM compiles for minutes. What it is
behind by then and has not caught up with counts."""
STREAM_S = 120.0
"""So long it is looked at: some eight steps of gold; 1.4 GB of journal in all."""


def missing() -> str:
    """Why nothing can be measured; empty when it can."""
    return session.java_missing()


@contextmanager
def sessions(master: str, **conf: str) -> Iterator[Any]:
    made = session.session(master, "headgate bench", {**WARM, **conf})
    try:
        yield made
    finally:
        session.close(made)


def journal(folder: Path) -> int:
    """Eight segments; returns the records in them that become rows."""
    dice = Random(6)
    distinct = [traffic(dice) for _ in range(DISTINCT_BLOCKS)]
    who = block([peer(n, f"client-{n}") for n in range(1, CLIENTS + 1)], unnumbered=True)
    rows = DISTINCT_BLOCKS * REPEATS * ROWS_PER_BLOCK
    for number in range(SEGMENTS):
        first = number * rows
        with (folder / name_of("rank0", first)).open("wb") as file:
            file.write(header(first) + who)
            numbers = range(first, first + rows, ROWS_PER_BLOCK)
            file.writelines(block(each, at) for each, at in zip(distinct * REPEATS, numbers, strict=True))
    return SEGMENTS * rows


def turns(rounds: int, turn: Callable[[], None]) -> list[float]:
    """Seconds of each; one more goes before."""
    taken = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        turn()
        taken.append(time.perf_counter() - began)
    return taken[1:]


def rates(bench: Bench) -> list[Row]:
    """Spark: segments to bronze on one core; and what the data source decodes, of all columns and of four."""
    found = []
    with tempfile.TemporaryDirectory(prefix="hg-bench-") as place:
        folder = Path(place) / "journal"
        folder.mkdir()
        rows = journal(folder)
        works: dict[str, Callable[[], None]] = {
            "spark_decode": lambda: decode(folder, schema.MESSAGES.names, rows),
            "spark_decode_four": lambda: decode(folder, FOUR, rows),
        }
        for key, turn in works.items():
            found.append(rate(key, turns(bench.rounds, turn), rows))
        if why := missing():
            return [Row("spark_ingest", note=why), *found]
        with sessions("local[1]") as spark:
            house = Path(place) / "warehouse"
            taken = turns(bench.rounds, lambda: convert(spark, folder, house, rows))
            found.insert(0, rate("spark_ingest", taken, rows))
    return found


def rate(key: str, taken: list[float], rows: int) -> Row:
    row = Row(key, raw={"rows": rows, "seconds": taken})
    row.settle([rows / each / 1e6 for each in taken])
    row.figures = {"headgate": f"{rows:,} rows in {median(taken):.2f} s"}
    say(f"{key:<14} {row.value:.2f} M rows/s")
    return row


def decode(folder: Path, names: Sequence[str], rows: int) -> None:
    """As a task of the source does, but for handing them to Spark."""
    found = 0
    for span in spans.whole(str(folder)):
        decoder = Decoder(names)
        decoder.begin(span)
        for blocks in spans.gathered(spans.blocks(span)):
            assert not isinstance(blocks, spans.Loss)
            found += decoder.batch(blocks).num_rows
    assert found == rows, "the source gives every row"


def convert(spark: Any, folder: Path, place: Path, rows: int) -> None:
    """All segments into a warehouse that is new."""
    shutil.rmtree(place, ignore_errors=True)
    run = ingest(spark, folder, Warehouse(place))
    assert run.rows_out == rows


# ---------------------------------------------------------------- a stream


class Speaker(threading.Thread):
    """Appends blocks to a segment, at a rate, dated when they are written."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="speaker", daemon=True)
        self._file = path.open("wb", buffering=0)
        self._spoken = Spoken()
        self._file.write(self._spoken.begin())
        self._leave = threading.Event()

    def run(self) -> None:
        began = time.monotonic()
        while not self._leave.wait(max(0.0, began + self._spoken.written / RATE - time.monotonic())):
            self._file.write(self._spoken.block(time.time_ns(), 10**9 // RATE))

    def stop(self) -> None:
        self._leave.set()
        self.join()
        self._file.close()


def freshness(bench: Bench) -> list[Row]:
    """Spark: how old the oldest message of a batch is when it can be read, at 20 000 messages/s; gold beside it."""
    keys = {"stream": "spark_freshness", "gold": "spark_gold"}
    if why := missing():
        return [Row(key, note=why) for key in keys.values()]
    ages: dict[str, list[float]] = {"stream": [], "gold": []}
    steps: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="hg-bench-") as place, sessions("local[2]") as spark:
        folder, warehouse = Path(place) / "journal", Warehouse(Path(place) / "warehouse")
        folder.mkdir()

        def told(run: Run) -> None:
            first = 1 + max((step.batch_id for step in steps if step.job == run.job), default=-1)
            oldest = min(_oldest_s(warehouse, number) for number in range(first, run.batch_id + 1))
            steps.append(run)
            ages[run.job].append(time.time() - oldest)
            say(f"{run.job} {run.batch_id}: {run.rows_in:,} rows, the oldest {ages[run.job][-1]:.1f} s old")

        def go_on(seconds: float) -> None:
            until = time.monotonic() + seconds
            while running.active and time.monotonic() < until:
                time.sleep(0.2)

        speaker = Speaker(folder / name_of("rank0", 0))
        speaker.start()
        running = Stream(spark, folder, warehouse, trigger_s=1.0, on_run=told)
        try:
            go_on(WARM_S)
            warm = {job: len(each) for job, each in ages.items()}
            go_on(STREAM_S)
        finally:
            speaker.stop()
            running.stop()
        running.check()
    rows = []
    for job, key in keys.items():
        row = Row(key, raw={"ages": ages[job], "warm": warm[job]})
        row.settle(ages[job][warm[job] :])
        row.note = "" if row.value is not None else "none ended once it was warm"
        rows.append(row)
    rows[0].raw["steps"] = [run.as_json() for run in steps]
    return rows


def _oldest_s(warehouse: Warehouse, number: int) -> float:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    bronze = warehouse.at("messages")
    paths = [
        Path(bronze.place) / path
        for note in bronze.notes(number - 1, BRONZE, number)
        for path in note["files"]
    ]
    tables = [pq.read_table(path, columns=["ts_ns"], partitioning=None) for path in paths]
    return min((pc.min(each["ts_ns"]).as_py() for each in tables), default=time.time_ns()) / 1e9


WORKS: dict[str, Callable[[Bench], list[Row]]] = {
    "spark_rates": rates,
    "spark_freshness": freshness,
}
