"""``headgate oslo call``: call a method of an rpc-server and print its result."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli import options
from broker.cli.exits import Failed, UsageError
from broker.cli.oslo import sending
from broker.errors import RpcError
from broker.oslo.contract import Address
from broker.oslo.service.topics import result_of

if TYPE_CHECKING:
    from broker.oslo.client.session import ClientSession

EXAMPLES = (
    "headgate oslo call scheduler select host=a1 count=3",
    "headgate oslo call compute.a1 reboot id=7 --server a1@lvm --exchange nova --timeout 5",
    "headgate oslo call volume stats '{\"deep\": true}' --version 1.2 --json | jq .free",
)


@sending.command("call", sending.TO_ONE)
def call(
    sender: sending.Sender,
    where: Address,
    body: bytes,
    *,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="Wait so long for the reply.")
    ] = sending.CALL_S,
    wait: Annotated[
        bool, typer.Option("--wait", help="When nobody listens there, wait for somebody within the timeout.")
    ] = False,
) -> int:
    """Call METHOD of one server of TOPIC with the arguments, print what it returns.

    Exit codes: 0 done, 1 the server raised an exception (its class and message are printed) or a proxy refused, 2 wrong
    options or no proxy here, 3 nobody listens there or no directory answers, 4 no reply in time.
    """
    if not isfinite(timeout):
        raise UsageError(f"--timeout {timeout:g}: expected a number of seconds")

    def work(session: ClientSession) -> None:
        reply = session.call(where, body, timeout_s=timeout, mandatory=not wait)
        try:
            result = result_of(reply)
        except RpcError as error:
            raise Failed(f"{where}: {error}", verb="oslo call") from error
        if isinstance(result, str) and not sender.screen.as_json:
            sender.screen.line(result)
        else:
            sender.screen.value(result)

    return sender.run(work)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("oslo call", call, EXAMPLES, argv)
