"""``headgate oslo proxy``: the proxy of this node, or those of its rooms that are to run here.

This process becomes the proxy, so nothing is loaded that it does not need.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from broker import memory, supervision
from broker.cli import address
from broker.cli.exits import OK
from broker.cli.oslo import plan
from broker.cli.oslo.picture import sockets_in
from broker.cli.oslo.shared_options import common, signals
from broker.cli.parsing import Parser
from broker.endings import attended
from broker.oslo.node import DIRECTORY
from broker.rereading import Rereading
from broker.secret import SecretUrl
from broker.settings import JournalSection, OsloSection, load_journal, wing_settings
from broker.tasks import first_of, run_to_end

_EPILOG = f"""\
examples:
  headgate oslo proxy                                   all rooms, for this machine only; prints the transport_url
  headgate oslo proxy --host '*' --curve-cert oslo.cert --directory tcp://controller:9500
  headgate oslo proxy --run call,directory --call-port 9601
  headgate oslo proxy --redis redis://controller:6379/0
  headgate oslo proxy --uri local:///run/headgate/local-0   and be reachable there: oslo.EXCHANGE.TOPIC.METHOD
  headgate oslo proxy --journal journal                 record what passes; headgate journal ls journal
  headgate oslo proxy --config broker.toml --set oslo.lease_s=10

