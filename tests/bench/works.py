"""What is measured: one function a work; each returns its rows.

Contenders take turns within a round and swap places between rounds; a ratio is taken within each round, and
the median of the ratios is the figure: what the machine does meanwhile hits both.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from tests.bench import processes
from tests.bench.contenders import ByteRelay, Contender, Flux, Headgate, Pure, single
from tests.bench.loadgen import LoadError, Loadgen, Result
from tests.bench.targets import Row

WINDOW = 128
SUBSCRIBERS = 32
CONNECTIONS = 2000
DESCRIPTORS_SPARE = 200
SETTLE_S = 0.5
RTT_TURNS = 3
"""Latency hangs on where the scheduler puts two processes, so it is asked more often and more briefly."""

Rounds = dict[str, list[Result]]
Some = TypeVar("Some", bound=Contender)


@dataclass
class Bench:
    """What all works share.

    Attributes:
        web: the generator that speaks WebSocket.
        seconds: length of one measurement. rounds: how often each contender has its turn.
    """

    loadgen: Loadgen
    web: Loadgen
    seconds: float = 1.0
    rounds: int = 5
    payload: int = 16

    def run(self, mode: str, *flags: str, pids: list[int] | None = None, **options: Any) -> Result:
        return self.loadgen.run(
            mode, *flags, pids=pids, seconds=self.seconds, payload=self.payload, **options
        )

    def alone(self, mode: str, **options: Any) -> Result:
        """What the generator reaches by itself: against a thread that copies bytes."""
        return self.run(mode, "self", **options)


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def take_turns(bench: Bench, contenders: Sequence[Some], measure: Callable[[Some], Result]) -> Rounds:
    """Every contender once a round, the order reversed from round to round."""
    done: Rounds = {one.name: [] for one in contenders}
    for number in range(bench.rounds):
        for one in contenders if number % 2 == 0 else reversed(contenders):
            done[one.name].append(measure(one))
    return done


def compare(
    bench: Bench, kinds: Sequence[type[Contender]], mode: str, size: int = 1, **options: Any
) -> Rounds:
    """Start an instance of each kind, give each its turns, stop them all."""
    with ExitStack() as stack:
        contenders = [stack.enter_context(kind(size)) for kind in kinds]

        def measure(one: Contender) -> Result:
            options_here = dict(options)
            if mode == "relay":
                options_here["provider"] = one.uri(size - 1)
            try:
                result = bench.run(mode, *one.flags, pids=one.pids, caller=one.uri(), **options_here)
            except LoadError as error:
                raise LoadError(f"{one.name}: {error}") from error
            say(f"{one.name:<11} {one_line(result)}")
            return result

        return take_turns(bench, contenders, measure)


def one_line(result: Result) -> str:
    """What somebody sees who watches the run."""
    text = f"{result['per_s']:>12,.0f}/s  generator busy {result['own_busy']:.0%}"
    if "p50_us" in result:
        text += f"  p50 {result['p50_us']:.0f} µs  p99 {result['p99_us']:.0f} µs"
    return text


def available(*kinds: type[Contender]) -> list[type[Contender]]:
    return [kind for kind in kinds if kind is ByteRelay or not kind.missing()]  # type: ignore[attr-defined]


def per_round(done: Rounds, over: str, under: str, key: str) -> list[float]:
    """The ratio of two contenders in each round."""
    return [a[key] / b[key] for a, b in zip(done.get(over, []), done.get(under, []), strict=False)]


def middle(done: Rounds, name: str, key: str) -> float | None:
    values = [result[key] for result in done.get(name, [])]
    return median(values) if values else None


def rates(done: Rounds, unit: str = "k/s", scale: float = 1e3) -> dict[str, str]:
    return {name: f"{value / scale:,.1f} {unit}" for name in done if (value := middle(done, name, "per_s"))}


def why_not() -> str:
    return "; ".join(reason for reason in (Headgate.missing(), Flux.missing()) if reason)


# ---------------------------------------------------------------- the works


def relay(bench: Bench) -> list[Row]:
    """One caller, one service, 128 calls in the air; and what a message costs the broker."""
    done = compare(bench, available(Headgate, Pure, Flux, ByteRelay), "relay", window=WINDOW)
    alone = bench.alone("relay", window=WINDOW)
    ratio = Row(
        "relay_vs_flux", figures=rates(done), note=why_not(), raw={"rounds": done, "generator": alone}
    )
    ratio.figures["generator"] = f"{alone['per_s'] / 1e3:,.0f} k/s"
    ratio.settle(per_round(done, "headgate", "flux-core", "per_s"))
    cost = Row("relay_cpu", note=Headgate.missing())
    costs = {
        name: [1e6 * sum(result["cpu_s"]) / (2 * result["count"]) for result in results]
        for name, results in done.items()
    }
    cost.figures = {name: f"{median(values):.2f} µs" for name, values in costs.items()}
    cost.settle(costs.get("headgate", []))
    if Pure.missing():
        return [ratio, cost]
    slower, dearer = Row("relay_vs_flux_pure", note=Flux.missing()), Row("relay_cpu_pure")
    slower.settle(per_round(done, Pure.name, "flux-core", "per_s"))
    dearer.settle(costs[Pure.name])
    return [ratio, cost, slower, dearer]


def rtt(bench: Bench) -> list[Row]:
    """One call at a time."""
    brief = replace(bench, seconds=bench.seconds / RTT_TURNS, rounds=bench.rounds * RTT_TURNS)
    done = compare(brief, available(Headgate, Flux, ByteRelay), "relay", window=1, warmup=0.05)
    alone = bench.alone("relay", window=1)
    figures = {
        name: f"{middle(done, name, 'p50_us'):.0f} / {middle(done, name, 'p99_us'):.0f} µs" for name in done
    } | {"generator": f"{alone['p50_us']:.0f} / {alone['p99_us']:.0f} µs"}
    limit = Row(
        "rtt_vs_relay", figures=figures, note=Headgate.missing(), raw={"rounds": done, "generator": alone}
    )
    limit.settle(per_round(done, "headgate", "byte relay", "p50_us"))
    real = Row("rtt_vs_flux", note=why_not())
    real.settle(per_round(done, "headgate", "flux-core", "p50_us"))
    return [limit, real]


def events(bench: Bench) -> list[Row]:
    """One publisher, 32 subscribers."""
    options = {"subscribers": SUBSCRIBERS, "window": WINDOW}
    done = compare(bench, available(Headgate, Flux, ByteRelay), "events", **options)
    alone = bench.alone("events", **options)
    row = Row("events_vs_flux", figures=rates(done), note=why_not(), raw={"rounds": done, "generator": alone})
    row.figures["generator"] = f"{alone['per_s'] / 1e3:,.0f} k/s"
    row.settle(per_round(done, "headgate", "flux-core", "per_s"))
    return [row]


def rpc(bench: Bench) -> list[Row]:
    """A caller at rank 0, a service at rank 3, two tree links between them."""
    done = compare(bench, available(Headgate, Pure, Flux), "relay", size=4, window=WINDOW, nodeid=3)
    row = Row("rpc_vs_flux", figures=rates(done), note=why_not(), raw={"rounds": done})
    row.settle(per_round(done, "headgate", "flux-core", "per_s"))
    if Pure.missing():
        return [row]
    slower = Row("rpc_vs_flux_pure", note=Flux.missing())
    slower.settle(per_round(done, Pure.name, "flux-core", "per_s"))
    return [row, slower]


def idle(bench: Bench) -> list[Row]:
    """A broker that nobody talks to; then two thousand clients that say nothing."""
    rows = [Row("idle_rss"), Row("idle_cpu"), Row("idle_connection")]
    seconds = max(4.0, 4 * bench.seconds)
    if Headgate.missing():
        rows[0].note = rows[1].note = rows[2].note = Headgate.missing()
    else:
        with single_broker(bench) as (pid, uri):
            found = _idle(bench, pid, uri, seconds)
        for row, value, unit in zip(rows, found, ("MiB", "%", "KiB"), strict=True):
            row.settle([value])
            row.figures["headgate"] = f"{value:.2f} {unit}"
    if not Flux.missing():
        with Flux() as real:
            found = _idle(bench, real.pids[0], real.uri(), seconds)
        for row, value, unit in zip(rows, found, ("MiB", "%", "KiB"), strict=True):
            row.figures["flux-core"] = f"{value:.2f} {unit}"
    return rows


def _idle(bench: Bench, pid: int, uri: str, seconds: float) -> tuple[float, float, float]:
    """MiB, per cent of one core, KiB per connection."""
    time.sleep(2 * SETTLE_S)
    used, began = processes.cpu_s([pid]), time.monotonic()
    time.sleep(seconds)
    share = (processes.cpu_s([pid]) - used) / (time.monotonic() - began)
    before = processes.rss_bytes(pid)
    count = min(CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - DESCRIPTORS_SPARE)
    argv = bench.loadgen.argv("idle", caller=uri, subscribers=count)
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        json.loads(holder.stdout.readline())
        time.sleep(SETTLE_S)
        each = (processes.rss_bytes(pid) - before) / count
    finally:
        processes.stop(holder)
    say(f"{before / 2**20:.1f} MiB, {share:.2%} CPU, {each / 1024:.2f} KiB for each of {count} connections")
    return before / 2**20, 100 * share, each / 1024


@contextmanager
def single_broker(bench: Bench, argv: Callable[[Path], list[str]] = single) -> Iterator[tuple[int, str]]:
    """One broker as a deployment starts it: (pid, URI)."""
    with tempfile.TemporaryDirectory(prefix="hgb-", dir="/tmp") as rundir:
        uri = f"local://{rundir}/local-0"
        process = subprocess.Popen(argv(Path(rundir)), text=True)
        try:
            bench.loadgen.run("ready", caller=uri)
            yield process.pid, uri
        finally:
            process.terminate()
            processes.stop(process)


def start(bench: Bench) -> list[Row]:
    """From the start of the process to the first answer; from `start` to the first line of its command."""
    one, four = Row("start_one", note=Headgate.missing()), Row("start_four", note=Headgate.missing())
    ways: list[tuple[Row, str, Callable[[], float]]] = []
    if not Headgate.missing():
        ways += [
            (one, "headgate", lambda: _first_answer(bench)),
            (four, "headgate", lambda: _first_line(Headgate(4))),
        ]
    if not Flux.missing():
        ways += [
            (one, "flux-core", lambda: _first_line(Flux(1))),
            (four, "flux-core", lambda: _first_line(Flux(4))),
        ]
    for row, name, measure in ways:
        measure()  # the first start reads files and writes .pyc
        values = [measure() for _ in range(bench.rounds)]
        say(f"{name:<11} {row.target.work}: " + ", ".join(f"{value:.3f}" for value in values) + " s")
        row.figures[name] = f"{median(values):.3f} s"
        row.raw[name] = values
        if name == "headgate":
            row.settle(values)
    return [one, four]


def _first_answer(bench: Bench) -> float:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hgb-", dir="/tmp") as rundir:
        argv = single(Path(rundir))
        began = time.monotonic()
        process = subprocess.Popen(argv, text=True)
        try:
            ready: float = bench.loadgen.run("ready", caller=f"local://{rundir}/local-0")["at"]
        finally:
            process.terminate()
            processes.stop(process)
    return ready - began


def _first_line(instance: Headgate | Flux) -> float:
    """Seconds until the command of a fresh instance says something."""
    argv = instance.argv("echo", "ready")
    began = time.monotonic()
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        ready = time.monotonic() - began
        process.communicate(timeout=30)
    instance.__exit__(None, None, None)
    if line != "ready\n":
        raise RuntimeError(f"{instance.name} of {instance.size} did not start")
    return ready
