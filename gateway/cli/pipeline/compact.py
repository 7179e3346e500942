"""``headgate pipeline compact``: many small files -> few large ones."""

from __future__ import annotations

from typing import Annotated

import typer

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.screen import Screen
from gateway.cli.pipeline import shared_options
from gateway.delta import TableError
from gateway.pipeline import compact as job
from gateway.pipeline import schema
from gateway.pipeline.errors import Conflict
from gateway.pipeline.warehouse import Warehouse

EXAMPLES = (
    "headgate pipeline compact --warehouse warehouse",
    "headgate pipeline compact -w live --table messages --until 2026-01-31",
    "headgate pipeline compact -w live --every 3600                  beside a stream, until Ctrl-C",
)


def compact(
    warehouse: shared_options.Where,
    table: shared_options.Tables = None,
    since: shared_options.Since = None,
    until: shared_options.Until = None,
    keep_hours: Annotated[
        int, typer.Option("--keep-hours", min=1, metavar="N", help="How long files stay that nobody needs.")
    ] = job.KEEP_HOURS,
    every: Annotated[
        float | None,
        typer.Option("--every", min=1, metavar="SECONDS", help="Again and again, so long after each end."),
    ] = None,
    as_json: options.AsJson = False,
) -> int:
    """Put the files of each date together, also beside a stream that runs; then delete files that no table needs and
    that are older than any job that runs. Needs no Java, and leaves the journal alone.

    Exit codes: 0 done, 1 other jobs replaced the same dates again and again, or a disk or store refused (with --every
    that is said, and tried again), 2 wrong options, 78 no such warehouse.
    """
    target, screen = Warehouse(warehouse).existing(), Screen(as_json)
    names = [schema.table_named(name).name for name in table or schema.TABLES]
    if every is None:
        _once(screen, target, names, since, until, keep_hours)
        return OK
    with shared_options.leaving() as leave:
        while not leave.is_set():
            try:
                _once(screen, target, names, since, until, keep_hours)
            except (Conflict, TableError) as error:
                screen.note("pipeline compact", f"{error}; again in {every:g} s")
            leave.wait(every)
    return OK


def _once(
    screen: Screen, target: Warehouse, names: list[str], since: str | None, until: str | None, keep_hours: int
) -> None:
    done = []
    with shared_options.Progress(quiet=screen.as_json) as progress:
        for name in names:
            dates = shared_options.dates(target, name, since, until)
            with progress.waiting(f"compact {name}"):
                done += job.compact(target, [name], dates, keep_hours=keep_hours)
    heads = ("table", "date", "files", "then", "rows put together")
    screen.records(heads, [each._asdict() for each in done], [tuple(map(str, each)) for each in done])


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("pipeline compact", compact, EXAMPLES, argv)
