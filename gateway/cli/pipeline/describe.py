"""``headgate pipeline describe``: what a warehouse holds, or the columns of its tables."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from broker.cli import options
from broker.cli.exits import OK, UsageError
from broker.cli.screen import Screen
from gateway.cli.pipeline import shared_options
from gateway.pipeline import schema
from gateway.pipeline.warehouse import Warehouse

EXAMPLES = (
    "headgate pipeline describe --warehouse warehouse",
    "headgate pipeline describe --table traffic                columns, types and meaning",
    "headgate pipeline describe --markdown > TABLES.md         of all tables, for a document",
)


def describe(
    warehouse: Annotated[
        str | None, typer.Option("--warehouse", "-w", metavar="DIR|URL", help="The warehouse to look at.")
    ] = None,
    table: shared_options.Tables = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The columns of the tables as Markdown.")
    ] = False,
    as_json: options.AsJson = False,
) -> int:
    """Print tables, rows, files, dates and how fresh they are; with --table or --markdown the columns. Needs no Java.

    Exit codes: 0 done, 1 of a version that is not read, 2 wrong options, 78 no such warehouse.
    """
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


def in_markdown(tables: Iterable[schema.Table]) -> str:
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


def held(warehouse: Warehouse, name: str) -> dict[str, Any]:
    """One table, as it is on disk.

    Raises:
        PipelineError: no such table, or of a version that is not read here.
    """
    at = warehouse.at(name)
    files, dates = at.files(), at.dates() or [""]
    return {
        "table": name,
        "version": at.known.version,
        "files": len(files),
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.size for file in files),
        "first": dates[0],
        "last": dates[-1],
    }


def described(warehouse: Warehouse) -> dict[str, Any]:
    """All of a warehouse, as JSON values; ``age_s`` of the last run tells how fresh it is.

    Raises:
        PipelineError: its version is not read here.
    """
    last = warehouse.last_run()
    if last is not None:
        finished = last["finished_at"]
        names = ("job", "batch_id", "rows_in", "rows_out", "bad_blocks", "lost_records", "duration_s")
        last = {name: last[name] for name in names} | {
            "finished_at": finished.isoformat(),
            "age_s": round(time.time() - finished.timestamp(), 3),
        }
    return {
        "warehouse": str(warehouse),
        "feed": warehouse.feed(),
        "tables": [held(warehouse, name) for name in schema.TABLES],
        "last_run": last,
    }


def _warehouse(screen: Screen, path: str, names: set[str]) -> None:
    told = described(Warehouse(path).existing())
    if screen.as_json:
        screen.value(told)
        return
    columns = ("table", "rows", "files", "bytes", "first", "last", "version")
    rows = [tuple(str(each[name]) for name in columns) for each in told["tables"] if each["table"] in names]
    screen.table(("table", "rows", "files", "bytes", "first date", "last date", "version"), rows)
    screen.line(f"fed by {told['feed'].get('feed', 'nobody yet')}")
    if last := told["last_run"]:
        screen.line(f"last run: {last['job']}, {last['age_s']:.0f} s ago, {last['rows_in']:,} rows read")


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("pipeline describe", describe, EXAMPLES, argv)
