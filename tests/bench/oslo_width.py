"""Fan-outs to 1, 8 and 32 servers of one node: what sending costs, and what crosses TCP, which must not depend on them.

Fan-outs are paced, so that what the servers do with them does not take the processor away from the sender. Its cost is
the CPU time of its whole process; the bytes are those that the kernel counts into the node's fan-out port.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Any

from broker.oslo.names import Pipeline
from tests.bench import processes
from tests.bench.oslo_contenders import Pipelines, Team
from tests.bench.oslo_kernel import bytes_into
from tests.bench.targets import Row
from tests.bench.works import say

if TYPE_CHECKING:
    from tests.bench.works import Bench

WIDTHS = (1, 8, 32)
SERVER_PROCESSES = 4
SENDS = 150
PAUSE_S = 0.01
BODY_BYTES = 200
DELIVERED_S = 30.0
ROUNDS_MAX = 3

Result = dict[str, Any]
_runs = itertools.count(1)


def measure(bench: Bench) -> list[Row]:
    """oslo.messaging: a fan-out to 32 servers of a node beside one to one server: cost of sending, bytes by TCP."""
    keys = ("oslo_width_send", "oslo_width_bytes")
    if why := Pipelines.missing():
        return [Row(key, note=why) for key in keys]
    done: dict[int, list[Result]] = {width: [] for width in WIDTHS}
    with ExitStack() as stack:
        team = Team(stack, Pipelines, SERVER_PROCESSES)
        for width in WIDTHS:
            team.serve(f"wide{width}", width)
        team.settle()
        for width in WIDTHS:
            publish(team, width)
        for number in range(min(bench.rounds, ROUNDS_MAX)):
            for width in WIDTHS if number % 2 == 0 else reversed(WIDTHS):
                done[width].append(result := publish(team, width))
                say(f"{width:>2} servers: {_one_line(result)}")
    return [_row(keys[0], done, "cpu_us", "µs"), _row(keys[1], done, "bytes", "B")]


def publish(team: Team, width: int) -> Result:
    """``SENDS`` fan-outs; figures of one."""
    run = next(_runs)
    assert isinstance(team.carrier, Pipelines)
    port = team.carrier.ports[Pipeline.FANOUT]
    for peer in team.servers:
        peer.ask(do="forget", run=run)
    used, before = processes.cpu_s([team.client.pid]), bytes_into(port)
    sent = team.client.ask(
        do="casts", topic=f"wide{width}", run=run, size=BODY_BYTES, fanout=True, count=SENDS, pause_s=PAUSE_S
    )
    share = -(-width // len(team.servers))
    spread = [max(0, min(share, width - number * share)) for number in range(len(team.servers))]
    taken = [
        peer.ask(do="take", count=SENDS * each, within_s=DELIVERED_S)
        for peer, each in zip(team.servers, spread, strict=True)
    ]
    return {
        "cpu_us": 1e6 * (processes.cpu_s([team.client.pid]) - used) / SENDS,
        "bytes": (bytes_into(port) - before) / SENDS,
        "send_us": median(sent["each_us"]),
        "lost": SENDS * width - sum(each["got"] for each in taken),
        "twice": sum(each["twice"] for each in taken),
    }


def _one_line(result: Result) -> str:
    text = f"{result['cpu_us']:>5.0f} µs CPU a send, {result['send_us']:.0f} µs until it returns, "
    text += f"{result['bytes']:.0f} bytes into the node"
    return text + (f", {result['lost']} lost" if result["lost"] else "")


def _row(key: str, done: dict[int, list[Result]], what: str, unit: str) -> Row:
    row = Row(key, raw={str(width): results for width, results in done.items()})
    row.settle([wide[what] / one[what] for wide, one in zip(done[WIDTHS[-1]], done[WIDTHS[0]], strict=True)])
    each = ", ".join(f"{width}: {median(result[what] for result in done[width]):.0f}" for width in WIDTHS)
    row.figures = {"headgate": f"{each} {unit}"}
    if wrong := sum(result["lost"] + result["twice"] for results in done.values() for result in results):
        row.value, row.note = None, f"{wrong} lost or doubled"
        row.figures["headgate"] += f" ({row.note})"
    return row
