"""``headgate up``: a tree of brokers and a gateway on this machine, one command from nothing to a dashboard.

Rank 0 and the gateway are this process, on one event loop, linked in memory; the other ranks are forked before the
gateway is loaded, and follow rank 0 when it leaves (``broker.local``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import socket
import time
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from broker import memory, supervision
from broker.cli import wings
from broker.cli.exits import Failed
from broker.cli.parsing import Parser
from broker.cli.start import add_tree, settings_with
from broker.errors import ConfigError, NotReady
from broker.local import command
from broker.local.ranks import LocalTree, plan
from broker.local.rundir import Rundir
from broker.settings import ListenEntry as BrokerListenEntry
from broker.settings import Settings
from broker.tasks import run_to_end
from gateway import delta
from gateway.cli import companions
from gateway.settings import GatewaySettings, ListenEntry, UserEntry, apply, check, load, place_of

if TYPE_CHECKING:
    from broker.node.assembly import Node
    from gateway.serve import Gateway

PORTS: Final = 20
"""Ports that are tried from the default one on, when nobody named one."""
OWNER: Final = "owner"
"""The name of whoever runs this, where no configuration names users."""
NOTE: Final = "headgate up"
"""What the owner's token is for; one that an instance before left in the same directory goes."""

_EPILOG: Final = """\
Examples:
  headgate up                           one broker and a gateway on http://127.0.0.1:8280
  headgate up --size 4                  a tree of four
  headgate up --size 4 --demo           and programs that use it, with something to break
  headgate up --nfp                     and a broker of NFP for workers and clients
  headgate up --oslo                    and a node proxy for oslo.messaging (zmq://)
  headgate up --journal DIR             and what passes, on disk
  headgate up --journal DIR --pipeline  and tables of it, as it grows: the dashboard's History
  headgate up --config gateway.toml     with users, tokens and certificates
  headgate up --listen http://127.0.0.1:9000 --no-login

The login link works once, on this machine, and gives the role owner. Ctrl-C ends everything; a second one at once.
Exit codes: 0 told to leave, 1 failed, 2 wrong options, 75 what it needs is not there yet, or in use,
78 wrong configuration
"""


def arguments() -> Parser:
    """The options of the verb."""
    parser = Parser(
        "up",
        "Start brokers and a gateway on this machine, print a login link, stay until Ctrl-C.",
        _EPILOG,
    )
    add_tree(parser)
    add = parser.add_argument
    add(
        "-l",
        "--listen",
        metavar="URL",
        help=f"Where the gateway listens (default: http://127.0.0.1:8280, or one of the next {PORTS - 1} ports).",
    )
    add("--no-login", action="store_true", help="Make no login link: tokens and certificates only.")
    add("-c", "--config", metavar="FILE", help="Settings of the gateway (TOML).")
    add(
        "--pipeline",
        action="store_true",
        help="And headgate pipeline stream, which makes tables of that journal, in the warehouse that --history names "
        "(default: the journal's name and -warehouse). Needs the extra spark and Java.",
    )
    add(
        "--demo",
        action="store_true",
        help="And a few services and clients, so that there is something to see, and to break.",
    )
    add("--history", metavar="DIR", help="Show what headgate pipeline made of a journal in this warehouse.")
    add("--broker-config", metavar="FILE", help="Settings of every rank; the shape of the tree is made here.")
    for name, whose in (("--set", "of the gateway"), ("--broker-set", "of every rank")):
        parser.add_set("SECTION.KEY=VALUE", f"One setting more {whose}", name)
    return parser


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    given = arguments().parse_args(argv)
    if given.pipeline:
        companions.check(given.journal)
        given.history = given.history or f"{given.journal.rstrip('/')}-warehouse"
    settings = gateway_settings(given)
    base = broker_settings(given)
    rundir = Rundir(given.rundir, guests=base.access.allow_guest_user)
    try:
        if "gateway.statedir" not in " ".join(given.set) and not given.config:
            section = replace(settings.gateway, statedir=f"{rundir.path}/rank-0.state")
            settings = replace(settings, gateway=section)
        ranks = plan(base, given.size, base.tree.topology, rundir.path)
        return run_to_end(Up(given, settings, ranks, rundir).run())
    finally:
        rundir.remove()


