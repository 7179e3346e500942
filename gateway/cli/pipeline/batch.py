"""``headgate pipeline batch``: bronze -> gold; with ``--journal`` bronze first."""

from __future__ import annotations

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.screen import Screen
from gateway.cli.pipeline import shared_options
from gateway.pipeline.warehouse import Warehouse

EXAMPLES = (
    "headgate pipeline batch --journal journal --warehouse warehouse       journal to tables",
    "headgate pipeline batch --warehouse warehouse --since 2026-01-01      gold of these dates again",
    "headgate pipeline batch -w warehouse --table traffic --table rpc_latency",
)


def batch(
    warehouse: shared_options.Where,
    journal: shared_options.MaybeJournal = None,
    since: shared_options.Since = None,
    until: shared_options.Until = None,
    table: shared_options.Tables = None,
    payload: shared_options.Payload = False,
    on_corrupt: shared_options.Corrupt = "fail",
    master: shared_options.Master = None,
    conf: shared_options.Conf = None,
    verbose: shared_options.Verbose = False,
    as_json: options.AsJson = False,
) -> int:
    """Make gold of the dates whose bronze has changed, and of those asked for; whole dates are replaced, so doing it
    again is harmless, also beside a stream. Spark makes it: here, unless --master or spark-submit says where.

    Exit codes: 0 done, 1 damage, or a stream feeds the warehouse, 2 wrong options, 78 no such journal or warehouse.
    """
    from gateway.pipeline import bronze, gold, schema

    skip = shared_options.skips(on_corrupt)
    names = [schema.table_named(name).name for name in table or ()]
    target = Warehouse(warehouse) if journal else Warehouse(warehouse).existing()
    where, screen = shared_options.Spark(master, conf, verbose), Screen(as_json)
    rows = sum(file.rows for file in target.at(schema.MESSAGES.name).files())
    if journal:  # what is wrong with it is said before a JVM starts
        rows += shared_options.rows_of(bronze.pending(journal, target))
    with (
        shared_options.Progress(quiet=as_json) as progress,
        where.session("batch", progress, rows=rows) as spark,
    ):
        if journal:
            run = bronze.ingest(spark, journal, target, payload=payload, skip=skip)
            screen.record(run.as_json(), shared_options.line_of(run))
        dates = shared_options.dates(target, "messages", since, until)
        run = gold.batch(spark, target, dates, tables=names or gold.NAMES)
        screen.record(run.as_json(), shared_options.line_of(run))
    return OK


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("pipeline batch", batch, EXAMPLES, argv)
