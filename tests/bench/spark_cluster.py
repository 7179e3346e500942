"""Two workers of a standalone cluster, each of one core, against one: a day's journal into bronze, bronze into gold.

Workers are processes of this machine, so it has to have a core for each, and one for the driver: what it gives to two
processes that share nothing is measured beside it, and is the most that two workers can be in seconds. What a machine
that is busy says less wrong is CPU: that of the driver and of the worker that had most of it is what a job takes where
each has a core, so a second figure is made of that.
"""

import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.pipeline.bronze import bring, ingest, write
from gateway.pipeline.gold import batch
from gateway.pipeline.warehouse import Warehouse
from tests.bench.processes import command, descendants
from tests.bench.spark_works import missing, sessions
from tests.bench.spoken import day
from tests.bench.targets import Row
from tests.bench.works import Bench, say
from tests.live.cluster import WORKER, cluster

ROWS = int(os.environ.get("HEADGATE_BENCH_CLUSTER_MROWS", "20")) * 1_000_000
RANKS = 4
FLOOR_ROWS = 1_000_000
CONF = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
Taken = dict[str, Any]
JOBS: dict[str, Callable[[Any, str, Warehouse], Any]] = {
    "ingest": ingest,
    "batch": lambda spark, _journal, warehouse: batch(spark, warehouse),
}


def scaling(bench: Bench) -> list[Row]:
    """Spark: ingest and batch of a day with one worker of a cluster and with two, each of one core."""
    keys = {"ingest": "spark_scaling", "batch": "spark_scaling_gold"}
    if why := missing():
        return [Row(key, note=why) for key in keys.values()]
    taken: dict[int, dict[str, Taken]] = {}
    with tempfile.TemporaryDirectory(prefix="hg-bench-") as place:
        small = Path(place) / "small"
        day(small, FLOOR_ROWS, RANKS)
        most = machine(str(small), place)
        say(f"two processes that share nothing, vs one: {most:.2f} x")
        journal = Path(place) / "journal"
        rows = day(journal, ROWS, RANKS)
        with cluster(Path(place)) as (url, _master):
            for workers in (2, 1):
                taken[workers] = _turn(url, workers, str(journal), str(small), place)
                say(f"{workers} worker(s), {rows:,} rows: {taken[workers]}, load {os.getloadavg()[0]:.1f}")
    found = []
    for job, key in keys.items():
        one, two = (taken[workers][job] for workers in (1, 2))
        found.append(Row(key, raw={"rows": rows, "taken": taken, "machine": most}))
        found[-1].settle([one["s"] / two["s"]])
        cpu = _longest(one) / _longest(two)
        text = f"{two['s']} s, one worker {one['s']} s; by CPU {cpu:.2f} x; "
        text += f"the machine gives two processes {most:.2f} x"
        found[-1].figures = {"headgate": text}
        found[-1].note = f"{rows:,} rows"
    return found


def _longest(taken: Taken) -> float:
    """CPU seconds of the driver and the worker that had most."""
    return taken["driver"] + max(taken["workers"])


def _turn(url: str, workers: int, journal: str, small: str, place: str) -> dict[str, Taken]:
    """What each job took in a session of so many workers, which have done a small one before."""
    taken: dict[str, Taken] = {}
    with sessions(url, **CONF, **{"spark.cores.max": str(workers)}) as spark:
        for folder in (small, journal):
            shutil.rmtree(f"{place}/warehouse", ignore_errors=True)
            for name, job in JOBS.items():
                before, began = _cpu(), time.perf_counter()
                job(spark, folder, Warehouse(f"{place}/warehouse"))
                seconds = round(time.perf_counter() - began, 1)
                driver, *each = (round(now - then, 1) for now, then in zip(_cpu(), before, strict=True))
                taken[name] = {"s": seconds, "driver": driver, "workers": each}
    return taken


def _cpu() -> list[float]:
    """CPU seconds so far: of this process and its JVM, and of each worker with all that it started."""
    below = descendants(os.getpid())
    workers = [pid for pid in below if WORKER in command(pid)]
    theirs = [[pid, *descendants(pid)] for pid in workers]
    ours = {os.getpid(), *below} - {pid for pids in theirs for pid in pids}
    return [sum(map(_used, pids)) for pids in (ours, *theirs)]


def _used(pid: int) -> float:
    """CPU seconds of a process, of its threads that ended, too, and of its children that did."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def machine(journal: str, place: str) -> float:
    """How much more two processes do at once than one alone: 2 where they are not in each other's way."""
    with multiprocessing.get_context("spawn").Pool(2) as apart:
        apart.map(_alone, [(journal, f"{place}/warm{number}") for number in range(2)], chunksize=1)
        began = time.perf_counter()
        apart.apply(_alone, ((journal, f"{place}/alone"),))
        alone, began = time.perf_counter() - began, time.perf_counter()
        apart.map(_alone, [(journal, f"{place}/both{number}") for number in range(2)], chunksize=1)
        return 2 * alone / (time.perf_counter() - began)


def _alone(what: tuple[str, str]) -> None:
    """What a task of ``ingest`` does, by one thread."""
    bring(write, what[0], Warehouse(what[1]))
    shutil.rmtree(what[1])


WORKS: dict[str, Callable[[Bench], list[Row]]] = {"spark_scaling": scaling}
