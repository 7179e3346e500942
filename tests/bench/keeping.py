"""What it costs rank 0 to keep the last events: one process that keeps them and, asked by a signal, does not.

It is one process for the reason that ``counting`` has. What was kept before a change stays in memory, so that keeping
is measured as it is in the long run: for each event that comes an old one goes.
"""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from broker.client.blocking import connect
from broker.errors import RpcError
from tests.bench import web_works, works
from tests.bench.contenders import Headgate, single
from tests.bench.counting import RUN, SWITCHED
from tests.bench.loadgen import Result
from tests.bench.targets import Row
from tests.bench.web_contenders import Gateway

CODE = f"""{SWITCHED}
def switch_of(node):
    events, kept = node.broker.router.events, [None]

    def switch(_signum, _frame):
        events.history, kept[0] = kept[0], events.history

    return switch
{RUN}"""
TURNS = 4
KEPT, NONE = "headgate", "none kept"
ORDER = (KEPT, NONE, NONE, KEPT)
"""What the machine does more or less of meanwhile hits both alike."""
WEB_SUBSCRIBERS = 50


class Switched(Gateway):
    """Ours, whose rank 0 changes over."""

    def argv(self) -> list[str]:
        words = super().argv()
        return [sys.executable, "-P", "-c", CODE, *words[words.index("up") :]]


def measure(bench: works.Bench) -> list[Row]:
    """Events to 32 subscribers, and to 50 WebSocket clients, with the last ones kept and without."""
    brief = replace(bench, seconds=bench.seconds / 2)
    rows = [Row("events_kept", note=Headgate.missing()), Row("web_kept", note=Gateway.missing())]
    if not rows[0].note:

        def argv(rundir: Path) -> list[str]:
            words = single(rundir)
            return [sys.executable, "-P", "-c", CODE, *words[words.index("broker") :]]

        options = {"subscribers": works.SUBSCRIBERS, "window": works.WINDOW}
        with works.single_broker(bench, argv) as (pid, uri):
            _settle(bench, rows[0], pid, uri, lambda: brief.run("events", pids=[pid], caller=uri, **options))
    if not rows[1].note:
        options = {"subscribers": WEB_SUBSCRIBERS, "window": web_works.FANOUTS[WEB_SUBSCRIBERS]}
        with Switched() as one:
            (pid,) = one.pids
            _settle(bench, rows[1], pid, one.beside, lambda: web_works.run(brief, "fanout", one, **options))
    return rows


def _settle(bench: works.Bench, row: Row, pid: int, uri: str, measured: Callable[[], Result]) -> None:
    found: dict[str, list[float]] = {KEPT: [], NONE: []}
    used: dict[str, list[float]] = {KEPT: [], NONE: []}
    on = KEPT
    for _ in range(bench.rounds * TURNS):
        for name in ORDER:
            if name != on:
                os.kill(pid, signal.SIGUSR2)
                on = name
            assert _keeps(uri) == (name == KEPT)
            result = measured()
            found[name].append(result["per_s"])
            used[name].append(1e6 * sum(result["cpu_s"]) / result["count"])
    row.figures = {
        name: f"{median(values) / 1e3:,.1f} k/s, {median(used[name]):.2f} µs of its CPU each"
        for name, values in found.items()
    }
    row.raw = {"per_s": found, "cpu_us": used}
    kept, none = (
        [a + b for a, b in zip(values[::2], values[1::2], strict=True)] for values in found.values()
    )
    row.settle([with_it / without for with_it, without in zip(kept, none, strict=True)])
    works.say(f"{row.key} {row.figures}, {row.value:.3f}")


def _keeps(uri: str) -> bool:
    with connect(uri) as handle:
        try:
            handle.rpc("event.since", {"age_s": 0})
        except RpcError:
            return False
    return True
