"""``headgate journal verify``: every torn or damaged block with its extent, every gap with its cause."""

from __future__ import annotations

from collections.abc import Sequence

from broker.cli import options
from broker.cli.exits import FAILED, OK
from broker.cli.journal import shared_options
from broker.cli.screen import Screen, compact, progress_bar
from broker.journal.reading.segments import base_name
from broker.journal.reading.verify import Report, verify

EXAMPLES = (
    "headgate journal verify",
    "headgate journal verify DIR --json | jq .gaps",
)


def lines_of(report: Report) -> list[tuple[str, str]]:
    """What is wrong, a line each with its style: damage with offset, length and reason; then gaps."""
    told: list[tuple[str, str]] = []
    for segment in report.segments:
        name = base_name(segment.path)
        told += [
            (
                f"{name}: {'torn' if each.torn else 'damaged'}: {each.length} bytes at {each.offset}: {each.why}",
                "red",
            )
            for each in segment.damages
        ]
        if segment.unfinished is not None:
            each = segment.unfinished
            told.append((f"{name}: being written: {each.length} bytes at {each.offset}", "dim"))
    for gap in report.gaps:
        count = gap.last - gap.first + 1
        style = "yellow" if gap.why == "counted" else "red"
        told.append((f"{gap.writer}: {count} records lost, {gap.first} to {gap.last}: {gap.cause}", style))
    told += [
        (f"{writer}: begins at {first}: older segments were removed", "dim")
        for writer, first in report.removed.items()
    ]
    return told


def summary(report: Report) -> str:
    """One line for the whole."""
    damages = sum(len(each.damages) for each in report.segments)
    lost = sum(gap.last - gap.first + 1 for gap in report.gaps)
    runs = {(each.writer, each.run) for each in report.runs}
    words: Sequence[str] = (
        f"{len(report.segments)} segments",
        f"{len(runs)} runs",
        f"{sum(each.blocks for each in report.segments)} blocks",
        f"{report.records} records",
        f"{sum(each.size for each in report.segments)} bytes",
        f"{damages} damaged" if damages else "nothing damaged",
        f"{lost} records lost" if lost else "no gaps",
    )
    return ", ".join(words)


def check(directory: shared_options.Directory = None, as_json: options.AsJson = False) -> int:
    """Read every block of a journal and print what is torn, damaged or missing.

    What a writer counted as lost is told and is no damage. Exit codes: 0 all in order, 1 something is damaged or
    missing without a cause, 2 wrong options, 78 no journal.
    """
    screen = Screen(as_json)
    with progress_bar("verifying") as update:
        report = verify(shared_options.directory(directory), update)
    if as_json:
        screen.line(compact(report.as_json()))
    else:
        for text, style in lines_of(report):
            screen.line(text, style)
        screen.line(summary(report), "green" if report.ok else "bold red")
    return OK if report.ok else FAILED


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("journal verify", check, EXAMPLES, argv)