def gateway_settings(given: argparse.Namespace) -> GatewaySettings:
    """Settings of the gateway, quiet unless told otherwise.

    Raises:
        ConfigError: the file or an option is wrong.
    """
    settings = load(given.config) if given.config else GatewaySettings.defaults()
    if given.listen:
        settings = check(replace(settings, listen=(ListenEntry(url=given.listen),)))
    level = "info" if given.verbose else "warning"
    login = [] if given.no_login or given.config else ["access.login_links=owner"]
    history = [f"history.warehouse={json.dumps(delta.place_of(given.history))}"] if given.history else []
    settings = apply(settings, [f"gateway.log_level={level}", *login, *history, *given.set])
    if settings.gateway.workers > 1:
        raise ConfigError(
            "gateway.workers: saw more than 1, expected 1: rank 0 and the gateway are one process"
        )
    return settings


def broker_settings(given: argparse.Namespace) -> Settings:
    """What all ranks have in common. Raises as ``settings_with``."""
    level = "info" if given.verbose else "warning"
    return settings_with(given, given.broker_config, [f"broker.log_level={level}", *given.broker_set])


# ---------------------------------------------------------------- the processes


def with_owner(settings: GatewaySettings) -> tuple[GatewaySettings, str]:
    """``settings`` with the user who runs this as the owner, and a token of theirs; "" where it is not only this
    machine that reaches the gateway, or users are named.
    """
    from gateway.identity.tokens import TokenFile, token_path  # behind the fork

    if settings.users or not all(place_of(entry.url).is_local for entry in settings.listen):
        return settings, ""
    owner = UserEntry(name=OWNER, userid=os.geteuid(), roles=("owner",))
    access = replace(settings.access, allow_owner=True)
    tokens = TokenFile(token_path(settings))
    tokens.remove(lambda token: (token.user, token.note) == (OWNER, NOTE))
    text = tokens.add(OWNER, now=time.time(), note=NOTE)[1]
    return replace(settings, users=(owner,), access=access), text


