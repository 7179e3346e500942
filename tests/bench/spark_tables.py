"""All gold tables of a day's messages by ``headgate pipeline batch``, from the command to its end; and four of them
against a script of plain Spark and one of plain DuckDB that make the same, in the same run.

CPU is that of the command, of its JVM and of their workers: what a busy machine changes least.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from gateway.pipeline.warehouse import Warehouse
from tests.bench.spark_load import make_up
from tests.bench.spark_plain import TABLES, WAYS
from tests.bench.spark_works import missing
from tests.bench.targets import Row
from tests.bench.works import Bench, say

CALLS = 1_280_000
"""3.2 million rows of bronze."""
RANKS = 4
TIMEOUT_S = 1800
COMMAND = """
import resource, sys
from broker.cli.main import main
code = main(["pipeline", *sys.argv[1:]])
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(sum(each.ru_utime + each.ru_stime for each in used), file=sys.stderr)
sys.exit(code)
"""
"""The JVM and its workers are the children."""
Taken = dict[str, float]


def tables(bench: Bench) -> list[Row]:
    """All gold tables of 3.2 million messages at four ranks, cold; four of them beside plain Spark and plain DuckDB."""
    keys = ("spark_tables", "spark_cpu")
    if why := missing():
        return [Row(key, note=why) for key in keys]
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as place:
        warehouse = Warehouse(Path(place) / "warehouse")
        rows = make_up(warehouse, CALLS, RANKS)
        words = ["batch", "--warehouse", warehouse.place]
        some = [word for name in TABLES for word in ("--table", name)]
        taken: dict[str, list[Taken]] = {"all": [], "headgate": [], **{way: [] for way in WAYS}}
        for turn in range(bench.rounds):
            again = ["--since", "1970-01-01"] if turn else []
            taken["all"].append(run(*words, *again))
            taken["headgate"].append(run(*words, "--since", "1970-01-01", *some))
            calls = warehouse.scan("rpc", ["ts_ns"]).num_rows
            for way in WAYS:
                taken[way].append(_plain(way, warehouse.table("messages"), f"{place}/{way}{turn}", calls))
            say(f"turn {turn + 1}: { {who: each[-1] for who, each in taken.items()} }")
    whole, cpu = (Row(key, raw={"rows": rows, "taken": taken}) for key in keys)
    whole.settle([rows / each["s"] / 1e3 for each in taken["all"]])
    best = min(taken["all"], key=lambda each: each["s"])
    whole.figures = {"headgate": f"{best['s']:.1f} s, CPU {best['cpu']:.1f} s"}
    cpu.settle(
        [ours["cpu"] / plain["cpu"] for ours, plain in zip(taken["headgate"], taken["spark"], strict=True)]
    )
    for name, who in (("headgate", "headgate"), ("plain Spark", "spark"), ("plain DuckDB", "duckdb")):
        micros = median(each["cpu"] for each in taken[who]) / rows * 1e6
        cpu.figures[name] = f"{micros:.1f} µs, {median(each['s'] for each in taken[who]):.1f} s"
    whole.note = cpu.note = f"{rows:,} rows"
    return [whole, cpu]


def run(*words: str) -> Taken:
    """Seconds of one ``headgate pipeline``, and of CPU."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words, "--json"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    took = time.perf_counter() - began
    return {"s": round(took, 2), "cpu": round(float(done.stderr.splitlines()[-1]), 2)}


def _plain(way: str, messages: str, out: str, calls: int) -> Taken:
    """The same of a script, which has to find as many calls."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.spark_plain", way, messages, out],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    took = time.perf_counter() - began
    found, cpu = done.stdout.split()
    assert int(found) == calls, (way, found, calls)
    return {"s": round(took, 2), "cpu": round(float(cpu), 2)}


WORKS: dict[str, Callable[[Bench], list[Row]]] = {"spark_tables": tables}
