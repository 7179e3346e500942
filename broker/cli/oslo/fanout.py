"""``headgate oslo fanout``: have every server of a topic do something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cli import options
from broker.cli.oslo import sending
from broker.oslo.contract import Address
from broker.oslo.names import Pipeline

if TYPE_CHECKING:
    from broker.oslo.client.session import ClientSession

EXAMPLES = (
    "headgate oslo fanout scheduler forget host=a1",
    "headgate oslo fanout q-agent resync --exchange neutron",
)


@sending.command("fanout", sending.TO_ALL)
def fanout(sender: sending.Sender, where: Address, body: bytes) -> int:
    """Have every server of TOPIC run METHOD with the arguments; nothing comes back.

    Nodes that could not be reached are told. Exit codes: 0 sent, 1 a proxy refused, 2 wrong options or no proxy here,
    3 nobody listens there or no directory answers.
    """

    def work(session: ClientSession) -> None:
        session.fanout(where, body, retry=0)

    return sender.send((Pipeline.FANOUT,), where, work)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("oslo fanout", fanout, EXAMPLES, argv)
