"""What is measured by WebSocket: one function a work; each returns its rows.

The rules are those of ``works``: contenders take turns, a ratio is taken within each round, the figure is the median.
All speak over loopback TCP without TLS and without compression, 128 bytes of payload in each message, and every
delivery is counted: a run that lost, duplicated or reordered one is an error, not a figure.
"""

import json
import resource
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from time import sleep
from typing import Any

from tests.bench import processes
from tests.bench.loadgen import LoadError, Result
from tests.bench.targets import Row
from tests.bench.web_contenders import Apart, Crossbar, Gateway, Nats, PureGateway, WebContender
from tests.bench.web_deflate import web_deflate
from tests.bench.web_http import web_http
from tests.bench.web_storm import web_storm
from tests.bench.works import (
    DESCRIPTORS_SPARE,
    RTT_TURNS,
    SETTLE_S,
    Bench,
    Rounds,
    middle,
    per_round,
    rates,
    say,
    take_turns,
)

PAYLOAD = 128
FANOUTS = {1: 256, 50: 64, 500: 16}
"""Subscribers -> events in the air at the slowest of them."""
MANY = 500
RATE = 10
CALLERS, CALLS = 4, 32
IDLE, DASHBOARDS = 1000, 10_000
PING_S, HOLD_S = 4.0, 12.0
"""Dashboards are held for three pings; a deployment pings every 25 s."""
PACE_ROUNDS, PACE_LENGTH = 3, 3.0
UNBOUND_ROUNDS = 3
"""Figures that no target is about need fewer rounds."""
STALL_TIMES = 2
"""Slices of a tenth of a second need some time to take turns in."""
KINDS: tuple[type[WebContender], ...] = (Gateway, PureGateway, Apart, Nats, Crossbar)
PEERS: tuple[type[WebContender], ...] = (Gateway, Nats, Crossbar)
FAST: tuple[type[WebContender], ...] = (Gateway, Nats)


def web_fanout(bench: Bench) -> list[Row]:
    """One publisher, 1, 50 and 500 WebSocket subscribers."""
    rows = []
    with contest(KINDS) as contenders:
        for subscribers, window in FANOUTS.items():
            options: dict[str, Any] = {"subscribers": subscribers, "window": window}
            say(f"{subscribers} subscribers, window {window}")
            bound = subscribers == MANY
            fewer = bench if bound else replace(bench, rounds=min(bench.rounds, UNBOUND_ROUNDS))
            done = take_turns(fewer, contenders, partial(run, bench, "fanout", **options))
            key = "web_fanout" if bound else f"web_fanout_{subscribers}"
            alone = bench.web.run("fanout", "self", payload=PAYLOAD, **options)
            figures = {**rates(done), "generator": f"{alone['per_s'] / 1e3:,.0f} k/s"}
            rows += versus(key, done, figures)
    return rows


def web_rpc(bench: Bench) -> list[Row]:
    """Four WebSocket callers with 32 calls in the air each; the echo beside the gateway, then behind it."""
    rows = []
    with contest(KINDS) as contenders:
        for key, way in (("web_rpc", beside), ("web_rpc_web", behind)):
            say("the provider is " + ("beside the gateway" if way is beside else "a WebSocket client, too"))
            done = take_turns(bench, contenders, partial(call, bench, way))
            rows += versus(key, done, rates(done))
    return rows


def web_rtt(bench: Bench) -> list[Row]:
    """One WebSocket caller, one call at a time; the echo stands beside the gateway."""
    brief = replace(bench, seconds=bench.seconds / RTT_TURNS, rounds=bench.rounds * RTT_TURNS)
    with contest(FAST) as contenders:
        done = take_turns(
            brief, contenders, lambda one: run(brief, "rpc", one, callers=1, window=1, **beside(one))
        )
    row = Row("web_rtt", note=why_not(Gateway, Nats), raw={"rounds": done})
    row.figures = {
        name: f"{middle(done, name, 'p50_us'):.0f} / {middle(done, name, 'p99_us'):.0f} µs" for name in done
    }
    row.settle(per_round(done, Gateway.name, Nats.name, "p50_us"))
    return [row]


