"""``headgate oslo bridge``: the topics of oslo.messaging as a service of a Flux broker, its notifications as events.

This process holds both ends, so nothing is loaded that it does not need.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from broker import memory
from broker.cli import address
from broker.cli.exits import OK, UsageError
from broker.cli.oslo import plan
from broker.cli.oslo.shared_options import common, signals
from broker.cli.parsing import Parser
from broker.oslo.service import FluxBridgeConfig
from broker.settings import OsloSection, wing_settings
from broker.tasks import first_of, run_to_end

if TYPE_CHECKING:
    from broker.transport.link import Options

_EPILOG = f"""\
examples:
  headgate oslo bridge --uri local:///run/headgate/local-0
  headgate oslo bridge --uri tcp://node0:8051
  headgate oslo bridge --config broker.toml              rules in [[oslo.calls]], notifications in oslo.notify
  headgate rpc oslo.openstack.scheduler.select '{{"args": {{"host": "a1"}}}}'
  headgate sub oslo.notify.                            notifications, as owner

The broker is --uri, else $HEADGATE_URI, else $FLUX_URI; we have to be its owner.
{address.KEYS_HELP}
SIGTERM and SIGINT answer what waits and leave; a second one leaves at once.
Exit codes: 0 told to leave, 1 failed or refused, 2 wrong options, 3 no broker there, 78 wrong configuration
"""


def arguments() -> Parser:
    """The options of the verb."""
    parser = Parser(
        "oslo bridge",
        "Be the service `oslo` on a Flux broker until told to leave.",
        _EPILOG,
    )
    add = parser.add_argument
    add("-u", "--uri", metavar="URI", help="The Flux broker.")
    add("--ipc-dir", metavar="DIR", help="Folder of the node's proxy.")
    add(
        "--notify",
        action="append",
        metavar="EXCHANGE/TOPIC",
        help="Publish these notifications (default openstack/notifications); may be given again.",
    )
    add("--public", action="store_true", help="Show notifications to every user of the broker.")
    common(parser)
    return parser


def section_of(given: argparse.Namespace) -> OsloSection:
    """The settings that the options and the file ask for.

    Raises:
        ConfigError: they cannot be, or contradict each other.
    """
    named: dict[str, Any] = {}
    if given.ipc_dir:
        named["ipc_dir"] = os.path.abspath(given.ipc_dir)
    if given.notify:
        named["notify"] = tuple(given.notify)
    if given.public:
        named["notify_public"] = True
    return wing_settings(OsloSection, given.config, named, given.set)


def flux_uri(given: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> str:
    """The Flux broker to be reachable on.

    Raises:
        UsageError: none is named.
    """
    uri = address.named(given.uri, environ)
    if not uri:
        raise UsageError("no broker is named; expected --uri, $HEADGATE_URI or $FLUX_URI")
    return uri


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    given = arguments().parse_args(argv)
    section = section_of(given)
    uri = flux_uri(given)
    options = address.link_options(uri)

    from broker.cli.oslo.room import log_to_stderr

    log_to_stderr("warning" if given.quiet else "info", "oslo bridge")

    def ready() -> None:
        if not given.quiet:
            print("\n".join(said(section, uri)), flush=True)

    return run_to_end(serve(plan.bridge_config(section), uri, ready, options))


def said(section: OsloSection, uri: str) -> list[str]:
    """What is printed once it is there."""
    events = ", ".join(section.notify)
    audience = "everybody" if section.notify_public else "owners"
    return [
        f"oslo.EXCHANGE.TOPIC.METHOD on {uri}, through the proxy in {plan.ipc_dir(section)}",
        f"notifications of {events} as events oslo.notify.* for {audience}" if events else "no notifications",
        "Ctrl-C ends it",
    ]


async def serve(config: FluxBridgeConfig, uri: str, ready: Callable[[], None], options: Options) -> int:
    """Be the bridge until SIGTERM or SIGINT; returns the exit code.

    Args:
        config: of the bridge.
        uri: the Flux broker.
        ready: called once the bridge is there.
        options: of the link to that broker, see ``address.link_options``.

    Raises:
        HeadgateError: it could not start.
    """
    from broker.oslo.service import FluxBridge

    bridge = FluxBridge(config, uri, options=options)
    with signals() as leave:
        try:
            with address.keys_explained(uri, options):
                there = await first_of(bridge.start(), leave.wait())
            if there:
                memory.freeze()
                ready()
            await leave.wait()
        finally:
            await bridge.stop()
    return OK
