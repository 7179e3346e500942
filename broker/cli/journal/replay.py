"""``headgate journal replay``: a captured session, sent again."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import typer

from broker.cli import options
from broker.cli.exits import FAILED, OK, UsageError, error_name
from broker.cli.journal import shared_options
from broker.cli.journal.show import Damages
from broker.cli.screen import Screen
from broker.cli.session import Session
from broker.client import Handle
from broker.client.calls import Stream
from broker.errors import ConfigError, Overrun, RpcError
from broker.journal.layout import HEADER_BYTES, PAYLOADS
from broker.journal.reading.blocks import SegmentFile
from broker.journal.reading.peers import Peers
from broker.journal.reading.records import Record, records
from broker.journal.reading.segments import Damage, Segment, segments
from broker.journal.replay import ANSWER_S, Outcome, Replay, Sent, refused_then, speed_of
from broker.secret import masked
from broker.wire.message import EVENT, NODEID_ANY, NORESPONSE, STREAMING, UPSTREAM, Message

EXAMPLES = (
    "headgate journal replay DIR --to local:///run/test.sock",
    "headgate journal replay DIR --to tcp://host:8600 --speed max --topic 'kvs.*'",
    "headgate journal replay DIR --writer rank0 --since 10m --json",
)
REDRAW_S: Final = 0.25


class Sender:
    """The ``send`` of a replay over one handle."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._rank: int | None = None

    async def __call__(self, message: Message) -> Sent:
        """Send it, once the link takes more.

        Raises:
            LinkError: the link has ended. HeadgateError: EAGAIN, too many calls wait.
        """
        handle = self._handle
        await handle.writable()
        if handle.ended is not None:
            raise handle.ended
        flags = message.flags
        if flags & UPSTREAM and message.nodeid == NODEID_ANY and message.type != EVENT:
            if self._rank is None:
                self._rank = await handle.rank()
            message.set_aux1(self._rank)
        if message.type == EVENT or flags & NORESPONSE:
            handle.send(message)
            return Sent(0, None)
        if flags & STREAMING:
            return await self._stream(message)
        answer = handle.request(message)
        return Sent(message.matchtag, _errnum(answer))

    async def _stream(self, message: Message) -> Sent:
        stream = self._handle.stream(
            message.topic or "",
            message.payload,
            nodeid=message.nodeid,
            upstream=bool(message.flags & UPSTREAM),
        )
        stream.request.set_credentials(message.userid, message.rolemask)
        await stream.__aenter__()  # sends it, without waiting
        return Sent(stream.request.matchtag, _last(stream))


async def _errnum(answer: asyncio.Future[Message]) -> int:
    return (await answer).errnum


async def _last(stream: Stream) -> int:
    """Read a stream to its end; cancelled, it cancels the stream."""
    try:
        async for _response in stream:
            pass
    except RpcError as error:
        return error.errno
    except Overrun:
        return 0  # it answered, more than was asked for
    finally:
        await stream.__aexit__(None, None, None)
    return 0


@dataclass(frozen=True)
class Plan:
    """What is replayed, and how."""

    directory: str
    writer: str
    since_ns: int | None
    until_ns: int | None
    speed: float
    topics: list[str] | None
    as_owner: bool
    answer_s: float


def chosen_writer(directory: str, writer: str | None) -> tuple[str, list[Segment]]:
    """The writer whose records are sent, and its segments.

    Raises:
        UsageError: there are several and none is named, for the same request may stand in each.
        ConfigError: there is none.
    """
    found = segments(directory, writer)
    writers = sorted({segment.writer for segment in found})
    if not writers:
        named = f" of writer {writer}" if writer else ""
        raise ConfigError(f"journal directory {masked(directory)}: no segment{named}")
    if len(writers) > 1:
        raise UsageError(f"several writers: {', '.join(writers)[:200]}; expected --writer NAME")
    return writers[0], found


def role_of(found: list[Segment], peers: Peers) -> Callable[[Record], str]:
    """Looks the role of a record's peer up in what the journal says."""
    by_run = {segment.run: segment for segment in found}

    def look(record: Record) -> str:
        role = peers.facts(by_run[record.run], record.peer_id).get("role") if record.run in by_run else None
        return role if isinstance(role, str) else ""

    return look


