"""``headgate stats``: message counts and rates of a broker, of all brokers, or the figures of any service."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final

import typer

from broker.cli import options
from broker.cli.callrates import CallRates, Kind, ask
from broker.cli.exits import OK, UsageError
from broker.cli.screen import Screen, watched
from broker.cli.session import Session, at_each, looked
from broker.client import Handle

EXAMPLES = (
    "headgate stats                        this broker since its start",
    "headgate stats --all --watch          every broker, messages per second",
    "headgate stats --service overlay",
    "headgate stats --services --watch     calls by method, events, jobs: rates, errors, latency",
    "headgate stats --services --kind nfp  jobs by service and task",
    "headgate stats --users --watch        who holds how much here, the busiest first",
)
OVERVIEW: Final = (
    ("rx request", "rx.request"),
    ("response", "rx.response"),
    ("event", "rx.event"),
    ("tx request", "tx.request"),
    ("response", "tx.response"),
    ("event", "tx.event"),
    ("pending", "pending"),
    ("links", "links"),
)
"""Columns of ``--all``: head, counter."""
LEVELS: Final = ("pending", "links", "outbox_bytes")
"""Figures that rise and fall: what counts is their value, not their rate."""
HOLDINGS: Final = (
    ("links", "links"),
    ("open calls", "pending"),
    ("services", "services"),
    ("subscriptions", "subscriptions"),
    ("queued bytes", "outbox_bytes"),
    ("received", "received"),
)
"""Columns of ``--users``: head, key."""
ALONE: Final = {
    "all": ("rank", "service"),
    "users": ("all", "service"),
    "services": ("all", "users", "service"),
}
"""Option -> those that it does not go with."""
Figures = Mapping[str, Any]
Services = Annotated[
    bool,
    typer.Option(
        "--services",
        help="Calls of everybody by method, events, jobs, oslo's topics, at all brokers or at --rank.",
    ),
]


def flat(figures: Figures, prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted names; lists as their length.

    >>> flat({"rx": {"event": 3}, "peers": [1, 2]})
    {'rx.event': 3, 'peers': 2}
    """
    found: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = len(value) if isinstance(value, list) else value
    return found


def rates(now: Figures, before: Figures, seconds: float) -> dict[str, float]:
    """Per second, for each counter of two looks that only rises; a counter that was cleared has none.

    >>> rates({"rx.event": 30, "links": 2}, {"rx.event": 10, "links": 1}, 2.0)
    {'rx.event': 10.0}
    """
    return {
        name: (value - before[name]) / seconds
        for name, value in now.items()
        if name not in LEVELS and _is_count(value) and _is_count(before.get(name)) and value >= before[name]
    }


