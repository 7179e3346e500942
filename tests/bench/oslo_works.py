"""oslo.messaging over our pipelines beside RabbitMQ: applications with its public API, threads, bodies of 200 bytes.

Both have their turns in each round, the order turned round every time. What counts is what servers say was delivered;
a contender that lost or doubled a message has no figure. ``fake:`` shows what oslo.messaging's own code takes: by its
CPU time, since a server there sleeps 50 ms whenever it finds nothing, which is all that calls one by one show.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from tests.bench import oslo_crowd, oslo_width, processes
from tests.bench.oslo_contenders import Fake, Pipelines, RabbitMq, Raw, Team
from tests.bench.targets import Row
from tests.bench.works import Bench, say

Result = dict[str, Any]
Rounds = dict[str, list[Result]]
BODY_BYTES = 200
THREADS = 16
WARM_UP_S = 0.4
DELIVERED_S = 30.0
BURST = 8000
"""Messages of one turn: a server that comes to none of them meanwhile has room for so many (``queue_msgs`` is 10 000);
RabbitMQ, which makes senders wait for it, is through with fewer of them in a second."""
FANOUT_SERVERS = 8
SERVER_PROCESSES = 2
"""Of the fan-out's servers: half of them in each, the same for all contenders."""

_runs = itertools.count(1)


def teams(stack: ExitStack, count: int = 1) -> list[Team]:
    return [Team(stack, kind, count) for kind in (Pipelines, RabbitMq, Fake) if not kind.missing()]


def absent() -> str:
    return next((why for kind in (Pipelines, RabbitMq) if (why := kind.missing())), "")