@contextmanager
def progress(shown: bool) -> Iterator[Callable[[Outcome], None] | None]:
    """A line on the terminal that is drawn anew, at most four times a second."""
    if not shown:
        yield None
        return
    drawn = 0.0

    def draw(outcome: Outcome) -> None:
        nonlocal drawn
        if (now := time.monotonic()) - drawn >= REDRAW_S:
            drawn = now
            sys.stderr.write(f"\r\x1b[K{outcome.sent} sent, {outcome.ok} ok, {outcome.error} errors")
            sys.stderr.flush()

    try:
        yield draw
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def report(outcome: Outcome, writer: str) -> tuple[dict[str, Any], list[str]]:
    """The outcome as JSON and as lines."""
    value = {
        "writer": writer,
        "sent": outcome.sent,
        **msgspec.to_builtins(outcome),
        "errors": {error_name(number): count for number, count in outcome.errors.items()},
    }
    lines = [
        f"{outcome.requests} requests and {outcome.events} events of {writer} sent in {outcome.seconds:.1f} s",
        f"answers: {outcome.ok} ok, {outcome.error} error, {outcome.none} none; {outcome.unasked} wanted none",
    ]
    if outcome.errors:
        counts = ", ".join(
            f"{error_name(number)} {count}" for number, count in sorted(outcome.errors.items())
        )
        lines.append(f"errors: {counts}")
    if outcome.skipped:
        lines.append("not sent: " + ", ".join(f"{count} {why}" for why, count in outcome.skipped.items()))
    if refused := outcome.skipped.get("refused then"):
        lines.append(f"{refused} requests were refused then for want of rights: they are never sent again")
    if outcome.stripped:
        lines.append(f"{outcome.stripped} were sent without their payload: it was not captured")
    return value, lines


def _passed_over(_damage: Damage) -> None:
    """Ignore damage here: it is told when the records are sent."""


async def replayed(handle: Handle, plan: Plan, found: list[Segment], damages: Damages) -> Outcome:
    """Send everything; the outcome."""
    peers = Peers()
    for segment in found:  # who is who must be known before the first record counts
        with SegmentFile(segment.path) as file:
            for block in file.salvage(HEADER_BYTES, file.size()):
                if not isinstance(block, tuple):
                    peers.learn(block)

    def every(
        since_ns: int | None, until_ns: int | None, on_damage: Callable[[Damage], None] = _passed_over
    ) -> Iterator[Record]:
        return records(
            plan.directory, since_ns, until_ns, writer=plan.writer, peers=peers, on_damage=on_damage
        )

    with progress(sys.stderr.isatty()) as draw:
        replay = Replay(
            Sender(handle),
            speed=plan.speed,
            topics=plan.topics,
            as_owner=plan.as_owner,
            refused=refused_then(every(None, None)),
            role_of=role_of(found, peers),
            answer_s=plan.answer_s,
            progress=draw,
        )
        return await replay.run(every(plan.since_ns, plan.until_ns, damages))


def replay(
    directory: shared_options.Directory = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="URI", help="The broker to send to. Default: as for other verbs."),
    ] = None,
    speed: Annotated[
        str, typer.Option("--speed", metavar="SPEED", help="1x as captured, 2.5x faster, max: no pauses.")
    ] = "1x",
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="GLOB", help="Of these topics only; may be given again."),
    ] = None,
    since: shared_options.Since = None,
    until: shared_options.Until = None,
    writer: shared_options.Writer = None,
    as_owner: Annotated[
        bool,
        typer.Option(
            "--as-owner",
            help="Send everything in your own name and with your own rights, not with the captured userid and roles.",
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.01, metavar="SECONDS", help="Wait so long for answers.")
    ] = ANSWER_S,
    as_json: options.AsJson = False,
) -> int:
    """Send the captured requests and events of clients to a broker again, in order, and count the answers.

    Userid and roles stay as captured where you own the broker; it puts its own on what a guest sends. What an owner
    asked for runs again: commands (rexec), journal.stop, config.reload and all else. Requests that were refused for
    want of rights are never sent ("refused then"). Pauses above 60 s are cut to that.

    Exit codes: 0 done (errors among the answers are counted, not judged), 1 the journal is damaged, 2 wrong options,
    3 no connection, 78 no journal.
    """
    try:
        factor = speed_of(speed)
    except ValueError:
        raise UsageError(f"--speed {speed[:64]!r}: expected 1x, 2.5x or max") from None
    place = shared_options.directory(directory)
    name, found = chosen_writer(place, writer)
    screen = Screen(as_json)
    _warn_of_bare(found, screen)
    span = shared_options.moment_ns(since, "--since"), shared_options.moment_ns(until, "--until")
    plan = Plan(place, name, *span, factor, topic, as_owner, timeout)
    damages = Damages("replay", screen)

    async def work(handle: Handle) -> int:
        outcome = await replayed(handle, plan, found, damages)
        value, lines = report(outcome, name)
        screen.record(value, lines)
        return FAILED if damages.count else OK

    return Session(to, as_json, 0.0).run(work)


def _warn_of_bare(found: list[Segment], screen: Screen) -> None:
    """Say so when payloads were not captured."""
    bare = sum(each.damage is None and not each.flags & PAYLOADS for each in found)
    if bare:
        text = f"{bare} of {len(found)} segments were captured without payloads: requests go without them"
        screen.note("journal replay", text)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("journal replay", replay, EXAMPLES, argv)