def call(bench: Bench, way: Callable[[WebContender], dict[str, Any]], one: WebContender) -> Result:
    """One measurement of RPC with a provider that ``way`` places."""
    return run(bench, "rpc", one, callers=CALLERS, window=CALLS, **way(one))


def beside(one: WebContender) -> dict[str, Any]:
    """A provider where services usually stand: Flux over UNIX, NATS over TCP, a WAMP raw socket over UNIX."""
    return {"provider": one.beside}


def behind(one: WebContender) -> dict[str, Any]:
    """A provider that is a WebSocket client, too, so that every call passes the gateway four times."""
    return {"service": one.service}


def web_pace(bench: Bench) -> list[Row]:
    """500 subscribers, ten events a second: how late is each delivery?"""
    slow = replace(bench, rounds=min(bench.rounds, PACE_ROUNDS), seconds=PACE_LENGTH * min(1, bench.seconds))
    with contest(PEERS) as contenders:
        done = take_turns(
            slow, contenders, partial(run, slow, "pace", subscribers=MANY, rate=RATE, warmup=0.2)
        )
    row = Row("web_pace", note=why_not(Gateway), raw={"rounds": done})
    for name in done:
        p50, p99 = middle(done, name, "p50_us"), middle(done, name, "p99_us")
        row.figures[name] = f"{(p50 or 0) / 1e3:.1f} / {(p99 or 0) / 1e3:.1f} ms"
    row.settle([result["p99_us"] / 1e3 for result in done.get(Gateway.name, [])])
    return [row]


def web_stalled(bench: Bench) -> list[Row]:
    """One of 500 subscribers stops reading, for good: what do the other 499 get?

    Within each run, slices of a tenth of a second take turns: events that go to the 499 only, and events that go to
    the one that does not read, too. So close together both meet the same machine.
    """
    longer = replace(bench, seconds=STALL_TIMES * bench.seconds)
    with contest(FAST) as contenders:
        done = take_turns(bench, contenders, partial(stalled, longer))
    row = Row("web_stalled", note=why_not(Gateway), raw={"rounds": done})
    row.figures = {name: f"{middle(done, name, 'share') or 0:.2f} x" for name in done}
    row.settle([result["share"] for result in done.get(Gateway.name, [])])
    return [row]


def stalled(bench: Bench, one: WebContender) -> Result:
    """One measurement; ours is told to keep the connection and drop what it does not read: the harder case."""
    where = {"stalled_at": one.stalled_at} if one.stalled_at else {}
    result = run(bench, "fanout", one, subscribers=MANY - 1, window=FANOUTS[MANY], stalled=1, **where)
    share = result["with_per_s"] / result["without_per_s"]
    say(
        f"{one.name:<11} with the one {share:.2f} x, which is {'still' if result['stalled_alive'] else 'not'} there"
    )
    return {**result, "share": share}


def web_idle(bench: Bench) -> list[Row]:
    """Connections that say nothing: a thousand of each contender, then ten thousand of ours."""
    small = Row("web_idle_connection", note=why_not(Gateway))
    large = Row("web_idle_hold", note=why_not(Gateway))
    for kind in PEERS:
        if not kind.missing():
            with kind() as one:
                found = hold(bench, one, IDLE, SETTLE_S)
            small.figures[one.name] = f"{found['kib']:.1f} KiB"
            small.raw[one.name] = found
    if small.figures.get(Gateway.name):
        small.settle([small.raw[Gateway.name]["kib"]])
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - DESCRIPTORS_SPARE
        if most < DASHBOARDS:
            large.note = f"only {most} descriptors may be open here"
        else:
            with Gateway(PING_S) as one:
                large.raw = hold(bench, one, DASHBOARDS, HOLD_S)
            large.settle([large.raw["missing"]])
            large.figures[Gateway.name] = "{kib:.1f} KiB each, {cpu:.0%} CPU".format(**large.raw)
    return [small, large]


# ---------------------------------------------------------------- how


@contextmanager
def contest(kinds: Sequence[type[WebContender]]) -> Iterator[list[WebContender]]:
    """An instance of each kind that can run here."""
    for kind in kinds:
        if kind.missing() and kind is not PureGateway:
            say(f"without {kind.name}: {kind.missing()}")
    with ExitStack() as stack:
        yield [stack.enter_context(kind()) for kind in kinds if not kind.missing()]