`headgate config show` has every setting, section [oslo].
{address.KEYS_HELP}
SIGTERM ends it as for a restart: what it has announced stays known for 30 s, clients hold what they have, and the next
proxy goes on with it. SIGINT (Ctrl-C) leaves for good and tells everybody. A second one ends it at once.
SIGHUP reads keys, rules and certificate again.
Exit codes: 0 told to leave, 1 failed, 2 wrong options, 75 what it needs is not there yet, or in use,
78 wrong configuration
"""


def arguments() -> Parser:
    """The options of the verb."""
    parser = Parser(
        "oslo proxy",
        "Run the proxy of one node of oslo.messaging until it is told to leave.",
        _EPILOG,
    )
    add = parser.add_argument
    add("--run", metavar="ROOMS", help=f"Rooms that run here (default {','.join(plan.ROOMS)}).")
    add("--split", action=_Split, nargs=0, help=argparse.SUPPRESS)
    add("--host", metavar="H", help="Address of the ports (default 127.0.0.1; '*' all, '' none).")
    add("--advertise", metavar="H", help="What other nodes dial (default: the host, or the node's name).")
    add("-n", "--node", metavar="N", help="Name of this node (default: the host name).")
    for room in plan.ROOMS:
        add(f"--{room}-port", type=int, metavar="P", help=f"TCP port of {room}; 0: any free one.")
    add(
        "--directory",
        action="append",
        metavar="URL",
        help="Another directory, tcp://HOST:PORT; may be given again.",
    )
    add(
        "--redis", action="append", metavar="URL", help="Redis that shares the directory; may be given again."
    )
    add("--redis-password-file", metavar="FILE", help="Its password (0600), which stands in no URL then.")
    add("--ipc-dir", metavar="DIR", help="Folder of sockets for this node's servers and clients.")
    add("--ipc-group", metavar="GROUP", help="Group that may use it.")
    add("--curve-cert", metavar="FILE", help="CURVE certificate of this node (headgate keygen).")
    add("--insecure", action="store_true", help="Allow plaintext off loopback.")
    add(
        "-u", "--uri", metavar="URI", help="A Flux broker to be reachable on, from a process beside this one."
    )
    add("--journal", metavar="DIR", help="Record what passes in this folder; more in [journal] of the file.")
    common(parser)
    return parser


class _Split(argparse.Action):
    """What ran a process for each room: the service manager does."""

    def __call__(self, parser: argparse.ArgumentParser, *_given: object) -> None:
        parser.error(
            "--split: each room is a service of its own, headgate-oslo-room@ROOM.service (deploy/systemd), or"
            " `headgate oslo proxy --run ROOM` under another service manager"
        )


def section_of(given: argparse.Namespace) -> OsloSection:
    """The settings that the options and the file ask for.

    Raises:
        ConfigError: they cannot be, or contradict each other.
    """
    ports = tuple(f"{room}_port" for room in plan.ROOMS)
    named: dict[str, Any] = {
        name: getattr(given, name)
        for name in ("host", "advertise", "node", "ipc_group", *ports)
        if getattr(given, name) is not None
    }
    for name in ("ipc_dir", "curve_cert", "redis_password_file"):
        if getattr(given, name):
            named[name] = os.path.abspath(getattr(given, name))
    if given.run is not None:
        named["run"] = plan.rooms_of(given.run)
    if given.directory:
        named["directories"] = tuple(given.directory)
    if given.redis:
        named["redis"] = tuple(map(SecretUrl, given.redis))
    named.update({"insecure": True} if given.insecure else {})
    return wing_settings(OsloSection, given.config, named, given.set)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    given = arguments().parse_args(argv)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is somebody to read the settings again
    section = section_of(given)
    read = partial(section_of, given)
    journal = load_journal(given.config, given.journal)

    from broker.cli.oslo.room import log_to_stderr

    level = "warning" if given.quiet else "info"
    log_to_stderr(level, "oslo proxy")

    def ready(endpoints: Mapping[str, str]) -> None:
        if not given.quiet:
            print("\n".join([*said(section, endpoints, given.uri or ""), "Ctrl-C ends it"]), flush=True)

    uri = given.uri if section.bridge else ""
    if uri:
        return attended(
            "headgate oslo",
            lambda: run_to_end(_serve(section, uri, level, ready, journal, read)),
        )
    return attended(
        "headgate oslo",
        lambda: run_here(section, ready, journal, partial(plan.read_again, section, read)),
    )


def said(section: OsloSection, endpoints: Mapping[str, str], uri: str) -> list[str]:
    """What is printed once it is there."""
    lines = plan.where(section, endpoints)
    if uri and section.bridge:
        lines.append(f"  reachable as oslo.EXCHANGE.TOPIC.METHOD on {uri}")
    return lines


def run_here(
    section: OsloSection,
    ready: Callable[[Mapping[str, str]], None],
    journal: JournalSection,
    reread: Callable[[], OsloSection],
) -> int:
    """Run a proxy in this process until it is told to leave; returns the exit code.

    Args:
        section: its settings. The figures of the node are served where its directory runs.
        ready: called once, with where each room is reached from other nodes.
        journal: what is recorded.
        reread: how SIGHUP reads ``section`` again.
    """
    from broker.oslo.proxy.process import NodeProxy

    config = plan.node_config(section)
    journaled = plan.journal_of(journal, section.run)
    proxy = NodeProxy(config, journaled, lambda: plan.node_config(reread()))

    def opened() -> None:
        memory.freeze()
        ready(endpoints_in(proxy.status(), config.advertise or config.node))

    with contextlib.ExitStack() as beside:
        if section.metrics_listen and DIRECTORY in config.run:
            from broker.cli.oslo.metrics import metrics_served

            beside.enter_context(metrics_served(section.metrics_listen, config.ipc_dir))
        proxy.run(opened)
    return OK


def endpoints_in(told: Mapping[str, Mapping[str, Any]], host: str) -> dict[str, str]:
    """Where each room is reached from other nodes, of what the rooms tell of themselves; "" nowhere.

    A room that tells only where its sockets are bound is reached at ``host``.
    """
    found = {}
    for room, said in told.items():
        bound = [each["endpoint"] for each in sockets_in(said) if each["endpoint"].startswith("tcp:")]
        port = bound[0].rpartition(":")[2] if bound else ""
        found[room] = str(said.get("endpoint") or (f"tcp://{host}:{port}" if port else ""))
    return found


async def _serve(
    section: OsloSection,
    uri: str,
    level: str,
    ready: Callable[[Mapping[str, str]], None],
    journal: JournalSection,
    read: Callable[[], OsloSection],
) -> int:
    """Keep the processes of the node until told to leave; ``read``: their settings again, at SIGHUP."""
    from broker.cli.oslo.children import Children, orders

    children = Children(orders(section, uri, log_level=level, journal=journal))

    async def renew() -> None:
        nonlocal section
        section = await asyncio.to_thread(plan.read_again, section, read)
        children.renew(section)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        await children.start()
        supervision.announce(loop.call_later, "READY=1")
        supervision.watch(loop.call_later)
        ready(children.endpoints)
        await children.failed()

    with signals(Rereading(renew).request) as leave:
        try:
            await first_of(run(), leave.wait())
        finally:
            supervision.notify("STOPPING=1")
            await children.stop(leave.number)
    return OK
