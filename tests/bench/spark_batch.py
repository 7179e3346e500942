"""`headgate pipeline batch` from journal to tables, as a person runs it, on journals that real sessions wrote: a tree
of four, a gateway, NFP and oslo, several runs, refusals among what passed (tests/live/captured.py). Once from nothing,
as a command, and once more in a session that has done it before, as a stream's steps are.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gateway.pipeline.bronze import ingest
from gateway.pipeline.gold import batch
from gateway.pipeline.warehouse import Warehouse
from tests.bench.spark_tables import run
from tests.bench.spark_works import missing, sessions
from tests.bench.targets import Row
from tests.bench.works import Bench, say
from tests.live.captured import captured

RUNS = 5
TIMES = 100
"""What each part of a run does, so often: 15 000 rows."""
RANKS = 4


def batches(bench: Bench) -> list[Row]:
    """`pipeline batch` of 75 000 rows of mixed sessions, from the command to its end; and in a session that is warm."""
    keys = ("spark_batch", "spark_batch_warm")
    if why := missing():
        return [Row(key, note=why) for key in keys]
    with tempfile.TemporaryDirectory(prefix="hg-", dir="/tmp") as place:  # sockets need a short path
        folder = Path(place)
        journal, house = str(folder / "journal"), folder / "warehouse"
        for number in range(RUNS):
            captured(folder, times=TIMES, ranks=RANKS)
            say(f"session {number + 1} of {RUNS} is recorded")
        cold = []
        for _turn in range(bench.rounds + 1):  # the first one keeps the classes of the JVM
            shutil.rmtree(house, ignore_errors=True)
            cold.append(run("batch", "--journal", journal, "--warehouse", str(house)))
            say(f"cold {cold[-1]}")
        rows = Warehouse(house).scan("messages", ["seq"]).num_rows
        warm = _warm(journal, house, bench.rounds)
        say(f"warm {warm}")
    first, later = (
        Row(key, raw={"rows": rows, "cold": cold, "warm": warm}, note=f"{rows:,} rows") for key in keys
    )
    first.settle([each["s"] for each in cold[1:]])
    first.figures = {
        "headgate": f"CPU {min(each['cpu'] for each in cold[1:]):.1f} s; the first time {cold[0]['s']:.1f} s"
    }
    later.settle(warm)
    return [first, later]


def _warm(journal: str, house: Path, rounds: int) -> list[float]:
    """Seconds of journal to tables, each into a new warehouse; one goes before."""
    taken = []
    with sessions("local[2]") as spark:
        for _turn in range(rounds + 1):
            shutil.rmtree(house, ignore_errors=True)
            began = time.perf_counter()
            ingest(spark, journal, Warehouse(house))
            batch(spark, Warehouse(house))
            taken.append(round(time.perf_counter() - began, 2))
    return taken[1:]


WORKS: dict[str, Callable[[Bench], list[Row]]] = {"spark_batch": batches}
