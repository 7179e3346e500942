"""``headgate trace``: calls as they pass the brokers where they enter: who, where, how long, how they ended; with
``--events`` events, at every broker and at every subscriber of a gateway.

Every broker is asked to tell of what passes its clients' links (``overlay.trace`` with ``clients`` and ``calls``),
so that a call is seen once, at the broker its caller is connected to, and timed by that broker's clock alone::

    caller ──link──> rank 2 ──> ... the service
           rx request
           tx response, of the same link, topic and matchtag

What a broker cannot send for us is counted there (``dropped``) and told.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from glob import escape
from typing import Annotated, Any, Final, Generic, Self, TypeVar

import typer

from broker.cli import options
from broker.cli.exits import UsageError
from broker.cli.screen import Screen, compact
from broker.cli.session import Session
from broker.cli.traced import OPEN_MAX, TracedCall, TracedCalls, TracedEvents, TracedHop, glob_of
from broker.cli.tree import SILENT_S, providers
from broker.client import Handle
from broker.errors import Overrun, RpcError
from broker.wire.message import EVENT, NODEID_ANY, REQUEST, RESPONSE

EXAMPLES = (
    "headgate trace                        calls of everybody at all brokers, but those of built-in services",
    "headgate trace calc                   of one service; 'calc.a*' is a pattern, calc.add one method",
    "headgate trace --errors --count 1     until one fails",
    "headgate trace --slower 100 --rank 2  those that take longer than 100 ms, entered at rank 2",
    "headgate trace --json attr.get | jq .ms",
    "headgate trace --events job.          where events go whose topic begins so: hop by hop, subscriber by subscriber",
)
RETRY_S: Final = 1.0
"""Between two attempts to have a broker tell of its calls that cannot be reached."""
_UNREACHABLE: Final = {errno.EHOSTUNREACH: "cannot be reached"}
_NO_GATEWAY: Final = {
    **_UNREACHABLE,
    errno.ECANCELED: "leaves",
    errno.ENOSYS: "is not there, or knows of no traces",
}
"""Gateways come and go while others are looked at: as soon as one begins to leave, and once it has."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Source(Generic[T]):
    """A broker or gateway that is asked to report what passes it.

    Attributes:
        name: for people. topic, asked, nodeid: the request of the stream.
        ping: what is answered once it looks on; "": an empty record says so.
        take: makes of a record what there is to print. lost: what it told before ends here.
        absent: errno -> what is told of one that may come back; any other ends the trace.
    """

    name: str
    topic: str
    asked: Mapping[str, Any]
    nodeid: int
    ping: str
    take: Callable[[dict[str, Any]], Sequence[T]]
    lost: Callable[[], None]
    absent: Mapping[int, str] = field(default_factory=lambda: _UNREACHABLE)


