"""``headgate up``: a tree of brokers and a gateway on this machine, one command from nothing to a dashboard.

Rank 0 and the gateway are this process, on one event loop, linked in memory; the other ranks are forked before the loop
begins, and follow rank 0 when it leaves (``broker.node.local_tree``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import signal
import socket
import time
from typing import TYPE_CHECKING, Final

import msgspec

from broker import memory, supervision
from broker.cli import command
from broker.cli.nfp.inside import variables, where, wing_of
from broker.cli.oslo import inside as oslo
from broker.cli.parsing import Parser
from broker.cli.rundir import Rundir
from broker.cli.start import positive, report_dead, settings_with
from broker.endings import OK
from broker.errors import ConfigError
from broker.node.local_tree import LocalTree, plan
from broker.settings import ListenEntry as BrokerListenEntry
from broker.settings import Settings
from gateway import delta
from gateway.cli import following
from gateway.settings import GatewaySettings, ListenEntry, UserEntry, apply, check, load, place_of

if TYPE_CHECKING:
    from broker.node.assembly import Node
    from gateway.serve import Gateway

START_S: Final = 60.0
"""How long the ranks may take to find together."""
PORTS: Final = 20
"""Ports that are tried from the default one on, when nobody named one."""
OWNER: Final = "owner"
"""The name of whoever runs this, where no configuration names users."""
NOTE: Final = "headgate up"
"""What the owner's token is for; one that an instance before left in the same directory goes."""
LOOK_S: Final = 1.0
"""How often it is looked whether a rank has ended."""