class Up:
    """A tree whose rank 0 is this process, and the gateway beside it.

    Args:
        given: the options. settings: of the gateway. ranks: settings of each. rundir: of the tree.
    """

    def __init__(
        self, given: argparse.Namespace, settings: GatewaySettings, ranks: list[Settings], rundir: Rundir
    ) -> None:
        self.settings = settings
        self._ranks = ranks
        self._rundir = rundir
        self._login: bool = not given.no_login
        self._ports = 1 if given.listen or given.config else PORTS
        self._token = ""
        self._began = time.monotonic()
        self.tree = LocalTree(ranks[1:])
        self.wings: list[wings.Wing] = wings.wings_of(ranks[0])
        if given.pipeline:
            self.wings.append(companions.pipeline(given.journal, delta.place_of(given.history), rundir.path))
        self._demo: bool = given.demo
        self.left = False
        """All that is beside rank 0 has left in order."""

    async def run(self) -> int:
        """Start all, say where, stay until told to leave, end all; returns the exit code.

        Raises:
            Failed: a rank ended before all had joined. TimeoutError. ConfigError: a setting cannot be followed, or all
                ports are in use.
        """
        from gateway.web.listener import bind_all

        try:
            sockets = [sock for sock, _place in bind_all(self.settings, ports=self._ports)]
        except NotReady as error:
            if self._ports == 1:
                raise
            text = f"{error}; so are the {PORTS - 1} ports before it: --listen http://127.0.0.1:PORT names another"
            raise NotReady(text, error.errno) from error
        try:
            self.tree.begin()
            await asyncio.sleep(0)  # they are forked: they need nothing of what is loaded from now on
            return await self._serve(sockets)
        finally:
            with contextlib.suppress(asyncio.CancelledError):  # a second signal: who is left is killed
                await self.tree.down()
            for sock in sockets:
                sock.close()

    async def _serve(self, sockets: list[socket.socket]) -> int:
        from broker.node import bootstrap
        from gateway import process
        from gateway.serve import Gateway

        process.set_up_logging(self.settings.gateway.log_level, "up")
        supervision.name_process("headgate-0")
        process.shrink_tls_buffers()
        if self._login and self.settings.gateway.statedir.startswith(f"{self._rundir.path}/"):
            self.settings, self._token = with_owner(self.settings)
        own = f"inproc://gateway-{os.getpid()}"
        first = self._ranks[0]
        first = replace(first, listen=(*first.listen, BrokerListenEntry(uri=own)))
        rank_0: Node | None = None

        def leave(reason: str) -> None:
            if rank_0 is not None:  # it is there before anybody can call ``gateway.drain``
                rank_0.context.leave(reason)

        def beside(node: Node) -> _Beside:
            nonlocal rank_0
            rank_0 = node
            return _Beside(node, self, gateway)

        gateway = Gateway(self.settings, upstream=own, sockets=sockets, leave=leave)

        def ready(_node: Node) -> None:
            memory.freeze(memory.OLD_OF_TRANSPORTS)
            self._say_where(gateway)

        code = await bootstrap.serve(first, beside=beside, ready=ready)
        if not self.left:  # a second signal
            self.tree.leave()
            self.tree.leave()
            await gateway.abandon()
        return code

    def demo(self, gateway: Gateway) -> list[wings.Wing]:
        """The demo, where it is wanted; by the gateway, which is started, one comes where that knows our token."""
        if not self._demo:
            return []
        uris = [rank.broker.local_uri or "" for rank in self._ranks]
        pids = [rank.pid for rank in self.tree.ranks]
        url = gateway.urls[0]
        return [companions.demo(uris, pids, url, self._token, self._rundir.path)]

    def _say_where(self, gateway: Gateway) -> None:
        brokers = f"{len(self._ranks)} brokers" if len(self._ranks) > 1 else "one broker"
        seconds = time.monotonic() - self._began
        lines = [
            f"{brokers} and a gateway are up after {seconds:.2f} s",
            f"FLUX_URI={self._ranks[0].broker.local_uri}",
            *gateway.urls,
        ]
        if self._login and self.settings.access.login_links != "off":
            lines += [
                "open the dashboard (the link works once, on this machine):",
                f"  {gateway.login_link()}",
            ]
        environ = self._rundir.write_environment(self._variables(gateway), command.own_directory())
        lines += ["in another terminal, for headgate, curl and Python:", f"  . {shlex.quote(environ)}"]
        lines += [line for wing in self.wings for line in wing.where()]
        lines.append("Ctrl-C ends it")
        print("\n".join(lines), flush=True)

    def _variables(self, gateway: Gateway) -> dict[str, str]:
        """What another terminal has to know."""
        found = {**command.where(self._ranks[0].broker.local_uri or ""), "URL": gateway.urls[0]}
        if self._token:
            found["HEADGATE_TOKEN"] = self._token
        for wing in self.wings:
            found |= wing.variables()
        return found


class _Beside(wings.Beside):
    """What runs beside rank 0 in its process: once the other ranks have joined, wings, and the gateway.

    Args:
        node: rank 0. up: the whole. gateway: which ends here, be it started or not.
    """

    def __init__(self, node: Node, up: Up, gateway: Gateway) -> None:
        super().__init__(node)
        self._up = up
        self._gateway = gateway

    async def start(self) -> None:
        """Start all of it.

        Raises:
            Failed: a rank ended before all had joined. ConfigError, HeadgateError, TimeoutError.
        """
        from gateway.process import END_S  # behind the fork

        self.push(self._note)
        up, node = self._up, self.node
        running = asyncio.Event()
        node.lifecycle.watchers.append(lambda state: running.set() if state == "run" else None)
        if node.lifecycle.state == "run":
            running.set()
        await up.tree.join()
        if up.tree.lost():
            raise Failed(*up.tree.failure())
        await running.wait()
        await self.add(up.wings)
        self.push_async_callback(self._gateway.stop)
        await self._gateway.start()
        demo = up.demo(self._gateway)
        up.wings += demo
        await self.add(demo)
        self.callback(supervision.leaving, up.settings.gateway.drain_s + END_S)
        self.callback(up.tree.expect_end)  # before rank 0 leaves

    def _note(self, kind: type[BaseException] | None, *_: object) -> None:
        self._up.left = kind is None