def take_turns(bench: Bench, sides: Sequence[Any], measure: Callable[[Any], Result], what: str) -> Rounds:
    """Each side once a round."""
    done: Rounds = {side.name: [] for side in sides}
    for number in range(bench.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            result = measure(side)
            done[side.name].append(result)
            say(f"{side.name:<9} {what}: " + _one_line(result))
    return done


def _tell_counts(sides: Sequence[Any], done: Rounds) -> None:
    """What our proxy says about it, when something was lost."""
    for side in sides:
        if isinstance(getattr(side, "carrier", None), Pipelines) and _wrong(done[side.name]):
            say(f"the proxy counted {side.carrier.counts()}")


def _wrong(results: Sequence[Result]) -> dict[str, int]:
    return {kind: n for kind in ("lost", "twice") if (n := sum(each.get(kind, 0) for each in results))}


def _one_line(result: Result) -> str:
    words = [f"{result['per_s']:>9,.0f}/s"]
    words += [
        f"{key} {result[key]:,.0f} µs" for key in ("p50_us", "p99_us", "send_us", "cpu_us") if key in result
    ]
    words += [f"{result[key]} {key}" for key in ("lost", "twice") if result.get(key)]
    return "  ".join(words)


# ---------------------------------------------------------------- calls


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if ordered else 0.0


def call(team: Team, threads: int, seconds: float) -> Result:
    """Calls by ``threads`` threads, each one after the other."""
    used = processes.cpu_s(team.pids)
    answer = team.client.ask(do="calls", topic="call", threads=threads, seconds=seconds, size=BODY_BYTES)
    return _latency(answer) | {"cpu_us": 1e6 * (processes.cpu_s(team.pids) - used) / max(answer["count"], 1)}


def _latency(answer: Result) -> Result:
    times = answer["times_us"]
    return {
        "count": answer["count"],
        "per_s": answer["count"] / answer["seconds"],
        "p50_us": quantile(times, 0.5),
        "p99_us": quantile(times, 0.99),
    }


def calls(bench: Bench) -> list[Row]:
    """oslo.messaging: calls by one thread and by 16, zmq:// beside rabbit://; round trips beside a raw echo."""
    keys = ("oslo_calls_1", "oslo_calls_16", "oslo_rtt", "oslo_rtt_raw")
    if why := Pipelines.missing():
        return [Row(key, note=why) for key in keys]
    with ExitStack() as stack:
        sides: list[Any] = teams(stack)
        for team in sides:
            team.serve("call", 1)
            call(team, THREADS, WARM_UP_S)
        raw = Raw(stack)
        raw.calls(WARM_UP_S, BODY_BYTES)

        def one(side: Any) -> Result:
            if side is raw:
                return _latency(raw.calls(bench.seconds / 2, BODY_BYTES))
            return call(side, 1, bench.seconds)

        single = take_turns(bench, [*sides, raw], one, "call, 1 thread")
        many = take_turns(bench, sides, lambda team: call(team, THREADS, bench.seconds), "call, 16 threads")
    rows = [beside_rabbit(keys[0], single, "per_s", rate), beside_rabbit(keys[1], many, "per_s", rate)]
    rows.append(beside_rabbit(keys[2], single, "p50_us", percentiles))
    limit = Row(keys[3], raw={"rounds": single})
    limit.settle(beside_least(single))
    limit.figures = {name: percentiles(results) for name, results in single.items() if name != RabbitMq.name}
    return [*rows, limit]


# ---------------------------------------------------------------- what is not answered


def flood(team: Team, what: Result, receivers: int, seconds: float) -> Result:
    """Send for ``seconds``, then wait until the servers have it all; ``per_s`` is to the last delivery.

    A sender may be faster than the servers: ``BURST`` messages at most are sent, the same for all contenders.
    """
    run = next(_runs)
    for peer in team.servers:
        peer.ask(do="forget", run=run)
    used = processes.cpu_s(team.pids)
    sent = team.client.ask(run=run, seconds=seconds, count=BURST, size=BODY_BYTES, **what)
    share = receivers // len(team.servers) if receivers > 1 else 1
    asked = team.servers if receivers > 1 else team.servers[:1]
    for peer in asked:
        peer.tell(do="take", count=sent["count"] * share, within_s=DELIVERED_S)
    taken = [peer.hear() for peer in asked]
    got = sum(each["got"] for each in taken)
    last = max(each["last"] for each in taken)
    return {
        "count": got,
        "lost": sent["count"] * receivers - got,
        "twice": sum(each["twice"] for each in taken),
        "per_s": got / (last - sent["began"]) if got else 0.0,
        "sent_per_s": sent["count"] / (sent["ended"] - sent["began"]),
        "send_us": median(sent["each_us"]),
        "cpu_us": 1e6 * (processes.cpu_s(team.pids) - used) / max(got, 1),
    }


def casts(bench: Bench) -> list[Row]:
    """oslo.messaging: casts to one server, fan-outs to eight, notifications; zmq:// beside rabbit://."""
    keys = ("oslo_cast", "oslo_cast_send", "oslo_fanout", "oslo_fanout_send", "oslo_notify")
    if why := Pipelines.missing():
        return [Row(key, note=why) for key in keys]
    kinds: dict[str, tuple[Result, int]] = {
        "cast": ({"do": "casts", "topic": "cast"}, 1),
        "fanout": ({"do": "casts", "topic": "fanout", "fanout": True}, FANOUT_SERVERS),
        "notify": ({"do": "notes", "topic": "note"}, 1),
    }
    done: dict[str, Rounds] = {}
    with ExitStack() as stack:
        sides = teams(stack, SERVER_PROCESSES)
        for team in sides:
            team.serve("cast", 1)
            team.serve("fanout", FANOUT_SERVERS)
            team.servers[0].ask(do="hear", topic="note")
            team.settle()
        for name, (what, receivers) in kinds.items():
            for team in sides:
                flood(team, what, receivers, WARM_UP_S)
            measure = functools.partial(flood, what=what, receivers=receivers, seconds=bench.seconds)
            done[name] = take_turns(bench, sides, measure, name)
            _tell_counts(sides, done[name])
    return [
        beside_rabbit("oslo_cast", done["cast"], "per_s", rate),
        beside_rabbit("oslo_cast_send", done["cast"], "send_us", microseconds),
        beside_rabbit("oslo_fanout", done["fanout"], "per_s", rate),
        beside_rabbit("oslo_fanout_send", done["fanout"], "send_us", microseconds),
        beside_rabbit("oslo_notify", done["notify"], "per_s", rate),
    ]


# ---------------------------------------------------------------- rows


def ratios(done: Rounds, over: str, under: str, key: str) -> list[float]:
    """Round by round."""
    pairs = zip(done.get(over, []), done.get(under, []), strict=False)
    return [a[key] / b[key] for a, b in pairs if b[key]]


def beside_least(done: Rounds) -> list[float]:
    """A call's p50 over that of a raw echo and the processor time of oslo.messaging itself, together; round by round.

    ``fake:`` looks for messages every 50 ms: its own p50 says nothing.
    """
    ours, echo, own = (done.get(name, []) for name in (Pipelines.name, Raw.name, Fake.name))
    return [a["p50_us"] / (b["p50_us"] + c["cpu_us"]) for a, b, c in zip(ours, echo, own, strict=False)]


def beside_rabbit(key: str, done: Rounds, what: str, text: Callable[[list[Result]], str]) -> Row:
    """``what`` of ours over RabbitMQ's; failed when ours lost or doubled something."""
    row = Row(key, raw={"rounds": done}, note=absent())
    row.figures = {name: text(results) for name, results in done.items()}
    row.settle(ratios(done, Pipelines.name, RabbitMq.name, what))
    for name, results in done.items():
        if wrong := _wrong(results):
            row.figures[name] += f" ({', '.join(f'{n} {kind}' for kind, n in wrong.items())})"
            if name == Pipelines.name:
                row.value, row.spread = (0.0 if row.target.better == "more" else None), None
                row.note = row.figures[name]
    return row


def middle(results: list[Result], key: str) -> float:
    return float(median(result[key] for result in results))


def rate(results: list[Result]) -> str:
    text = f"{middle(results, 'per_s'):,.0f}/s"
    return text + (f", {middle(results, 'cpu_us'):,.0f} µs CPU" if "cpu_us" in results[0] else "")


def percentiles(results: list[Result]) -> str:
    return f"{middle(results, 'p50_us'):,.0f} / {middle(results, 'p99_us'):,.0f} µs"


def microseconds(results: list[Result]) -> str:
    return f"{middle(results, 'send_us'):,.0f} µs"


WORKS: dict[str, Callable[[Bench], list[Row]]] = {
    "oslo_calls": calls,
    "oslo_casts": casts,
    "oslo_width": oslo_width.measure,
    "oslo_crowd": oslo_crowd.measure,
}
