"""``headgate pipeline stream``: the journal as it grows -> bronze and gold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from broker import supervision
from broker.cli import options
from broker.cli.exits import OK
from broker.cli.screen import Screen
from gateway.cli.pipeline import shared_options
from gateway.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    from gateway.pipeline.stream import Stream

EXAMPLES = (
    "headgate pipeline stream --journal journal --warehouse live               until Ctrl-C",
    "headgate pipeline stream -j journal -w live --trigger 2 --max-bytes 64m",
    "headgate pipeline stream -j journal -w live --available-now               all there is, then end",
    "headgate pipeline stream -j s3://b/journals -w s3://b/live --checkpoint /var/lib/headgate/stream",
)
_LOOK_S: Final = 0.5
TRIGGER_S: Final = 5.0
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Spark's checkpoint; it must stay. Default: in the warehouse, unless that is a store.",
    ),
]
Trigger = Annotated[float, typer.Option("--trigger", min=0.1, metavar="SECONDS", help="A batch so often.")]


def stream(
    journal: shared_options.Journal,
    warehouse: shared_options.Where,
    checkpoint: Checkpoint = None,
    trigger: Trigger = TRIGGER_S,
    available_now: Annotated[
        bool,
        typer.Option("--available-now", help="Read what there is, in as many batches as it takes, and end."),
    ] = False,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", metavar="BYTES", help="Bytes of a batch at most (64m).")
    ] = None,
    bronze_only: Annotated[
        bool, typer.Option("--bronze-only", help="No gold; `headgate pipeline batch` makes it.")
    ] = False,
    payload: shared_options.Payload = False,
    on_corrupt: shared_options.Corrupt = "fail",
    master: shared_options.Master = None,
    conf: shared_options.Conf = None,
    verbose: shared_options.Verbose = False,
    as_json: options.AsJson = False,
) -> int:
    """Follow a journal: each batch adds to bronze and gold, each record once, also when this is killed and started
    again.

    Exit codes: 0 ended by Ctrl-C or all read, 1 damage, a deleted segment, or another job feeds the warehouse, 2 wrong
    options.
    """
    from broker.journal.reading.segments import listing
    from broker.secret import masked

    settings = _settings(on_corrupt, payload, max_bytes)
    listing(journal)
    target, screen = Warehouse(warehouse), Screen(as_json)
    checkpoint = checkpoint or target.checkpoint  # which a store refuses: before a JVM is started
    with (
        shared_options.leaving() as leave,
        shared_options.Progress(quiet=as_json) as progress,
        shared_options.Spark(master, conf, verbose).session("stream", progress, lasting=True) as spark,
    ):
        from gateway.pipeline import stream as room

        running = room.Stream(
            spark,
            journal,
            target,
            checkpoint=checkpoint,
            trigger_s=None if available_now else trigger,
            gold=not bronze_only,
            options=settings,
            on_run=lambda run: screen.record(
                run.as_json(), f"batch {run.batch_id}: {shared_options.line_of(run)}"
            ),
        )
        supervision.notify("READY=1")
        with progress.waiting(f"following {masked(journal)}"):
            _follow(running, leave)
    return OK


def _settings(on_corrupt: str, payload: bool, max_bytes: str | None) -> dict[str, str]:
    """Options of the source."""
    settings = {
        "onCorrupt": "skip" if shared_options.skips(on_corrupt) else "fail",
        "payload": str(payload).lower(),
    }
    return settings | ({"maxBytesPerTrigger": max_bytes} if max_bytes else {})


def _follow(running: Stream, leave: shared_options.Leave) -> None:
    """Until it ends, fails, or is told to leave."""
    while running.active and not leave.wait(_LOOK_S):
        pass
    if leave.is_set() or running.query.isActive:  # told to leave, or gold failed
        running.stop()
        running.check()
    else:
        running.wait()


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("pipeline stream", stream, EXAMPLES, argv)
