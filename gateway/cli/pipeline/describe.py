"""``headgate pipeline describe``: what a warehouse holds, or the columns of its tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli import options
from broker.cli.exits import OK, UsageError
from broker.cli.screen import Screen
from gateway.cli.pipeline import given
from gateway.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    from gateway.pipeline.columns import Table

EXAMPLES = (
    "headgate pipeline describe --warehouse warehouse",
    "headgate pipeline describe --table traffic                columns, types and meaning",
    "headgate pipeline describe --markdown > TABLES.md         of all tables, for a document",
)


def describe(
    warehouse: Annotated[
        str | None, typer.Option("--warehouse", "-w", metavar="DIR|URL", help="The warehouse to look at.")
    ] = None,
    table: given.Tables = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The columns of the tables as Markdown.")
    ] = False,
    as_json: options.AsJson = False,
) -> int:
    """Print tables, rows, files, dates and how fresh they are; with --table or --markdown the columns. Needs no Java.

    Exit codes: 0 done, 1 of a version that is not read, 2 wrong options, 78 no such warehouse.
    """
    from gateway.pipeline import schema

    chosen = tuple(schema.table_named(name) for name in table or schema.TABLES)
    screen = Screen(as_json)
    if markdown:
        screen.line(in_markdown(chosen))
    elif warehouse is not None:
        _warehouse(screen, warehouse, {each.name for each in chosen})
    elif table:
        for each in chosen:
            values = [
                {"table": each.name, "column": one.name, "type": one.type, "since": one.since, "doc": one.doc}
                for one in each.columns
            ]
            screen.records(
                ("column", "type", "meaning"), values, [(one.name, one.type, one.doc) for one in each.columns]
            )
    else:
        raise UsageError("nothing to describe; expected --warehouse DIR, --table NAME or --markdown")
    return OK


def in_markdown(tables: Iterable[Table]) -> str:
    """The tables for a document."""
    lines = []
    for table in tables:
        lines += [f"### {table.name}", "", f"{table.doc} Version {table.version}.", ""]
        lines += ["| column | type | meaning |", "|---|---|---|"]
        for column in table.columns:
            later = "" if column.since == table.oldest else f" (since {column.since})"
            lines.append(f"| {column.name} | {column.type} | {column.doc}{later} |")
        lines.append("")
    return "\n".join(lines)


def _warehouse(screen: Screen, path: str, names: set[str]) -> None:
    from gateway.pipeline import describe as job

    held = job.describe(Warehouse(path).existing())
    if screen.as_json:
        screen.value(held)
        return
    rows = [_row(each) for each in held["tables"] if each["table"] in names]
    screen.table(("table", "rows", "files", "bytes", "first date", "last date", "version"), rows)
    screen.line(f"fed by {held['feed'].get('feed', 'nobody yet')}")
    if last := held["last_run"]:
        screen.line(f"last run: {last['job']}, {last['age_s']:.0f} s ago, {last['rows_in']:,} rows read")


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    counts = (str(each["rows"]), str(each["files"]), str(each["bytes"]))
    return (each["table"], *counts, each["first"], each["last"], str(each["version"]))


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("pipeline describe", describe, EXAMPLES, argv)
