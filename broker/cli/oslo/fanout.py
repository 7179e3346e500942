"""``headgate oslo fanout``: have every server of a topic do something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cli import options
from broker.cli.oslo import sending
from broker.oslo.contract import Address
from broker.oslo.names import DEFAULT_EXCHANGE, Pipeline

if TYPE_CHECKING:
    from broker.oslo.client.session import ClientSession

EXAMPLES = (
    "headgate oslo fanout scheduler forget host=a1",
    "headgate oslo fanout q-agent resync --exchange neutron",
)


def fanout(
    topic: sending.Topic,
    method: sending.Method,
    words: sending.Words = None,
    exchange: sending.Exchange = DEFAULT_EXCHANGE,
    namespace: sending.Namespace = None,
    version: sending.Version = None,
    ctxt: sending.Context = "{}",
    ipc_dir: sending.IpcDir = None,
    directory: sending.Directory = None,
    directory_key: sending.DirectoryKey = "",
    curve_cert: sending.CurveCert = "",
    as_json: options.AsJson = False,
) -> int:
    """Have every server of TOPIC run METHOD with the arguments; nothing comes back.

    Nodes that could not be reached are told. Exit codes: 0 sent, 1 a proxy refused, 2 wrong options or no proxy here,
    3 nobody listens there or no directory answers.
    """
    where = Address(sending.named(exchange, "exchange"), sending.topic_named(topic))
    body = sending.request(method, words, ctxt, namespace, version)

    def work(port: ClientSession) -> None:
        port.fanout(where, body, retry=0)

    settings = sending.client_settings(ipc_dir, directory, directory_key, curve_cert)
    return sending.send("fanout", settings, (Pipeline.FANOUT,), where, work, as_json)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("oslo fanout", fanout, EXAMPLES, argv)
