"""``headgate ping``: time the way to a service and back, and with ``--trace`` each stretch of it.

Every broker on the way is asked to tell of the ping as it passes (``overlay.trace``)::

    we ──link──> rank 0 ──link──> rank 1 ──link──> rank 3
                 rx  tx           rx  tx           rx      request
    we <──────── tx  rx <──────── tx  rx <──────── tx      response

Times of two clocks are never compared. A broker's time is the difference of two times of its own. A link's time is that
for which the near broker waited less that for which the far one had the ping: both ways together, for neither end can
tell one from the other. What a message waits in a queue in front of a link counts as the link's.

A flux-core broker tells of the tree's links alone: the first broker of a way is then shown as one with the link to it.
It tells times of day, which may be set while a ping is under way; ours tell those of a monotonic clock, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import statistics
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, Self

import typer

from broker.cli import options
from broker.cli.exits import OK, TIMEOUT, UsageError
from broker.cli.screen import Row, Screen
from broker.cli.session import Session
from broker.client import Handle, Response
from broker.client.calls import Stream
from broker.errors import RpcError
from broker.wire.message import NODEID_ANY, REQUEST, RESPONSE

HEADS: Final = ("where", "there", "back", "both ms")
NONCE: Final = "headgate.trace"
"""Key of a ping's payload by which its records are known; a ping is answered with all that it said."""
_REFUSALS: Final = {
    errno.EPERM: "lets nobody but its owner trace",
    errno.ENOSYS: "has no trace, it is an older broker",
    errno.EHOSTUNREACH: "cannot be reached",
}
"""What to say when a broker on the way does not trace."""
Seen = dict[tuple[str, int], float]
"""When one broker saw a ping: (``rx`` or ``tx``, type) -> seconds by its clock."""


class Hop(NamedTuple):
    """One stretch of the way and the milliseconds it took; None where nobody can tell."""

    where: str
    there_ms: float | None
    back_ms: float | None
    both_ms: float | None

    def row(self) -> Row:
        """For people."""
        return (self.where, *("" if ms is None else f"{ms:.3f}" for ms in self[1:]))


def way(shape: Mapping[str, Any], start: int, end: int) -> list[int]:
    """The ranks from ``start`` to ``end`` through the tree of an ``overlay.topology`` answer.

    >>> way({"rank": 0, "children": [{"rank": 1, "children": [{"rank": 3}]}, {"rank": 2}]}, 3, 2)
    [3, 1, 0, 2]
    """
    up, down = _below(shape, start), _below(shape, end)
    if not up or not down:
        raise RpcError(errno.EHOSTUNREACH, f"rank {end if up else start} is not in the tree")
    shared = sum(1 for _ in _same(up, down))
    return [*reversed(up[shared:]), *down[shared - 1 :]]


def _below(shape: Mapping[str, Any], rank: int) -> list[int]:
    """From the root of ``shape`` to ``rank``; nothing when it is not there."""
    if shape["rank"] == rank:
        return [rank]
    for child in shape.get("children", ()):
        found = _below(child, rank)
        if found:
            return [int(shape["rank"]), *found]
    return []


