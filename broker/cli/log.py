"""``headgate log``: read, follow or write the log of a broker."""

from __future__ import annotations

import re
from typing import Annotated, Final, NamedTuple

import typer

from broker.cli import options
from broker.cli.exits import OK, UsageError
from broker.cli.screen import Screen
from broker.cli.session import Session
from broker.client import Handle
from broker.wire.log_entry import SEVERITIES, severity_number

EXAMPLES = (
    "headgate log                                  what the broker remembers",
    "headgate log --follow --new                   what comes from now on, until Ctrl-C",
    "headgate log --append 'the pump is on' --severity notice",
    "headgate log --clear",
)
_STYLES: Final = ("bold white on red", "bold red", "bold red", "red", "yellow", "cyan", "", "dim")
_LINE: Final = re.compile(r"<(\d+)>1 (\S+) (\S+) (\S+) (\S+) \S+ \S+ ?(.*)", re.DOTALL)


class Entry(NamedTuple):
    """One line of the log; ``severity`` is its name, 6 (info) where the line is in no form we know."""

    time: str
    severity: str
    rank: str
    app: str
    pid: str
    text: str

    def __str__(self) -> str:
        return f"{self.time} {self.app}.{self.severity}[{self.rank}]: {self.text}"


def parse(line: str) -> Entry:
    """A line of ``log.dmesg``: RFC 5424 with the severity in bits 3 and up of PRI, as deployed brokers write it.

    >>> str(parse("<48>1 2026-01-02T00:00:00.000000Z 0 me 7 - - hello"))
    '2026-01-02T00:00:00.000000Z me.info[0]: hello'
    """
    found = _LINE.fullmatch(line.rstrip("\n"))
    if found is None:
        return Entry("-", "info", "-", "-", "-", line)
    return Entry(found[2], SEVERITIES[int(found[1]) >> 3 & 7], found[3], found[4], found[5], found[6])


def show(screen: Screen, line: str) -> None:
    """Print one line of the log."""
    entry = parse(line)
    screen.record(entry._asdict(), str(entry), _STYLES[SEVERITIES.index(entry.severity)])


async def read(handle: Handle, session: Session, nodeid: int, follow: bool, new: bool) -> int:
    """Print what the log has, and with ``follow`` what comes."""
    payload = {"follow": follow, "nobacklog": new}
    async with handle.stream("log.dmesg", payload, nodeid=nodeid) as lines:
        async for line in session.each(lines, "log.dmesg"):
            show(session.screen, line.text)
    return OK


def log(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    new: Annotated[bool, typer.Option("--new", help="Leave out what is there already.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Forget what is there.")] = False,
    append: Annotated[
        str | None, typer.Option("--append", "-a", metavar="TEXT", help="Write a line.")
    ] = None,
    severity: Annotated[
        str, typer.Option("--severity", metavar="NAME", help=f"Of that line: {', '.join(SEVERITIES)}.")
    ] = "info",
    rank: options.Rank = None,
    uri: options.Uri = None,
    as_json: options.AsJson = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0,
            metavar="SECONDS",
            help="Wait this long for each answer; 0: no limit. Default: 30, no limit with --follow.",
        ),
    ] = None,
) -> int:
    """Read, follow or write the log of a broker (the owner may)."""
    if clear + (append is not None) + (follow or new) > 1:
        raise UsageError("expected one of --clear, --append and --follow or --new")
    if severity not in SEVERITIES:
        raise UsageError(f"--severity: saw {severity!r}, expected one of {', '.join(SEVERITIES)}")
    patience = timeout if timeout is not None else 0.0 if follow else options.ANSWER_S
    session = Session(uri, as_json, patience)
    nodeid = options.nodeid(rank)

    async def work(handle: Handle) -> int:
        if clear:
            await handle.rpc("log.clear", nodeid=nodeid, timeout_s=session.timeout_s)
            return OK
        if append is not None:
            return await write(handle, append, severity, session.timeout_s)
        return await read(handle, session, nodeid, follow, new)

    return session.run(work)


async def write(handle: Handle, text: str, severity: str, timeout_s: float | None) -> int:
    """Append a line to the log of our broker; done once the broker has it."""
    await handle.log(severity_number(severity), text)
    # log.append is not answered: an answer to something behind it on the same link says that it was read
    await handle.rpc("attr.get", {"name": "rank"}, timeout_s=timeout_s)
    return OK


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("log", log, EXAMPLES, argv)
