"""``headgate ping``: time the way to a service and back, and with ``--trace`` each stretch of it (see ``hops``)."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer

from broker.cli import options
from broker.cli.exits import OK, TIMEOUT, UsageError
from broker.cli.hops import HEADS, NONCE, Hop, Trace, hops_of, medians
from broker.cli.screen import Screen
from broker.cli.session import Session
from broker.client import Handle, Response
from broker.wire.message import NODEID_ANY

EXAMPLES = (
    "headgate ping                       the broker itself, until Ctrl-C",
    "headgate ping 3                     through the tree to rank 3 and back",
    "headgate ping --count 3 '1!attr'    the service attr of rank 1, three times",
    "headgate ping --trace 3             the time in each broker and on each link to rank 3",
)


class Target(NamedTuple):
    """Who is pinged: a service, at a rank, anywhere towards rank 0, or above our broker."""

    service: str
    nodeid: int
    upstream: bool = False

    def __str__(self) -> str:
        where = "upstream" if self.upstream else "any" if self.nodeid == NODEID_ANY else str(self.nodeid)
        return f"{where}!{self.service}"


class Echo(NamedTuple):
    """One answer: how long it took, who gave it, and by which way."""

    seq: int
    time_ms: float
    rank: int
    route: tuple[str, ...]


def parse_target(text: str, rank: int | None = None) -> Target:
    """What a person writes: ``SERVICE``, ``RANK``, ``RANK!SERVICE``, ``any!SERVICE`` or ``upstream!SERVICE``.

    Raises:
        UsageError: the rank is none, or is given twice.

    >>> str(parse_target("3")), str(parse_target("kvs")), str(parse_target("2!kvs"))
    ('3!broker', 'any!kvs', '2!kvs')
    """
    place, mark, service = text.partition("!")
    if not mark:
        place, service = (text, "broker") if text.isdecimal() else ("", text)
    if place and rank is not None:
        raise UsageError(f"saw a rank in {text!r} and --rank {rank}, expected one of them")
    if not place:
        return Target(service, NODEID_ANY if rank is None else rank)
    if place in ("any", "upstream"):
        return Target(service, NODEID_ANY, place == "upstream")
    if not (place.isascii() and place.isdecimal() and int(place) < NODEID_ANY - 1 and service):
        raise UsageError(f"saw {text!r}, expected SERVICE, RANK or RANK!SERVICE")
    return Target(service, int(place))


def read_echo(seq: int, seconds: float, response: Response) -> Echo:
    """The answer of a ``SERVICE.ping``; a service that answers without rank or route has none to show."""
    body = response.json() if response.payload else {}
    route = str(body.get("route", ""))
    return Echo(seq, seconds * 1000, int(body.get("rank", -1)), tuple(route.split("!")) if route else ())


def line_of(target: Target, echo: Echo) -> str:
    """An answer for people, as ``flux ping`` prints it."""
    place = target._replace(nodeid=echo.rank, upstream=False) if echo.rank >= 0 else target
    return f"{place}.ping seq={echo.seq} time={echo.time_ms:.3f} ms ({'!'.join(echo.route)})"


def summary(sent: int, times: Sequence[float]) -> dict[str, Any]:
    """Counts, and the least, median and greatest time in milliseconds (None without an answer)."""
    told = (min(times), statistics.median(times), max(times)) if times else (None, None, None)
    return {
        "sent": sent,
        "received": len(times),
        **dict(zip(("min_ms", "median_ms", "max_ms"), told, strict=True)),
    }


def summary_line(counts: dict[str, Any]) -> str:
    """The summary for people."""
    text = f"{counts['sent']} sent, {counts['received']} answered"
    if counts["received"]:
        text += ", min {min_ms:.3f} median {median_ms:.3f} max {max_ms:.3f} ms".format(**counts)
    return text


class Pinging:
    """A run of pings to one target."""

    def __init__(self, handle: Handle, target: Target, screen: Screen, timeout_s: float | None) -> None:
        self._handle = handle
        self._target = target
        self._screen = screen
        self._timeout_s = timeout_s
        self.sent = 0
        self.times: list[float] = []
        self._trace: Trace | None = None
        self._hops: list[list[Hop]] = []

    async def run_traced(self, count: int, interval_s: float, pad: int) -> int:
        """As ``run``, every stretch of the way timed.

        Raises:
            RpcError: a broker on the way does not trace, or nobody knows which way it is.
        """
        where = await self._handle.rpc(
            f"{self._target.service}.ping",
            {"seq": 0},
            nodeid=self._target.nodeid,
            upstream=self._target.upstream,
            timeout_s=self._timeout_s,
        )
        rank = read_echo(0, 0.0, where).rank
        if rank < 0:
            raise UsageError(f"{self._target} does not say at which rank it is, expected RANK!SERVICE")
        self._target = Target(self._target.service, rank)
        async with Trace(self._handle, f"{self._target.service}.ping", rank, self._timeout_s) as self._trace:
            return await self.run(count, interval_s, pad)

    async def run(self, count: int, interval_s: float, pad: int) -> int:
        """Ping ``count`` times (0: for ever), ``interval_s`` apart; returns the exit code."""
        try:
            for seq in itertools.count() if not count else range(count):
                if seq:
                    await asyncio.sleep(max(0.0, interval_s - self._last_s()))
                await self._once(seq, pad)
        finally:
            counts = summary(self.sent, self.times)
            if self._hops:
                counts["hops"] = [hop._asdict() for hop in medians(self._hops)]
            self._screen.record(counts, summary_line(counts), "bold")
            if len(self._hops) > 1 and not self._screen.as_json:
                self._screen.table(("median", *HEADS[1:]), [hop.row() for hop in medians(self._hops)])
        return OK if len(self.times) == self.sent else TIMEOUT

    def _last_s(self) -> float:
        return self.times[-1] / 1000 if self.times else 0.0

    async def _once(self, seq: int, pad: int) -> None:
        target = self._target
        now = time.time_ns()
        body = {"seq": seq, "time.tv_sec": now // 10**9, "time.tv_nsec": now % 10**9, "pad": "p" * pad}
        if self._trace is not None:
            body[NONCE] = self._trace.nonce
        self.sent += 1
        began = time.perf_counter()
        try:
            response = await self._handle.rpc(
                f"{target.service}.ping",
                body,
                nodeid=target.nodeid,
                upstream=target.upstream,
                timeout_s=self._timeout_s,
            )
        except TimeoutError:
            lost = {"seq": seq, "lost": True}
            self._screen.record(
                lost, f"{target}.ping seq={seq} no answer within {self._timeout_s:g} s", "red"
            )
            return
        echo = read_echo(seq, time.perf_counter() - began, response)
        self.times.append(echo.time_ms)
        if self._trace is None:
            self._screen.record(echo._asdict(), line_of(target, echo))
        else:
            await self._show_hops(echo, self._trace)

    async def _show_hops(self, echo: Echo, trace: Trace) -> None:
        """An answer, and the way it took."""
        hops = hops_of(trace.ranks, await trace.take(echo.seq), echo.time_ms / 1000)
        self._hops.append(hops)
        self._screen.record(
            {**echo._asdict(), "hops": [hop._asdict() for hop in hops]}, line_of(self._target, echo)
        )
        if not self._screen.as_json:
            self._screen.table(HEADS, [hop.row() for hop in hops])


def ping(
    service: Annotated[str, typer.Argument(metavar="[SERVICE|RANK|RANK!SERVICE]")] = "broker",
    count: Annotated[int, typer.Option("--count", "-c", min=0, help="How often; 0: until Ctrl-C.")] = 0,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0, metavar="SECONDS", help="From one to the next.")
    ] = 1.0,
    pad: Annotated[
        int, typer.Option("--pad", min=0, metavar="BYTES", help="Make each message this much larger.")
    ] = 0,
    trace: Annotated[
        bool, typer.Option("--trace", "-v", help="Time each broker and each link on the way; for the owner.")
    ] = False,
    rank: options.Rank = None,
    uri: options.Uri = None,
    as_json: options.AsJson = False,
    timeout: options.Timeout = 5.0,
) -> int:
    """Time the way to a service and back, and show the route the answer took.

    With --trace: how long each broker had the ping on the way there and back, by its own clock, and how long each link
    took for both ways together; "here" is this command.

    Exit code 4 when an answer did not come in time, 1 when the service answered with an error.
    """
    target = parse_target(service, rank)
    session = Session(uri, as_json, timeout)

    async def work(handle: Handle) -> int:
        pinging = Pinging(handle, target, session.screen, session.timeout_s)
        return await (pinging.run_traced if trace else pinging.run)(count, interval, pad)

    return session.run(work)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("ping", ping, EXAMPLES, argv)
