"""What the figures by method cost a call: one broker that counts and, asked by a signal, does not.

There is no setting for that. Without counting, every method is the one of calls that are counted elsewhere, so that
nothing is timed, and the clock is not read. It is one process because two that do the same differ by more than what is
measured here: by where their memory lies, and by the cores that they get.
"""

import os
import signal
import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from statistics import median

from broker.client.blocking import connect
from tests.bench import works
from tests.bench.contenders import Headgate, single
from tests.bench.targets import Row

SWITCHED = """
import signal, sys
from broker.cli.main import main
from broker.node import assembly, broker

begin = assembly.Node.__init__

def switched(node, *args, **options):
    begin(node, *args, **options)
    signal.signal(signal.SIGUSR2, switch_of(node))

assembly.Node.__init__ = switched
"""
"""The command ``headgate``, whose brokers change over at SIGUSR2, as a ``switch_of(node)`` behind this says."""
RUN = "\nsys.exit(main())\n"
CODE = f"""{SWITCHED}
from broker.routing.port import UNCOUNTED

class Uncounted(dict):
    def get(self, name, default=None):
        return UNCOUNTED

def switch_of(node):
    table = node.broker.router.call_stats._table
    ways = [(table.by_name, broker.monotonic_ns), (Uncounted(), int)]

    def switch(_signum, _frame):
        ways.reverse()
        table.by_name, broker.monotonic_ns = ways[0]

    return switch
{RUN}"""
"""Compiled classes call each other past what is patched: what they look up in a dictionary can be replaced."""
TURNS = 4
"""Latency hangs on where the scheduler puts two processes, so it is asked more often and more briefly."""
COUNTED, UNCOUNTED = "headgate", "uncounted"
ORDER = (COUNTED, UNCOUNTED, UNCOUNTED, COUNTED)
"""What the machine does more or less of meanwhile hits both alike."""


def measure(bench: works.Bench) -> list[Row]:
    """A relayed call, one at a time, with figures by method and without: p50."""
    brief = replace(bench, seconds=bench.seconds / TURNS)
    row = Row("counting_p50", note=Headgate.missing())
    if Headgate.missing():
        return [row]
    found: dict[str, list[float]] = {COUNTED: [], UNCOUNTED: []}
    used: dict[str, list[float]] = {COUNTED: [], UNCOUNTED: []}
    with _started(bench) as (pid, uri):
        on = COUNTED
        for _ in range(bench.rounds * TURNS):
            for name in ORDER:
                if name != on:
                    os.kill(pid, signal.SIGUSR2)
                    on = name
                before = _counted(uri)
                result = brief.run("relay", pids=[pid], caller=uri, provider=uri, window=1, warmup=0.05)
                found[name].append(result["p50_us"])
                used[name].append(1e6 * sum(result["cpu_s"]) / result["count"])
                counted = _counted(uri) - before
                assert (counted >= result["count"]) == (name == COUNTED), (name, counted, result)
    row.figures = {
        name: f"{median(values):.1f} µs, {median(used[name]):.1f} of its CPU"
        for name, values in found.items()
    }
    row.raw = {"p50_us": found, "cpu_us": used}
    pairs = {name: list(zip(values[::2], values[1::2], strict=True)) for name, values in found.items()}
    row.settle([sum(on) / sum(off) for on, off in zip(pairs[COUNTED], pairs[UNCOUNTED], strict=True)])
    works.say(f"p50 {row.figures}, {row.value:.3f}")
    return [row]


def _counted(uri: str) -> int:
    with connect(uri) as handle:
        methods = handle.rpc("broker.calls").json()["methods"]
    return sum(each["calls"] for each in methods.values())


def _started(bench: works.Bench) -> AbstractContextManager[tuple[int, str]]:
    def argv(rundir: Path) -> list[str]:
        words = single(rundir)
        return [sys.executable, "-P", "-c", CODE, *words[words.index("broker") :]]

    return works.single_broker(bench, argv)
