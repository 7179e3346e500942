"""`headgate pipeline batch` from journal to tables, as a person runs it, on journals that real sessions wrote: a tree
of four, a gateway, NFP and oslo, several runs, refusals among what passed (tests/live/captured.py).
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gateway.pipeline.warehouse import Warehouse
from tests.bench.targets import Row
from tests.bench.works import Bench, say
from tests.live.captured import captured

RUNS = 5
TIMES = 100
"""What each part of a run does, so often: 15 000 rows."""
RANKS = 4
WORDS: dict[str, tuple[str, ...]] = {"headgate": (), "by Spark": ("--master", "local[2]")}
"""Who makes the tables: what batch chooses, and Spark where it is asked for."""
_CODE = """
import resource, sys
from broker.cli.main import main
code = main(["pipeline", "batch", *sys.argv[1:]])
for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
    used = resource.getrusage(who)
    print(used.ru_utime + used.ru_stime, file=sys.stderr)
sys.exit(code)
"""
"""The JVM and its workers are the children."""


def batches(bench: Bench) -> list[Row]:
    """`pipeline batch` of 75 000 rows of a mixed session, from the command to its end."""
    with tempfile.TemporaryDirectory(prefix="hg-", dir="/tmp") as place:  # sockets need a short path
        folder = Path(place)
        for run in range(RUNS):
            captured(folder, times=TIMES, ranks=RANKS)
            say(f"session {run + 1} of {RUNS} is recorded")
        taken: dict[str, list[dict[str, float]]] = {who: [] for who in WORDS}
        for who in ["by Spark"] + ["headgate"] * bench.rounds:  # once by Spark, which takes a minute or two
            taken[who].append(_turn(folder, WORDS[who]))
            say(f"{who:<10} {taken[who][-1]}")
        rows = Warehouse(folder / "warehouse").scan("messages", ["seq"]).num_rows
    row = Row("spark_batch", raw={"rows": rows, "taken": taken})
    row.settle([each["s"] for each in taken["headgate"]])
    row.figures = {who: _text(min(each, key=lambda turn: turn["s"])) for who, each in taken.items() if each}
    row.note = f"{rows:,} rows"
    return [row]


def _turn(folder: Path, words: tuple[str, ...]) -> dict[str, float]:
    """Seconds of one run into a new warehouse, and of CPU."""
    warehouse = folder / "warehouse"
    shutil.rmtree(warehouse, ignore_errors=True)
    command = [
        sys.executable,
        "-c",
        _CODE,
        "-j",
        str(folder / "journal"),
        "-w",
        str(warehouse),
        "--json",
        *words,
    ]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    took = time.perf_counter() - began
    own, jvm = map(float, done.stderr.splitlines()[-2:])
    return {"s": round(took, 2), "own": round(own, 2), "jvm": round(jvm, 2)}


def _text(turn: dict[str, float]) -> str:
    return f"{turn['s']:.1f} s, CPU {turn['own']:.1f} s, JVM {turn['jvm']:.1f} s"


WORKS: dict[str, Callable[[Bench], list[Row]]] = {"spark_batch": batches}
