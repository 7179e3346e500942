"""``headgate pipeline verify``: whether a warehouse holds every record of a journal once."""

from __future__ import annotations

from broker.cli import options
from broker.cli.exits import FAILED, OK
from broker.cli.screen import Screen
from gateway.cli.pipeline import shared_options
from gateway.pipeline.warehouse import Warehouse

EXAMPLES = (
    "headgate pipeline verify --journal journal --warehouse warehouse",
    "headgate pipeline verify -j journal -w warehouse --json | jq .ok",
)


def verify(
    journal: shared_options.Journal, warehouse: shared_options.Where, as_json: options.AsJson = False
) -> int:
    """Compare the numbers of records with those of rows, segment by segment. Needs no Java.

    Exit codes: 0 every record that was read is there once, 1 some are lost or there twice, or a writer is missing,
    2 wrong options, 78 no such journal or warehouse.
    """
    from gateway.pipeline import verify as job

    screen = Screen(as_json)
    report = job.verify(journal, Warehouse(warehouse).existing())
    if as_json:
        screen.value(report.as_json())
        return OK if report.ok else FAILED
    rows = [
        (each.segment, *map(str, (each.records, each.rows, each.twice, each.behind, len(each.damages))))
        for each in report.segments
    ]
    screen.table(("segment", "records", "rows", "twice", "not read yet", "damages"), rows)
    for each in report.segments:
        for damage in each.damages:
            screen.line(damage, "yellow")
    screen.line(
        f"{report.rows:,} rows, {report.beyond:,} of them of segments that are gone: {report.verdict}",
        "green" if report.ok else "bold red",
    )
    return OK if report.ok else FAILED


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("pipeline verify", verify, EXAMPLES, argv)
