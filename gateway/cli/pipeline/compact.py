"""``headgate pipeline compact``: many small files -> few large ones."""

from __future__ import annotations

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.screen import Screen
from gateway.cli.pipeline import given

EXAMPLES = (
    "headgate pipeline compact --warehouse warehouse",
    "headgate pipeline compact -w live --table messages --until 2026-01-31",
)


def compact(
    warehouse: given.Where,
    table: given.Tables = None,
    since: given.Since = None,
    until: given.Until = None,
    master: given.Master = None,
    conf: given.Conf = None,
    verbose: given.Verbose = False,
    as_json: options.AsJson = False,
) -> int:
    """Put the files of each date together, in the order of time. Files that may still change are left alone, and so
    is the journal.

    Without --master it is done here, without Spark. Exit codes: 0 done, 1 a warehouse in use, 2 wrong options.
    """
    from gateway.pipeline import compact as job
    from gateway.pipeline import schema
    from gateway.pipeline.progress import Progress

    target = given.existing(warehouse)
    names = [schema.table_named(name).name for name in table or schema.TABLES]
    done = []
    with target.lock("compact"), Progress(quiet=as_json) as progress:
        work = [(name, given.dates(target, name, since, until)) for name in names]
        if master is None:
            for name, dates in work:
                with progress.waiting(f"compact {name}"):
                    done += job.compact(target, [name], dates)
        else:
            with given.Spark(master, conf, verbose).session("compact", progress) as spark:
                for name, dates in work:
                    done += job.compact(target, [name], dates, spark=spark)
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
