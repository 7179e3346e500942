"""``headgate oslo cast``: have one server of a topic do something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli import options
from broker.cli.oslo import sending
from broker.oslo.contract import Address
from broker.oslo.names import Pipeline

if TYPE_CHECKING:
    from broker.oslo.client.session import ClientSession

EXAMPLES = (
    "headgate oslo cast compute.a1 refresh",
    "headgate oslo cast compute.a1 reboot id=7 --server a1@lvm --confirm",
)


@sending.command("cast", sending.TO_ONE)
def cast(
    sender: sending.Sender,
    where: Address,
    body: bytes,
    *,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Wait until a server has it; else it is handed over to a node.")
    ] = False,
) -> int:
    """Have one server of TOPIC run METHOD with the arguments; nothing comes back.

    Exit codes: 0 sent, 1 a proxy refused, 2 wrong options or no proxy here, 3 nobody listens there
    or no directory answers.
    """

    def work(session: ClientSession) -> None:
        session.cast(where, body, mandatory=confirm, retry=0)

    return sender.send((Pipeline.CALL, Pipeline.CAST), where, work)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("oslo cast", cast, EXAMPLES, argv)
