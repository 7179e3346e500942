"""``headgate trace``: calls as they pass the brokers where they enter: who, where, how long, how they ended.

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
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final, Self

import typer

from broker.cli import options
from broker.cli.exits import UsageError
from broker.cli.screen import Screen, compact
from broker.cli.session import Session
from broker.cli.tracedcalls import OPEN_MAX, TracedCall, TracedCalls, glob_of
from broker.cli.tree import SILENT_S
from broker.client import Handle
from broker.errors import Overrun, RpcError
from broker.wire.message import NODEID_ANY, REQUEST, RESPONSE

EXAMPLES = (
    "headgate trace                        calls of everybody at all brokers, but those of built-in services",
    "headgate trace calc                   of one service; 'calc.a*' is a pattern, calc.add one method",
    "headgate trace --errors --count 1     until one fails",
    "headgate trace --slower 100 --rank 2  those that take longer than 100 ms, entered at rank 2",
    "headgate trace --json attr.get | jq .ms",
)
RETRY_S: Final = 1.0
"""Between two attempts to have a broker tell of its calls that cannot be reached."""


class CallTrace:
    """The traces of some brokers, told into one queue, for the time of a block.

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
        self._handle = handle
        self._note = note
        self._ranks = ranks
        self._wanted = {
            "typemask": REQUEST | RESPONSE,
            "topic_glob": topics[0] if len(topics) == 1 else "*",
            "nodeid": -1,
            "clients": True,
            "calls": True,
            "full": full,
        }
        self._told: asyncio.Queue[TracedCall | Exception] = asyncio.Queue(OPEN_MAX)
        self._silent: dict[int, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._waited_for = set(ranks)
        self._all_look_on = asyncio.Event()
        self.seen = TracedCalls(topics, own)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follow(rank), name=f"trace of {rank}") for rank in self._ranks]
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def begun(self) -> int:
        """Wait until every broker looks on, or is known not to; returns how many do."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENT_S):
                await self._all_look_on.wait()
        for rank in self._waited_for:
            self._say(rank, "does not answer")
        return len(self._ranks) - len(self._silent)

    def _heard_of(self, rank: int) -> None:
        self._waited_for.discard(rank)
        if not self._waited_for:
            self._all_look_on.set()

    async def next(self) -> TracedCall:
        """The next call that ends.

        Raises:
            RpcError: a broker refuses. LinkError: the link has ended.
        """
        told = await self._told.get()
        if isinstance(told, Exception):
            raise told
        return told

    async def _follow(self, rank: int) -> None:
        while True:
            try:
                await self._read(rank)
            except Overrun:
                self._say(rank, "says more than can be printed: some calls were missed")
            except Exception as error:  # whoever waits for calls has to hear of it
                if not (isinstance(error, RpcError) and error.errno == errno.EHOSTUNREACH):
                    await self._told.put(error)
                    return
                self._say(rank, "cannot be reached")
            finally:
                self._heard_of(rank)
            self.seen.lost(rank)
            await asyncio.sleep(RETRY_S)

    async def _read(self, rank: int) -> None:
        async with self._handle.stream("overlay.trace", self._wanted, nodeid=rank) as stream:
            await self._handle.rpc(
                "overlay.ping", {}, nodeid=rank
            )  # answered behind the request of the trace
            self._heard_of(rank)
            self._silent.pop(rank, None)
            async for response in stream:
                told = response.json()
                if told.get("dropped"):
                    self._note(f"rank {rank} missed {told['dropped']} messages: too many pass")
                if told["name"] is not None and (call := self.seen.take(rank, told)) is not None:
                    await self._told.put(call)

    def _say(self, rank: int, what: str) -> None:
        if self._silent.get(rank) != what:
            self._silent[rank] = what
            self._note(f"rank {rank} {what}")


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

    def wants(self, call: TracedCall) -> bool:
        """Whether it is printed."""
        return (call.errnum != 0 or not self.errors) and (call.ms or 0.0) >= self.slower_ms

    def show(self, screen: Screen, call: TracedCall) -> None:
        """Print it."""
        text = call.text()
        if self.payload and call.payload is not None:
            text += f"  {compact(call.payload)}"
        screen.record(call.value(), text, "red" if call.errnum else "")


async def watch(trace: CallTrace, screen: Screen, shown: TraceFilter) -> None:
    """Print calls until as many were printed as are wanted."""
    left = shown.count
    async with trace:
        screen.note("trace", f"{await trace.begun()} brokers look on")
        try:
            while left or not shown.count:
                call = await trace.next()
                if shown.wants(call):
                    shown.show(screen, call)
                    left -= 1
        finally:
            screen.note("trace", trace.seen.summary())


def trace(
    topic: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...",
            help="A service, a method, or a pattern like 'calc.a*'; none: all but the broker's own services.",
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
    count: Annotated[int, typer.Option("--count", "-c", min=0, help="Leave after this many; 0: never.")] = 0,
    uri: options.Uri = None,
    as_json: options.AsJson = False,
) -> int:
    """Watch calls pass: who called what, at which broker it entered, how long it took, how it failed.

    Brokers look on for as long as this runs, and only then. What is more than a broker can send is counted.
    For the owner.
    """
    session = Session(uri, as_json, options.ANSWER_S)
    shown = TraceFilter(errors, slower, payload, count)
    topics = [glob_of(each) for each in topic or []]

    async def work(handle: Handle) -> None:
        own = await builtin_services(handle)
        size = await handle.size()
        if rank is not None and rank >= size:
            raise UsageError(f"--rank: saw {rank}, expected a rank from 0 to {size - 1}")
        ranks = range(size) if rank is None else [rank]
        note = partial(session.screen.note, "trace")
        await watch(CallTrace(handle, ranks, topics, own, payload, note), session.screen, shown)

    return session.run(work)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("trace", trace, EXAMPLES, argv)
