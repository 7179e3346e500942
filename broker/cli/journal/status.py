"""``headgate journal status``: whether brokers record what passes, where to, and what they had to leave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from broker.cli import options
from broker.cli.exits import FAILED, OK, UsageError
from broker.cli.screen import Screen, size
from broker.cli.session import Session, at_each
from broker.cli.stats import shown
from broker.client import Handle
from broker.errors import RpcError

EXAMPLES = (
    "headgate journal status                 this broker",
    "headgate journal status --all           every broker of the instance",
    "headgate journal status --start         turn it on again, once a full disk has room",
    "headgate journal status --stop --rank 3",
)
HEADS: Final = ("rank", "state", "written", "shed", "lost", "restarts", "waiting", "on disk", "directory")


async def ask(handle: Handle, word: str, rank: int | None) -> dict[str, Any]:
    """What ``journal.WORD`` of one broker answers; a refusal as ``{"state": "none" | "error", "error": text}``."""
    try:
        answer = await handle.rpc(f"journal.{word}", nodeid=options.nodeid(rank))
    except RpcError as error:
        said = {"state": "none" if word == "status" else "error", "error": str(error)}
        return said if rank is None else {"rank": rank, **said}
    return answer.json()


def row(figures: Mapping[str, Any]) -> Sequence[str]:
    """One broker as a line of the table."""
    counts = (shown(figures.get(name)) for name in ("written", "shed", "lost", "restarts"))
    sizes = (size(figures.get(name)) for name in ("waiting_bytes", "disk_bytes"))
    place = figures.get("directory") or figures.get("error") or ""
    return (shown(figures.get("rank")), str(figures.get("state")), *counts, *sizes, str(place))


def stopped(figures: Mapping[str, Any]) -> bool:
    """Off, with everything on disk that was not counted as lost."""
    counts = (figures.get(name, 0) for name in ("handed", "shed", "lost", "written"))
    handed, shed, lost, written = counts
    return str(figures.get("state", "")).startswith("off") and written >= handed - shed - lost


def show(screen: Screen, found: Sequence[Mapping[str, Any]]) -> int:
    """Print what was found; returns the exit code."""
    screen.records(HEADS, found, [row(each) for each in found])
    return OK if all(each.get("state") == "on" for each in found) else FAILED


def status(
    rank: options.Rank = None,
    every: options.All = False,
    start: Annotated[bool, typer.Option("--start", help="Turn it on again first.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Turn it off first, with everything written.")] = False,
    uri: options.Uri = None,
    as_json: options.AsJson = False,
    timeout: options.Timeout = options.ANSWER_S,
) -> int:
    """Print whether brokers record what passes, where to, and how many records are written, shed (the disk was too
    slow) and lost (the writer died).

    Of ranks only: NFP and oslo are not asked. What they record ends with a full disk and begins again by itself. Exit
    codes: 0 all that were asked record (--stop: none does, and everything is written), 1 it is not so, 2 wrong options.
    Owners only.
    """
    if every and rank is not None:
        raise UsageError("saw --all and --rank, expected one of them")
    if start and stop:
        raise UsageError("saw --start and --stop, expected one of them")
    session = Session(uri, as_json, timeout)
    word = "start" if start else "stop" if stop else "status"

    async def work(handle: Handle) -> int:
        ranks: list[int | None] = list(range(await handle.size())) if every else [rank]
        answers = at_each(ranks, lambda number: ask(handle, word, number))
        found = await session.within(answers, f"journal.{word}")
        code = show(session.screen, found)
        return OK if stop and all(map(stopped, found)) else code

    return session.run(work)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("journal status", status, EXAMPLES, argv)