def _is_count(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def shown(value: Any) -> str:
    """A figure for people: thousands apart, three digits behind the point of small numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


class Look:
    """The figures of some ranks at one time, and their rates since the look before."""

    def __init__(self, ranks: Sequence[int | None], figures: Sequence[Figures], before: Look | None) -> None:
        self.at = time.monotonic()
        self.ranks = ranks
        self.figures = [flat(each) for each in figures]
        self.rates: list[dict[str, float]] = [{} for _ in figures]
        self.seconds = 0.0
        if before is not None:
            self.seconds = self.at - before.at
            pairs = zip(self.figures, before.figures, strict=True)
            self.rates = [rates(now, then, self.seconds) for now, then in pairs]

    def show(self, screen: Screen) -> None:
        """Print it: a line per figure of the nearest or one broker, a line per rank of all."""
        if screen.as_json:
            self._json(screen)
        elif isinstance(self.ranks, range):
            self._per_rank(screen)
        else:
            self._per_figure(screen)

    def _json(self, screen: Screen) -> None:
        for rank, figures, rate in zip(self.ranks, self.figures, self.rates, strict=True):
            value: dict[str, Any] = {} if rank is None else {"rank": rank}
            value["figures"] = figures
            if self.seconds:
                value["per_second"] = rate
            screen.value(value)

    def _per_rank(self, screen: Screen) -> None:
        rows = [
            (str(rank), *(shown(self._cell(at, name)) for _head, name in OVERVIEW))
            for at, rank in enumerate(self.ranks)
        ]
        if self.seconds:
            screen.line("messages per second", "bold")
        screen.table(("rank", *(head for head, _name in OVERVIEW)), rows)

    def _cell(self, at: int, name: str) -> Any:
        if self.seconds and name not in LEVELS:
            return self.rates[at].get(name, "")
        return self.figures[at].get(name, "")

    def _per_figure(self, screen: Screen) -> None:
        figures, rate = self.figures[0], self.rates[0]
        if self.seconds:
            rows = [(name, shown(value), shown(rate.get(name))) for name, value in figures.items()]
            screen.table(("figure", "now", "per second"), rows)
        else:
            screen.table(("figure", "now"), [(name, shown(value)) for name, value in figures.items()])


class Holders:
    """What the users of one broker held at one time, and how many messages a second each sent since the look before."""

    def __init__(self, answer: Figures, before: Holders | None) -> None:
        self.at = time.monotonic()
        self.limits = answer["limits"]
        self.users = [dict(user) for user in answer["users"]]
        self._received = {(user["userid"], user["owner"]): user["received"] for user in self.users}
        if before is not None:
            for user in self.users:
                then = before._received.get((user["userid"], user["owner"]), 0)
                user["per_second"] = max(0, user["received"] - then) / (self.at - before.at)
            self.users.sort(key=lambda user: -user["per_second"])

    def show(self, screen: Screen) -> None:
        """Print a line per user; the last one says how much a guest may hold."""
        if screen.as_json:
            screen.value({"users": self.users, "limits": self.limits})
            return
        columns = (*HOLDINGS, ("per second", "per_second"))
        rows = [
            (
                f"{user['userid']}{' (owner)' * user['owner']}",
                *(shown(user.get(key)) for _head, key in columns),
            )
            for user in self.users
        ]
        limits = ("a guest at most", *(shown(self.limits.get(key)) for _head, key in columns))
        screen.table(("userid", *(head for head, _key in columns)), [*rows, limits])


async def fetch(handle: Handle, service: str, ranks: Sequence[int | None]) -> list[Figures]:
    """The figures of a service at each rank; None is the nearest."""
    payload = {"detail": True} if service == "broker" else None

    async def one(rank: int | None) -> Figures:
        return (await handle.rpc(f"{service}.stats-get", payload, nodeid=options.nodeid(rank))).json()

    return await at_each(ranks, one)


async def _figures(
    handle: Handle, session: Session, service: str, ranks: Sequence[int | None], before: Look | None
) -> Look:
    return Look(ranks, await session.within(fetch(handle, service, ranks), f"{service}.stats-get"), before)


async def _held(handle: Handle, session: Session, rank: int | None, before: Holders | None) -> Holders:
    answer = handle.rpc("broker.users", nodeid=options.nodeid(rank))
    return Holders((await session.within(answer, "broker.users")).json(), before)


async def _calls(
    handle: Handle, ranks: Sequence[int], builtin: bool, kind: Kind | None, before: CallRates | None
) -> CallRates:
    return CallRates(await ask(handle, ranks), before, builtin, kind)


def _refuse_contradictions(**given: bool) -> None:
    """Raise where two options ask for different things; the names are those of the options.

    Raises:
        UsageError: it names both.
    """
    for one, others in ALONE.items():
        if given[one] and (clash := [other for other in others if given[other]]):
            raise UsageError(f"--{one} does not go with --{clash[0]}")
    for name in ("builtin", "kind"):
        if given[name] and not given["services"]:
            raise UsageError(f"--{name} goes with --services")


def stats(
    rank: options.Rank = None,
    every: options.All = False,
    service: Annotated[
        str, typer.Option("--service", "-s", metavar="NAME", help="The figures of this service.")
    ] = "broker",
    users: Annotated[
        bool,
        typer.Option("--users", help="What each user holds there, the busiest first; for owner and admin."),
    ] = False,
    services: Services = False,
    builtin: Annotated[
        bool, typer.Option("--builtin", help="With --services: the broker's own services, too.")
    ] = False,
    kind: Annotated[Kind | None, typer.Option(help="With --services: only these.")] = None,
    watch: options.Watch = False,
    interval: options.Every = 1.0,
    uri: options.Uri = None,
    as_json: options.AsJson = False,
    timeout: options.Timeout = options.ANSWER_S,
) -> int:
    """Print how many messages a broker received (rx) and sent (tx), by type.

    --watch shows messages per second between two looks.
    """
    _refuse_contradictions(
        all=every,
        rank=rank is not None,
        service=service != "broker",
        users=users,
        services=services,
        builtin=builtin,
        kind=kind is not None,
    )
    session = Session(uri, as_json, timeout)

    async def work(handle: Handle) -> int:
        whole = range(await handle.size()) if every or (services and rank is None) else ()
        take: Callable[[Any], Awaitable[Any]]
        if services:
            take = partial(_calls, handle, whole if rank is None else (rank,), builtin, kind)
        elif users:
            take = partial(_held, handle, session, rank)
        else:
            take = partial(_figures, handle, session, service, whole if every else (rank,))

        async def look(before: Any) -> Any:
            return await looked(handle, partial(take, before), watch)

        screen = session.screen
        await watched(screen, look, lambda each: each.show(screen), interval if watch else None)
        return OK

    return session.run(work)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("stats", stats, EXAMPLES, argv)
