"""What the journal costs: the broker's CPU per relayed message beside capture off, and the writer's per record.

The relay is that of ``works.relay``: a message is a request or a response, each relayed once; capture ``in`` records
each, ``both`` twice. Off, in and both take turns within a round, and the differences are taken within it. The
writer is a process of its own: its CPU is no part of the broker's and has a row of its own.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import Any

from broker.client.blocking import connect
from tests.bench import processes
from tests.bench.contenders import Headgate
from tests.bench.targets import Row
from tests.bench.works import WINDOW, Bench, say, take_turns

WRITER = "broker.journal.writer"
MESSAGES_PER_CALL = 2
TURNS = 2
"""A difference of two figures needs more rounds than a ratio does."""


class Off(Headgate):
    """The broker as it is without a journal."""

    name = "off"
    capture = ""

    def argv(self, *work: str) -> list[str]:
        """The command, with what the journal needs in front of the work."""
        argv = super().argv(*work)
        if not self.capture:
            return argv
        at = argv.index("--")
        options = ["--journal", str(self.rundir / "journal"), "--set", f"journal.capture={self.capture}"]
        return [*argv[:at], *options, *argv[at:]]

    @property
    def writers(self) -> list[int]:
        """The processes that write."""
        return [pid for pid in super().pids if WRITER in processes.command(pid)]

    @property
    def pids(self) -> list[int]:
        """The brokers' processes, without those that write."""
        writers = self.writers
        return [pid for pid in super().pids if pid not in writers]

    def shed(self) -> int:
        """Records so far that the writer did not get; 0 when there is none."""
        if not self.capture:
            return 0
        with connect(self.uri()) as handle:
            status: dict[str, Any] = handle.rpc("journal.status").json()
        return int(status["shed"] + status["lost"])


class In(Off):
    """Accepted messages."""

    name = "in"
    capture = "in"


class Both(Off):
    """Accepted and delivered messages."""

    name = "both"
    capture = "both"


KINDS = (Off, In, Both)


def capture(bench: Bench) -> list[Row]:
    """The relay with capture off, in and both; what a message costs the broker, a record the writer."""
    keys = ("journal_cpu_in", "journal_share_in", "journal_cpu_both", "journal_share_both", "journal_writer")
    rows = {key: Row(key, note=Headgate.missing()) for key in keys}
    if Headgate.missing():
        return list(rows.values())
    with ExitStack() as stack:
        contenders = [stack.enter_context(kind(1)) for kind in KINDS]
        done = take_turns(replace(bench, rounds=bench.rounds * TURNS), contenders, _measure(bench))
    costs = {name: [result["broker_us"] for result in results] for name, results in done.items()}
    for name in ("in", "both"):
        above = [with_it - off for with_it, off in zip(costs[name], costs["off"], strict=True)]
        cpu, share = rows[f"journal_cpu_{name}"], rows[f"journal_share_{name}"]
        cpu.settle(above)
        share.settle([100 * more / off for more, off in zip(above, costs["off"], strict=True)])
        cpu.figures = {"headgate": f"{median(costs[name]):.2f} µs", "off": f"{median(costs['off']):.2f} µs"}
    rows["journal_writer"].settle([result["writer_us"] for result in done["in"] + done["both"]])
    rows["journal_cpu_in"].raw = {"rounds": done}
    for name in ("in", "both"):
        shed = median(result["shed"] for result in done[name])
        rows[f"journal_cpu_{name}"].figures["generator"] = f"{shed:.1%} shed"
    return list(rows.values())


def _measure(bench: Bench) -> Callable[[Off], dict[str, Any]]:
    def measure(one: Off) -> dict[str, Any]:
        brokers, writers, before = one.pids, one.writers, one.shed()
        result = bench.run(
            "relay", pids=[*brokers, *writers], caller=one.uri(), provider=one.uri(), window=WINDOW
        )
        messages = MESSAGES_PER_CALL * result["count"]
        records = messages * (2 if one.capture == "both" else 1)
        used = result["cpu_s"]
        result["broker_us"] = 1e6 * sum(used[: len(brokers)]) / messages
        result["writer_us"] = 1e6 * sum(used[len(brokers) :]) / records
        result["shed"] = (one.shed() - before) / records
        say(
            f"{one.name:<5} {result['per_s']:>10,.0f}/s  broker {result['broker_us']:.2f} µs a message"
            + (
                f"  writer {result['writer_us']:.2f} µs a record, {result['shed']:.1%} shed"
                if one.capture
                else ""
            )
        )
        return result

    return measure


WORKS: dict[str, Callable[[Bench], list[Row]]] = {"journal": capture}