def run(bench: Bench, mode: str, one: WebContender, **options: Any) -> Result:
    """One measurement of one contender, said on a line."""
    options = {"payload": PAYLOAD, "seconds": bench.seconds} | options
    try:
        result = bench.web.run(mode, pids=one.pids, secret=one.token, at=one.at, speak=one.speak, **options)
    except LoadError as error:
        raise LoadError(f"{one.name}: {error}") from error
    say(
        f"{one.name:<11} {result['per_s']:>12,.0f}/s  p50 {result['p50_us'] / 1e3:.2f} ms  p99 "
        f"{result['p99_us'] / 1e3:.2f} ms  CPU {sum(result['cpu_s']) / result['seconds']:.0%}  "
        f"generator {result['own_busy']:.0%}"
    )
    return result


def versus(key: str, done: Rounds, figures: dict[str, str]) -> list[Row]:
    """The rows of one work: ours against each peer, and the sources against nats-server where a wheel is measured."""
    nats = Row(f"{key}_vs_nats", figures=figures, note=why_not(Gateway, Nats), raw={"rounds": done})
    nats.settle(per_round(done, Gateway.name, Nats.name, "per_s"))
    crossbar = Row(f"{key}_vs_crossbar", note=why_not(Gateway, Crossbar))
    crossbar.settle(per_round(done, Gateway.name, Crossbar.name, "per_s"))
    if PureGateway.missing():
        return [nats, crossbar]
    slower = Row(f"{key}_vs_nats_pure", note=why_not(Nats))
    slower.settle(per_round(done, PureGateway.name, Nats.name, "per_s"))
    return [nats, crossbar, slower]


def why_not(*kinds: type[WebContender]) -> str:
    return "; ".join(reason for kind in kinds if (reason := kind.missing()))


def hold(bench: Bench, one: WebContender, count: int, seconds: float) -> dict[str, Any]:
    """Connect ``count`` subscribers, leave them alone for ``seconds``, then send all of them one event.

    Returns resident memory per connection (``kib``), CPU while nothing happens (``cpu``, share of a core), and
    ``missing``: those that were closed, that got no ping although they should, or that did not get the event.
    """
    before, pids = memory(one), one.pids
    argv = bench.web.argv("idle", at=one.at, speak=one.speak, subscribers=count, payload=PAYLOAD)
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=bench.web.environment(one.token),
    ) as holder:
        try:
            began = answer(holder, one)
            sleep(SETTLE_S)
            used = processes.cpu_s(pids)
            sleep(seconds)
            share = (processes.cpu_s(pids) - used) / seconds
            each = (memory(one) - before) / count
            assert holder.stdin is not None
            holder.stdin.close()
            ended = answer(holder, one)
        finally:
            processes.stop(holder)
    missing = ended["closed"] + count - ended["delivered"]
    if seconds > 2 * PING_S:
        missing += ended["unpinged"]
    say(
        f"{one.name:<11} {count} connections in {began['seconds']:.1f} s: {each / 1024:.1f} KiB each, {share:.1%} "
        f"CPU, {missing} missing, one event to all of them took {ended['delivery_ms']:.0f} ms"
    )
    return {"kib": each / 1024, "cpu": share, "missing": missing, "began": began, "ended": ended}


def memory(one: WebContender) -> int:
    return sum(processes.rss_bytes(pid) for pid in one.pids)


def answer(holder: "subprocess.Popen[str]", one: WebContender) -> dict[str, Any]:
    assert holder.stdout is not None
    line = holder.stdout.readline()
    if not line:
        raise LoadError(f"{one.name}: the idle connections could not be held")
    found: dict[str, Any] = json.loads(line)
    return found


WORKS: dict[str, Callable[[Bench], list[Row]]] = {
    "web-fanout": web_fanout,
    "web-rpc": web_rpc,
    "web-rtt": web_rtt,
    "web-http": web_http,
    "web-pace": web_pace,
    "web-stalled": web_stalled,
    "web-idle": web_idle,
    "web-storm": web_storm,
    "web-deflate": web_deflate,
}