_EPILOG: Final = """\
Examples:
  headgate up                          one broker and a gateway on http://127.0.0.1:8280
  headgate up --size 4                 a tree of four
  headgate up --nfp                    and a broker of NFP for workers and clients
  headgate up --oslo                   and a node proxy for oslo.messaging (zmq://)
  headgate up --journal DIR            and what passes, on disk
  headgate up --journal DIR --pipeline and tables of it, as it grows: the dashboard's History
  headgate up --config gateway.toml    with users, tokens and certificates
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
    add = parser.add_argument
    add("-n", "--size", type=positive, default=1, metavar="N", help="How many brokers (default 1).")
    add("-t", "--topo", metavar="kary:K", help="The parent of rank r is (r-1)/K (default kary:2).")
    add(
        "-l",
        "--listen",
        metavar="URL",
        help=f"Where the gateway listens (default: http://127.0.0.1:8280, or one of the next {PORTS - 1} ports).",
    )
    add("--no-login", action="store_true", help="Make no login link: tokens and certificates only.")
    add("--rundir", metavar="DIR", help="Sockets, keys and state (default: a new private directory).")
    add("-c", "--config", metavar="FILE", help="Settings of the gateway (TOML).")
    add(
        "--nfp",
        action="store_true",
        help="And a broker of NFP, with [nfp] of the ranks' settings or defaults.",
    )
    add(
        "--oslo",
        action="store_true",
        help="And a node proxy for oslo.messaging, with [oslo] of the ranks' settings or defaults.",
    )
    add(
        "--journal",
        metavar="DIR",
        help="Record what passes the brokers, into this folder (headgate journal, headgate pipeline).",
    )
    add(
        "--pipeline",
        action="store_true",
        help="And headgate pipeline stream, which makes tables of that journal, in the warehouse that --history names "
        "(default: the journal's name and -warehouse). Needs the extra spark and Java.",
    )
    add("--history", metavar="DIR", help="Show what headgate pipeline made of a journal in this warehouse.")
    add("--broker-config", metavar="FILE", help="Settings of every rank; the shape of the tree is made here.")
    for name, whose in (("--set", "of the gateway"), ("--broker-set", "of every rank")):
        parser.add_set("SECTION.KEY=VALUE", f"One setting more {whose}", name)
    add("-v", "--verbose", action="store_true", help="Let everybody log what they do.")
    return parser


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    given = arguments().parse_args(argv)
    if given.pipeline:
        following.check(given.journal)
        given.history = given.history or f"{given.journal.rstrip('/')}-warehouse"
    settings = gateway_settings(given)
    base = broker_settings(given)
    rundir = Rundir(given.rundir, guests=base.access.allow_guest_user)
    try:
        if "gateway.statedir" not in " ".join(given.set) and not given.config:
            section = msgspec.structs.replace(settings.gateway, statedir=f"{rundir.path}/rank-0.state")
            settings = msgspec.structs.replace(settings, gateway=section)
        ranks = plan(base, given.size, base.tree.topology, rundir.path)
        own = f"inproc://gateway-{os.getpid()}"
        first = msgspec.structs.replace(ranks[0], listen=(*ranks[0].listen, BrokerListenEntry(uri=own)))
        return _run(given, settings, [first, *ranks[1:]], own, rundir)
    finally:
        rundir.remove()


def gateway_settings(given: argparse.Namespace) -> GatewaySettings:
    """Settings of the gateway, quiet unless told otherwise.

    Raises:
        ConfigError: the file or an option is wrong.
    """
    settings = load(given.config) if given.config else GatewaySettings.defaults()
    if given.listen:
        settings = check(msgspec.structs.replace(settings, listen=(ListenEntry(url=given.listen),)))
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


def _run(
    given: argparse.Namespace, settings: GatewaySettings, ranks: list[Settings], own: str, rundir: Rundir
) -> int:
    began = time.monotonic()
    sockets = _bound(settings, fixed=bool(given.listen or given.config))
    instance = LocalTree(ranks[1:])
    hurry = False
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # ranks that end are looked for, see LocalTree
    try:
        instance.start()
        from gateway import process  # behind the fork: the other ranks need nothing of it

        process.set_up_logging(settings.gateway.log_level, "up")
        supervision.name_process("headgate-0")
        supervision.raise_descriptor_limit()
        process.shrink_tls_buffers()
        token = ""
        if not given.no_login and settings.gateway.statedir.startswith(f"{rundir.path}/"):
            settings, token = with_owner(settings)
        up = _Up(settings, ranks[0], own, instance, sockets, began, rundir, token, login=not given.no_login)
        if given.pipeline:
            up.tables = following.Following(given.journal, delta.place_of(given.history), rundir.path)
        code = asyncio.run(up.run())
        hurry = up.forced
        return code
    finally:
        instance.stop(*((0.0, 0.0) if hurry else ()))
        for sock in sockets:
            sock.close()


def with_owner(settings: GatewaySettings) -> tuple[GatewaySettings, str]:
    """``settings`` with the user who runs this as the owner, and a token of theirs; "" where it is not only this
    machine that reaches the gateway, or users are named.
    """
    from gateway.identity.tokens import TokenFile, token_path  # behind the fork

    if settings.users or not all(place_of(entry.url).is_local for entry in settings.listen):
        return settings, ""
    owner = UserEntry(name=OWNER, userid=os.geteuid(), roles=("owner",))
    access = msgspec.structs.replace(settings.access, allow_owner=True)
    tokens = TokenFile(token_path(settings))
    tokens.remove(lambda token: (token.user, token.note) == (OWNER, NOTE))
    text = tokens.add(OWNER, now=time.time(), note=NOTE)[1]
    return msgspec.structs.replace(settings, users=(owner,), access=access), text


def _bound(settings: GatewaySettings, *, fixed: bool) -> list[socket.socket]:
    """A socket per listener, bound before anything is started; a default port that is taken gives way to the next.

    Raises:
        ConfigError: an address is in use, or cannot be used.
    """
    from gateway.web.listener import bind

    urls = [entry.url for entry in settings.listen]
    if settings.gateway.metrics_listen:
        urls.append(settings.gateway.metrics_listen)
    found: list[socket.socket] = []
    for url in urls:
        place = place_of(url)
        last = place.port + (0 if fixed or not place.port else PORTS - 1)
        while True:
            try:
                found.append(bind(place)[0])
                break
            except ConfigError:
                if place.port >= last:
                    for sock in found:
                        sock.close()
                    raise
                place = place._replace(port=place.port + 1)
    return found


class _Up:
    """Rank 0 and the gateway on one event loop; ``forced`` is True once a second signal ended them at once.

    ``tables`` is what makes tables beside them.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        rank: Settings,
        own: str,
        instance: LocalTree,
        sockets: list[socket.socket],
        began: float,
        rundir: Rundir,
        token: str,
        *,
        login: bool,
    ) -> None:
        self._settings = settings
        self._rank = rank
        self._own = own
        self._instance = instance
        self._sockets = sockets
        self._began = began
        self._rundir = rundir
        self._token = token
        self._login = login
        self._wing = wing_of(rank)
        self._oslo = oslo.wing_of(rank)
        self.tables: following.Following | None = None
        self._running = asyncio.Event()
        self.forced = False

    async def run(self) -> int:
        """Start, say where, stay until told to leave; returns the exit code."""
        from broker.node.assembly import Node
        from broker.node.bootstrap import keep_log
        from gateway.process import Leaving
        from gateway.serve import Gateway

        gateway = Gateway(self._settings, upstream=self._own, sockets=self._sockets)
        leaving = Leaving(gateway, hangup="leave")
        gateway.hub.leave = leaving.leave
        node = Node(self._rank, leave=lambda reason, _code: leaving.leave(reason))
        keep_log(node)
        node.lifecycle.watchers.append(self._entered)
        try:
            async with leaving:
                if await leaving.unless_left(self._start(node, gateway)):
                    memory.settle(memory.OLD_OF_TRANSPORTS)
                    self._say_where(gateway)
                    watching = asyncio.get_running_loop().create_task(self._watch(), name="watch ranks")
                    await leaving.wait()
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)
        finally:
            self.forced = leaving.forced
            if not self.forced:
                with contextlib.suppress(asyncio.CancelledError):
                    if self.tables is not None:
                        await self.tables.stop()
                    if self._oslo is not None:
                        await self._oslo.stop()
                    if self._wing is not None:
                        await self._wing.stop()
                    await node.stop()
        return OK

    async def _start(self, node: Node, gateway: Gateway) -> None:
        await node.start()
        async with asyncio.timeout(START_S):
            while not self._running.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await self._running.wait()
                self._failed_start()
        if self._wing is not None:
            node.metrics.more.append(self._wing.samples)
            await self._wing.start()
        if self._oslo is not None:
            await self._oslo.start()
        if self.tables is not None:
            self.tables.start()
        await gateway.start()

    def _entered(self, state: str) -> None:
        if state == "run":
            self._running.set()

    def _failed_start(self) -> None:
        """A rank that ended before all have joined has said why itself."""
        if dead := self._instance.reap():
            raise ConfigError(f"rank {dead[0].number} {dead[0].why} before it had joined")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            report_dead(self._instance)

    def _say_where(self, gateway: Gateway) -> None:
        count = 1 + len(self._instance.ranks)
        brokers = f"{count} brokers" if count > 1 else "one broker"
        seconds = time.monotonic() - self._began
        lines = [
            f"{brokers} and a gateway are up after {seconds:.2f} s",
            f"FLUX_URI={self._rank.broker.local_uri}",
            *gateway.urls,
        ]
        if self._login and self._settings.access.login_links != "off":
            lines += [
                "open the dashboard (the link works once, on this machine):",
                f"  {gateway.login_link()}",
            ]
        environ = self._rundir.write_environment(self._variables(gateway), command.own_directory())
        lines += ["in another terminal, for headgate, curl and Python:", f"  . {shlex.quote(environ)}"]
        if self._wing is not None and self._wing.broker is not None and self._rank.nfp is not None:
            nfp = self._wing.broker
            lines += where(self._rank.nfp, nfp.endpoints, nfp.server_key)
        if self._oslo is not None:
            lines += self._oslo.where()
        if self.tables is not None:
            lines += self.tables.where()
        lines.append("Ctrl-C ends it")
        print("\n".join(lines), flush=True)

    def _variables(self, gateway: Gateway) -> dict[str, str]:
        """What another terminal has to know."""
        found = {**command.where(self._rank.broker.local_uri or ""), "URL": gateway.urls[0]}
        if self._token:
            found["HEADGATE_TOKEN"] = self._token
        if self._wing is not None and self._wing.broker is not None and self._rank.nfp is not None:
            found |= variables(self._rank.nfp, self._wing.broker.endpoints)
        for beside in (self._oslo, self.tables):
            if beside is not None:
                found |= beside.variables()
        return found
