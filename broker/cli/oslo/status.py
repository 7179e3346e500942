"""``headgate oslo status``: what the rooms of this node count, and which nodes its directory knows."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from broker.cli import options
from broker.cli.exits import OK, Failed, UsageError
from broker.cli.oslo import sending
from broker.cli.oslo.picture import NodeStatus
from broker.cli.screen import Redraw
from broker.oslo.contract import Settings
from broker.oslo.service import asking
from broker.trust import folder_objection

EXAMPLES = (
    "headgate oslo status",
    "headgate oslo status --watch               drawn anew every second, until Ctrl-C",
    "headgate oslo status --json | jq .rooms.call.counts",
    "headgate oslo status --directory tcp://controller:9500     the nodes, where no proxy runs here",
)


def look(settings: Settings, answer_s: float) -> NodeStatus:
    """Ask every room and the directory."""
    return NodeStatus(
        settings.ipc_dir,
        asking.statuses(settings.ipc_dir, answer_s),
        asking.states(settings, answer_s),
    )


def check(found: NodeStatus, settings: Settings) -> None:
    """See to it that all that should answer did.

    Raises:
        Failed: with what is missing.
    """
    missing = ""
    if not found.rooms and found.states is None:
        missing = f"no proxy of this node in {', '.join((settings.ipc_dir, *settings.directories))}"
        if text := folder_objection(settings.ipc_dir):
            missing += f"; it is not spoken to: {text}"
    elif found.silent:
        missing = f"no answer from {', '.join(found.silent)}"
    elif found.states is None:
        missing = "no directory answers"
    if missing:
        raise Failed(missing, verb="oslo status")


@sending.command("status")
def status(
    sender: sending.Sender,
    *,
    watch: options.Watch = False,
    interval: options.Every = 1.0,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.05, metavar="SECONDS", help="Wait so long for each answer.")
    ] = asking.ANSWER_S,
) -> int:
    """Print the rooms of this node with their sockets, counters and listeners, and the nodes that the directory knows.

    Exit codes: 0 all answer, 1 a room or the directory does not, or there is none, 2 wrong options.
    """
    screen = sender.screen
    if screen.as_json and watch:
        raise UsageError("--watch and --json: expected one of them")
    settings = sender.places()
    with Redraw(screen, watch) as redraw:
        while True:
            found = look(settings, timeout)
            redraw.frame(lambda: found.show(screen))  # noqa: B023 - called at once
            if not watch:
                check(found, settings)
                return OK
            time.sleep(interval)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("oslo status", status, EXAMPLES, argv)
