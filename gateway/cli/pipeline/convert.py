"""``headgate pipeline convert``: a warehouse of an earlier version -> Delta tables."""

from __future__ import annotations

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.screen import Screen
from gateway.cli.pipeline import given

EXAMPLES = ("headgate pipeline convert --warehouse warehouse",)


def convert(warehouse: given.Where, as_json: options.AsJson = False) -> int:
    """Put Delta's log beside the Parquet files of a warehouse that an earlier version made.

    No file is written anew. No other job may run meanwhile. Needs no Java.

    Exit codes: 0 done, 1 there is nothing to convert, or it is of a version that is not read, 2 wrong options, 78 no
    such warehouse.
    """
    from gateway.pipeline import convert as job

    rows = job.convert(given.existing(warehouse))
    Screen(as_json).records(
        ("table", "rows"),
        [{"table": name, "rows": count} for name, count in rows.items()],
        [(name, str(count)) for name, count in rows.items()],
    )
    return OK


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("pipeline convert", convert, EXAMPLES, argv)
