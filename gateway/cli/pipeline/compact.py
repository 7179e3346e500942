"""``headgate pipeline compact``: many small files -> few large ones."""

from __future__ import annotations

from typing import Annotated

import typer

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.screen import Screen
from gateway.cli.pipeline import given

EXAMPLES = (
    "headgate pipeline compact --warehouse warehouse",
    "headgate pipeline compact -w live --table messages --until 2026-01-31",
)
KEEP_HOURS = 48


def compact(
    warehouse: given.Where,
    table: given.Tables = None,
    since: given.Since = None,
    until: given.Until = None,
    keep_hours: Annotated[
        int, typer.Option("--keep-hours", min=1, metavar="N", help="How long files stay that nobody needs.")
    ] = KEEP_HOURS,
    as_json: options.AsJson = False,
) -> int:
    """Put the files of each date together, also beside a stream that runs; then delete files that no table needs and
    that are older than any job that runs. Needs no Java, and leaves the journal alone.

    Exit codes: 0 done, 1 other jobs replaced the same dates again and again, 2 wrong options.
    """
    from gateway.pipeline import compact as job
    from gateway.pipeline import schema
    from gateway.pipeline.progress import Progress

    target = given.existing(warehouse)
    names = [schema.table_named(name).name for name in table or schema.TABLES]
    done = []
    with Progress(quiet=as_json) as progress:
        for name in names:
            dates = given.dates(target, name, since, until)
            with progress.waiting(f"compact {name}"):
                done += job.compact(target, [name], dates, keep_hours=keep_hours)
    rows = [
        (each.table, each.date, str(each.files_before), str(each.files_after), str(each.rows))
        for each in done
    ]
    Screen(as_json).records(
        ("table", "date", "files", "then", "rows put together"), [each.as_json() for each in done], rows
    )
    return OK


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("pipeline compact", compact, EXAMPLES, argv)