def _same(one: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    """How both begin."""
    count = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    return one[: min(len(one), len(other)) if count is None else count]


def hops_of(ranks: Sequence[int], seen: Sequence[Seen], total: float) -> list[Hop]:
    """What was seen along ``ranks``, and the ``total`` seconds until the answer was here, as stretches of the way."""
    hops = []
    waited: float | None = total
    before = "here"
    for rank, times in zip(ranks, seen, strict=True):
        came, went = times.get(("rx", REQUEST)), times.get(("tx", REQUEST))
        back, left = times.get(("rx", RESPONSE)), times.get(("tx", RESPONSE))
        had, waits = _between(came, left), _between(went, back)
        if had is None and before == "here":  # a broker that does not tell of its clients
            hops.append(Hop(f"{before} - rank {rank}", None, None, _ms(_less(waited, waits or 0.0))))
        else:
            hops.append(Hop(f"{before} - {rank}", None, None, _ms(_less(waited, had))))
            own = had if (went, back) == (None, None) else _less(had, waits)
            hops.append(Hop(f"rank {rank}", _ms(_between(came, went)), _ms(_between(back, left)), _ms(own)))
        waited, before = waits, str(rank)
    if waited is not None:
        hops.append(Hop(f"{before} - service", None, None, _ms(waited)))
    return hops


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _less(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else whole - part


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def medians(runs: Sequence[Sequence[Hop]]) -> list[Hop]:
    """The median of each figure over several pings the same way."""
    return [
        Hop(same[0].where, *(_median([hop[at] for hop in same]) for at in (1, 2, 3)))
        for same in zip(*runs, strict=True)
    ]


def _median(values: Sequence[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


class Trace:
    """The traces of one topic at every broker between here and a rank; open for the time of a block.

    Args:
        handle: where the pings start. topic: theirs. rank: of the broker they go to. timeout_s: for each answer.

    Attributes:
        ranks: the brokers on the way, the nearest first.
    """

    def __init__(self, handle: Handle, topic: str, rank: int, timeout_s: float | None) -> None:
        self._handle = handle
        self._topic = topic
        self._rank = rank
        self._timeout_s = timeout_s
        self._streams: list[Stream] = []
        self._stack = contextlib.AsyncExitStack()
        self.nonce = uuid.uuid4().hex
        self.ranks: list[int] = []

    async def __aenter__(self) -> Self:
        """Open them.

        Raises:
            RpcError: a broker on the way has no trace, or not for us.
        """
        ask = {"rank": 0}
        shape = await self._handle.rpc("overlay.topology", ask, nodeid=0, timeout_s=self._timeout_s)
        self.ranks = way(shape.json(), await self._handle.rank(), self._rank)
        wanted = {
            "typemask": REQUEST | RESPONSE, "topic_glob": self._topic, "nodeid": -1, "full": True, "clients": True,
        }  # fmt: skip
        async with contextlib.AsyncExitStack() as stack:
            for rank in self.ranks:
                stream = self._handle.stream("overlay.trace", wanted, nodeid=rank)
                self._streams.append(await stack.enter_async_context(stream))
            await self.take(-1)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stack.aclose()

    async def take(self, seq: int) -> list[Seen]:
        """What each broker saw of the ping ``seq``, which has been answered.

        Raises:
            RpcError: a broker does not trace. TimeoutError: one does not answer.
        """
        await asyncio.gather(*map(self._overtake, self.ranks))
        return [
            await self._read(rank, stream, seq)
            for rank, stream in zip(self.ranks, self._streams, strict=True)
        ]

    async def _overtake(self, rank: int) -> None:
        """What the trace of ``rank`` has said is here when a later question to the same service is answered."""
        with contextlib.suppress(RpcError):  # an answer, too
            await self._handle.rpc("overlay.ping", {}, nodeid=rank, timeout_s=self._timeout_s)

    async def _read(self, rank: int, stream: Stream, seq: int) -> Seen:
        seen: Seen = {}
        try:
            while stream.ready or stream.ended:
                told = (await anext(stream)).json()
                payload = told.get("payload")
                if isinstance(payload, dict) and (payload.get(NONCE), payload.get("seq")) == (
                    self.nonce,
                    seq,
                ):
                    seen[told["prefix"], told["type"]] = told.get("monotonic", told["timestamp"])
        except StopAsyncIteration:
            raise RpcError(errno.ENODATA, f"rank {rank} ended its trace") from None
        except RpcError as error:
            reason = _REFUSALS.get(error.errno, "does not trace")
            raise RpcError(error.errno, f"rank {rank} {reason}: {error}", topic="overlay.trace") from error
        return seen


EXAMPLES = (
    "headgate ping                       the broker itself, until Ctrl-C",
    "headgate ping 3                     through the tree to rank 3 and back",
    "headgate ping --count 3 '1!attr'    the service attr of rank 1, three times",
    "headgate ping --trace 3             the time in each broker and on each link to rank 3",
)


class Target(NamedTuple):
    """The service to be pinged: at a rank, anywhere towards rank 0, or above our broker."""

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
                    await asyncio.sleep(max(0.0, interval_s - (self.times[-1] / 1000 if self.times else 0.0)))
                await self._once(seq, pad)
        finally:
            counts = summary(self.sent, self.times)
            if self._hops:
                counts["hops"] = [hop._asdict() for hop in medians(self._hops)]
            self._screen.record(counts, summary_line(counts), "bold")
            if len(self._hops) > 1 and not self._screen.as_json:
                self._screen.table(("median", *HEADS[1:]), [hop.row() for hop in medians(self._hops)])
        return OK if len(self.times) == self.sent else TIMEOUT

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