class Traces(Generic[T]):
    """The traces of brokers and gateways, told into one queue, for the time of a block.

    Args:
        handle: asks them. sources: whom. note: is told what is missing.
    """

    def __init__(self, handle: Handle, sources: Sequence[Source[T]], note: Callable[[str], None]) -> None:
        self._handle = handle
        self._note = note
        self._sources = sources
        self._told: asyncio.Queue[T | Exception] = asyncio.Queue(OPEN_MAX)
        self._silent: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._waited_for = {source.name for source in sources}
        self._all_look_on = asyncio.Event()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._follow(source), name=f"trace of {source.name}") for source in self._sources
        ]
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def begun(self) -> int:
        """Wait until all look on, or are known not to; returns how many do."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENT_S):
                await self._all_look_on.wait()
        for name in self._waited_for:
            self._say(name, "does not answer")
        return len(self._sources) - len(self._silent)

    def _heard_of(self, name: str) -> None:
        self._waited_for.discard(name)
        if not self._waited_for:
            self._all_look_on.set()

    async def show(self, show: Callable[[T], bool], count: int) -> None:
        """Call ``show`` with what is told, until it has returned True (printed) ``count`` times; 0: without end.

        Raises:
            RpcError: one of them refuses. LinkError: the link has ended.
        """
        left = count
        while left or not count:
            told = await self._told.get()
            if isinstance(told, Exception):
                raise told
            left -= show(told)

    async def _follow(self, source: Source[T]) -> None:
        while True:
            try:
                await self._read(source)
            except Overrun:
                self._say(source.name, "says more than can be printed: some was missed")
            except Exception as error:  # whoever waits for more has to hear of it
                if not (isinstance(error, RpcError) and error.errno in source.absent):
                    await self._told.put(error)
                    return
                self._say(source.name, source.absent[error.errno])
            finally:
                self._heard_of(source.name)
            source.lost()
            await asyncio.sleep(RETRY_S)

    async def _read(self, source: Source[T]) -> None:
        async with self._handle.stream(source.topic, source.asked, nodeid=source.nodeid) as stream:
            if source.ping:  # answered behind the request of the trace
                await self._handle.rpc(source.ping, {}, nodeid=source.nodeid)
                self._looks_on(source.name)
            async for response in stream:
                told = response.json()
                if not told:
                    self._looks_on(source.name)
                    continue
                if told.get("dropped"):
                    self._note(f"{source.name} missed {told['dropped']} messages: too many pass")
                for each in source.take(told):
                    await self._told.put(each)

    def _looks_on(self, name: str) -> None:
        self._heard_of(name)
        self._silent.pop(name, None)

    def _say(self, name: str, what: str) -> None:
        if self._silent.get(name) != what:
            self._silent[name] = what
            self._note(f"{name} {what}")


def of_brokers(
    ranks: Sequence[int],
    asked: Mapping[str, Any],
    take: Callable[[int, dict[str, Any]], Sequence[T]],
    lost: Callable[[int], None],
) -> list[Source[T]]:
    """The brokers at ``ranks``, each of which is asked for what passes its links."""
    asked = {"nodeid": -1, "clients": True, "calls": True, **asked}
    return [
        Source(
            f"rank {rank}",
            "overlay.trace",
            asked,
            rank,
            "overlay.ping",
            partial(take, rank),
            partial(lost, rank),
        )
        for rank in ranks
    ]


class CallTrace(Traces[TracedCall]):
    """The calls that enter at some brokers.

    Args:
        handle: asks them. ranks: whom. topics, own: see ``TracedCalls``. full: with payloads.
        note: is told what is missing.

    Attributes:
        seen: what was told so far.
    """

    def __init__(
        self,
        handle: Handle,
        ranks: Sequence[int],
        topics: Sequence[str],
        own: Container[str],
        full: bool,
        note: Callable[[str], None],
    ) -> None:
        self.seen = TracedCalls(topics, own)
        glob = topics[0] if len(topics) == 1 else "*"
        asked = {"typemask": REQUEST | RESPONSE, "topic_glob": glob, "full": full}
        super().__init__(handle, of_brokers(ranks, asked, self._take, self.seen.lost), note)

    def _take(self, rank: int, told: dict[str, Any]) -> Sequence[TracedCall]:
        call = None if told["name"] is None else self.seen.take(rank, told)
        return [] if call is None else [call]


async def builtin_services(handle: Handle) -> frozenset[str]:
    """The names of the brokers' own services.

    Raises:
        RpcError: it is a broker that shows no calls of its clients.
    """
    try:
        services = (await handle.rpc("broker.calls")).json()["services"]
    except RpcError as error:
        if error.errno == errno.ENOSYS:
            text = (
                "this broker shows no calls of its clients; `flux overlay trace` shows what passes its tree"
            )
            raise RpcError(errno.ENOSYS, text) from error
        raise
    return frozenset(name for name, service in services.items() if service["builtin"])


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """Which calls are printed, and how.

    Attributes:
        errors: those that fail. slower_ms: those that take so long. payload: with what they ask.
        count: so many; 0: without end.
    """

    errors: bool
    slower_ms: float
    payload: bool
    count: int

    def show(self, screen: Screen, call: TracedCall) -> bool:
        """Print it, if it is wanted; whether it is."""
        if (self.errors and not call.errnum) or (call.ms or 0.0) < self.slower_ms:
            return False
        text = call.text()
        if self.payload and call.payload is not None:
            text += f"  {compact(call.payload)}"
        screen.record(call.value(), text, "red" if call.errnum else "")
        return True


async def watch(trace: CallTrace, screen: Screen, shown: TraceFilter) -> None:
    """Print calls until as many were printed as are wanted."""
    async with trace:
        screen.note("trace", f"{await trace.begun()} brokers look on")
        try:
            await trace.show(partial(shown.show, screen), shown.count)
        finally:
            screen.note("trace", trace.seen.summary())


def show_hop(screen: Screen, hop: TracedHop) -> bool:
    """Print what became of an event at one place."""
    screen.record(hop.value(), hop.text(), "red" if hop.lost else "")
    return True


async def watch_events(
    handle: Handle, screen: Screen, ranks: Sequence[int], prefixes: Sequence[str], count: int
) -> None:
    """Print what brokers and gateways do with events, until as many lines were printed as are wanted."""
    seen = TracedEvents(tuple(prefixes) or ("",))
    glob = f"{escape(prefixes[0])}*" if len(prefixes) == 1 else "*"
    asked = {"typemask": EVENT, "topic_glob": glob}
    gateways = await gateway_processes(handle)
    sources = of_brokers(ranks, asked, seen.take, lambda _rank: None)
    sources += [
        Source(
            name,
            f"{name}.trace",
            {"topics": list(prefixes)},
            rank,
            "",
            seen.take_subscribers,
            lambda: None,
            _NO_GATEWAY,
        )
        for name, rank in gateways
    ]
    note = partial(screen.note, "trace")
    traces = Traces(handle, sources, note)
    async with traces:
        many, all_of_them = await traces.begun(), len(sources)
        if many == all_of_them:
            note(f"{many - len(gateways)} broker(s) and {len(gateways)} gateway process(es) look on")
        else:
            note(f"{many} of {all_of_them} brokers and gateway processes look on")
        try:
            await traces.show(partial(show_hop, screen), count)
        finally:
            note(seen.summary())


async def gateway_processes(handle: Handle) -> list[tuple[str, int]]:
    """The names of the processes of gateways, and where each is; none, where rank 0 does not know."""
    known = await providers(handle)
    return [
        (name, rank)
        for name, ranks in sorted(known["services"].items() if known else ())
        if name.startswith("gateway-")
        for rank in ranks
    ]


def trace(
    topic: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...",
            help="A service, a method, or a pattern like 'calc.a*'; none: all but the broker's own services. "
            "With --events the beginnings of topics.",
        ),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            "--rank",
            "-r",
            min=0,
            max=NODEID_ANY - 2,
            metavar="RANK",
            help="Calls that enter there. Default: all.",
        ),
    ] = None,
    errors: Annotated[bool, typer.Option("--errors", "-e", help="Those that fail.")] = False,
    slower: Annotated[float, typer.Option("--slower", min=0, metavar="MS", help="That take so long.")] = 0.0,
    payload: Annotated[
        bool, typer.Option("--payload", "-p", help="With what they ask, if it is JSON.")
    ] = False,
    events: Annotated[
        bool,
        typer.Option("--events", "-E", help="Events instead: hop by hop, delivered or withheld, and why."),
    ] = False,
    count: Annotated[int, typer.Option("--count", "-c", min=0, help="Leave after this many; 0: never.")] = 0,
    uri: options.Uri = None,
    as_json: options.AsJson = False,
) -> int:
    """Watch calls pass: who called what, at which broker it entered, how long it took, how it failed.

    Brokers look on for as long as this runs, and only then. What is more than a broker can send is counted.
    For the owner.

    With --events: each broker that an event passes, and at each gateway every subscriber: delivered, withheld by a rule
    or because it is private, dropped because its client reads too slowly.
    """
    if events and (errors or slower or payload):
        raise UsageError("--errors, --slower and --payload are about calls, not --events")
    session = Session(uri, as_json, options.ANSWER_S)
    shown = TraceFilter(errors, slower, payload, count)
    topics = [glob_of(each) for each in topic or []]

    async def work(handle: Handle) -> None:
        size = await handle.size()
        if rank is not None and rank >= size:
            raise UsageError(f"--rank: saw {rank}, expected a rank from 0 to {size - 1}")
        ranks = range(size) if rank is None else [rank]
        if events:
            await watch_events(handle, session.screen, ranks, topic or [], count)
            return
        own = await builtin_services(handle)
        note = partial(session.screen.note, "trace")
        await watch(CallTrace(handle, ranks, topics, own, payload, note), session.screen, shown)

    return session.run(work)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("trace", trace, EXAMPLES, argv)
