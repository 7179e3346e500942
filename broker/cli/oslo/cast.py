"""``headgate oslo cast``: have one server of a topic do something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli import options
from broker.cli.oslo import sending
from broker.oslo.contract import Address
from broker.oslo.names import DEFAULT_EXCHANGE, Pipeline

if TYPE_CHECKING:
    from broker.oslo.client.session import ClientSession

EXAMPLES = (
    "headgate oslo cast compute.a1 refresh",
    "headgate oslo cast compute.a1 reboot id=7 --server a1@lvm --confirm",
)


def cast(
    topic: sending.Topic,
    method: sending.Method,
    words: sending.Words = None,
    exchange: sending.Exchange = DEFAULT_EXCHANGE,
    server: sending.Server = "",
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Wait until a server has it; else it is handed over to a node.")
    ] = False,
    namespace: sending.Namespace = None,
    version: sending.Version = None,
    ctxt: sending.Context = "{}",
    ipc_dir: sending.IpcDir = None,
    directory: sending.Directory = None,
    directory_key: sending.DirectoryKey = "",
    curve_cert: sending.CurveCert = "",
    as_json: options.AsJson = False,
) -> int:
    """Have one server of TOPIC run METHOD with the arguments; nothing comes back.

    Exit codes: 0 sent, 1 a proxy refused, 2 wrong options or no proxy here, 3 nobody listens there
    or no directory answers.
    """
    where = Address(
        sending.named(exchange, "exchange"), sending.topic_named(topic), sending.named(server, "server")
    )
    body = sending.request(method, words, ctxt, namespace, version)

    def work(port: ClientSession) -> None:
        port.cast(where, body, mandatory=confirm, retry=0)

    settings = sending.client_settings(ipc_dir, directory, directory_key, curve_cert)
    return sending.send("cast", settings, (Pipeline.CALL, Pipeline.CAST), where, work, as_json)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("oslo cast", cast, EXAMPLES, argv)
