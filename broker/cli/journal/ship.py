"""``headgate journal ship``: what is sealed goes to a store."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from broker.cli import options
from broker.cli.exits import FAILED, OK
from broker.cli.journal import shared_options
from broker.cli.screen import Screen, progress_bar
from broker.errors import HeadgateError
from broker.journal.shipping import EVERY_S, Shipped, Shipper
from broker.journal.stores import line_of
from broker.secret import masked

EXAMPLES = (
    "headgate journal ship DIR --to s3://bucket/journals             what is there now",
    "headgate journal ship DIR --to file:///mnt/journals -f          and what comes, until Ctrl-C",
    "headgate journal ship DIR --to 's3://b/j?endpoint_override=127.0.0.1:9000&scheme=http' --delete",
)


def summary(counts: Shipped) -> str:
    """One line for the whole."""
    words = [f"{counts.segments} segments sent", f"{counts.size} bytes", f"{counts.there} were there"]
    for count, what in ((counts.deleted, "deleted here"), (counts.missed, "deleted before they were sent")):
        if count:
            words.append(f"{count} {what}")
    return ", ".join(words)


def value(counts: Shipped) -> dict[str, Any]:
    """For ``--json``."""
    names = {
        "segments": counts.segments,
        "bytes": counts.size,
        "there": counts.there,
        "deleted": counts.deleted,
    }
    return names | {"missed": counts.missed, "failures": counts.failures}


def ship(
    directory: shared_options.Directory = None,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="URL", help="s3://, gs://, abfs://, hdfs:// or file://", show_default=False
        ),
    ] = ...,  # type: ignore[assignment]  # typer's way to say that it is required
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, and through failures.")
    ] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, help="With -f: how often it looks.")
    ] = EVERY_S,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete here what is there, but the newest of each writer.")
    ] = False,
    writer: shared_options.Writer = None,
    as_json: options.AsJson = False,
) -> int:
    """Send the sealed segments of a journal to a store, each once; what is there is left alone.

    A segment has its name there when it was read back whole. Run it again after a failure: it goes on where it was.
    The verbs that read journals, and `headgate pipeline`, take the same URL for DIR. Exit codes: 0 done, 1 the store
    does not answer or refuses, 2 wrong options, 78 no journal, no such store, or one with another journal.
    """
    screen = Screen(as_json)
    place = shared_options.directory(directory)
    if not follow:  # who follows may wait for the first segment of a writer
        shared_options.check_writer(place, writer)
    shipper = Shipper(place, to, writer=writer, delete=delete)
    try:
        if follow:
            shipper.follow(waiting, every)
        else:
            with progress_bar("shipping") as update:
                shipper.round(update)
    except OSError as error:
        raise HeadgateError(f"{masked(to)}: {line_of(error, to)}") from None
    finally:
        screen.record(value(shipper.counts), summary(shipper.counts))
    return FAILED if shipper.counts.missed else OK


def waiting(seconds: float) -> bool:
    """Until Ctrl-C."""
    time.sleep(seconds)
    return False


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("journal ship", ship, EXAMPLES, argv)
