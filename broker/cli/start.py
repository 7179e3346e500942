"""``headgate start``: a tree of brokers on this machine, for one command or until Ctrl-C.

The launcher blocks its signals and takes them one by one with ``broker.signals``, which tells who sent them. A Ctrl-C
at the terminal reaches the command by itself; a signal that another process sent to the launcher is passed on.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from broker import supervision
from broker.children.supervisor import all_left
from broker.cli import exits, wings
from broker.cli.parsing import Parser
from broker.endings import OK
from broker.errors import ConfigError, HeadgateError, print_error
from broker.local.command import AWAITED, BLOCKED, Command, environment, own_directory, where
from broker.local.ranks import LocalTree, plan
from broker.local.rundir import Rundir
from broker.outlet import take_over
from broker.settings import NfpSection, OsloSection, Settings, read
from broker.signals import opened
from broker.signals import read as read_signal
from broker.tasks import first_of

_EPILOG: Final = """\
Examples:
  headgate start --size 4                                a shell inside a tree of four
  headgate start --size 4 -- headgate status             one command, then the end
  headgate start --size 7 --topo kary:3 --wait           until Ctrl-C; other terminals connect
  headgate start --nfp --wait                            with a broker of NFP for workers and clients
  headgate start --oslo --wait                           with a node proxy for oslo.messaging (zmq://)
  headgate start --size 2 --journal DIR --wait           what passes, on disk: headgate journal ls DIR
  headgate start --config broker.toml --set broker.log_level=info -- ./my-test

The command finds the broker of rank 0 in $FLUX_URI and $HEADGATE_URI.
Exit code: that of the command, 128 + N if signal N ended it; 0 with --wait; 75 what it needs is not there
yet, or in use, 78 wrong configuration
"""


def arguments() -> Parser:
    """The options of the verb."""
    parser = Parser(
        "start",
        "Start a tree of brokers on this machine, run a command (default: $SHELL), end it all.",
        _EPILOG,
        usage="[OPTIONS] [-- COMMAND ...]",
    )
    add_tree(parser)
    add = parser.add_argument
    add("-w", "--wait", action="store_true", help="No command: print how to connect, stay until Ctrl-C.")
    add(
        "-c",
        "--config",
        metavar="FILE",
        help="Settings for every rank; the shape and keys of the tree are made here.",
    )
    parser.add_set("SECTION.KEY=VALUE", "One setting more")
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=argparse.SUPPRESS)
    return parser


def add_tree(parser: Parser) -> None:
    """The options that say which tree is made on this machine, and what stands beside it."""
    add = parser.add_argument
    add("-n", "--size", type=positive, default=1, metavar="N", help="How many brokers (default 1).")
    add("-t", "--topo", metavar="kary:K", help="The parent of rank r is (r-1)/K (default kary:2).")
    add(
        "--rundir",
        metavar="DIR",
        help="Sockets, keys and state (default: a new private directory, removed at the end).",
    )
    for name, what in (("nfp", "a broker of NFP"), ("oslo", "a node proxy for oslo.messaging")):
        text = f"And {what} beside rank 0, with [{name}] of the ranks' settings or defaults."
        add(f"--{name}", action="store_true", help=text)
    add(
        "--journal",
        metavar="DIR",
        help="Record what passes, into this folder (headgate journal, headgate pipeline).",
    )
    add("-v", "--verbose", action="store_true", help="Let everybody log what they do.")


def positive(text: str) -> int:
    """A count on the command line.

    Raises:
        ArgumentTypeError: it is none, or 0.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"saw {text!r}, expected a number from 1 on")
    return int(text)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    given = arguments().parse_args(argv)
    words = given.command[1:] if given.command[:1] == ["--"] else given.command
    if given.wait and words:
        raise exits.UsageError(f"saw --wait and the command {words[0]!r}, expected one of them")
    base = settings_for(given)
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    take_over("stdout")
    take_over("stderr")  # a terminal that stands still must not keep us from looking after the ranks
    rundir = Rundir(given.rundir, guests=base.access.allow_guest_user)
    try:
        ranks = plan(base, given.size, base.tree.topology, rundir.path)
        return asyncio.run(Launcher(ranks, rundir).run(words, wait=given.wait))
    finally:
        rundir.remove()


def settings_for(given: argparse.Namespace) -> Settings:
    """What all ranks have in common. Raises as ``settings_with``."""
    quiet = [] if given.config else [f"broker.log_level={'info' if given.verbose else 'warning'}"]
    loud = ["broker.log_level=info"] if given.verbose else []
    return settings_with(given, given.config, [*quiet, *given.set, *loud])


def settings_with(given: argparse.Namespace, config: str | None, assignments: Sequence[str]) -> Settings:
    """Those of a file and of ``assignments``, and what ``--topo``, ``--nfp``, ``--oslo`` and ``--journal`` ask for.

    Raises:
        ConfigError: the file, an assignment or ``--topo`` is wrong.
    """
    topology = [f"tree.topology={given.topo}"] if given.topo else []
    settings = read(config, [*assignments, *topology])
    if given.nfp and settings.nfp is None:
        settings = replace(settings, nfp=NfpSection())
    if given.oslo and settings.oslo is None:
        settings = replace(settings, oslo=OsloSection())
    if given.journal:
        settings = replace(settings, journal=settings.journal.at(given.journal))
    if settings.tree.topology == "custom":
        raise ConfigError(
            "tree.topology: saw custom, expected kary:K: a local tree makes its own hosts (try --topo)"
        )
    return settings


class Launcher:
    """A tree, and a command in it.

    Args:
        ranks: settings of each. rundir: of the tree.
    """

    def __init__(self, ranks: Sequence[Settings], rundir: Rundir) -> None:
        self._wings = wings.wings_of(ranks[0])
        self._tree = LocalTree(ranks, wings.Beside if self._wings else None)
        self._uris = [rank.broker.local_uri or "" for rank in ranks]
        self._rundir = rundir
        self._variables = where(self._uris[0])
        for wing in self._wings:
            self._variables |= wing.variables()
        self._command: Command | None = None
        self._told = 0
        """The first signal that was not for the command."""

    async def run(self, words: Sequence[str], *, wait: bool) -> int:
        """Start the tree, run the command ``words``, by default a shell, or ``wait`` for a signal; end the tree.

        Returns:
            The exit code.

        Raises:
            Failed: a rank ended before all had joined. HeadgateError: no broker is left to wait for. TimeoutError.
        """
        began, loop = time.monotonic(), asyncio.get_running_loop()
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)  # of the command; the tree needs more
        with opened(AWAITED) as signals:
            loop.add_reader(signals, self._take, signals)
            try:
                self._tree.begin()
                await self._tree.join()
                if self._tree.leaving.is_set():
                    return 128 + self._told
                if self._tree.missing():
                    raise exits.Failed(*self._tree.failure())
                if wait:
                    return await self._until_told(time.monotonic() - began)
                environ = environment(self._uris[0]) | self._variables
                self._command = Command(words or self._shell(), environ, descriptors)
                return await self._command.run()
            finally:
                self._command = None
                await self._tree.down()
                loop.remove_reader(signals)

    def _take(self, signals: int) -> None:
        """A signal is for the command while there is one, else it ends all; the second one at once."""
        came = read_signal(signals)
        if came is not None and self._command is not None:
            self._command.hear(came)
        elif came is not None:
            self._told = self._told or came.number
            self._tree.leave()

    def _shell(self) -> list[str]:
        """The words of the user's shell; bash takes up our variables behind its ``.bashrc``, which may set them."""
        program = os.environ.get("SHELL", "/bin/sh")
        if not sys.stdin.isatty():
            return [program]
        print_error(f"headgate: {brokers(len(self._uris))} up; leave the shell to end")
        if os.path.basename(program) != "bash":
            return [program]
        environ = self._rundir.write_environment(self._variables, own_directory())
        return [program, "--rcfile", self._rundir.write_bashrc(environ), "-i"]

    async def _until_told(self, seconds: float) -> int:
        """Say where the brokers are, stay until a signal asks for the end, or no broker is left."""
        environ = self._rundir.write_environment(self._variables, own_directory())
        shown = [f"  rank {rank:<4} {uri}" for rank, uri in enumerate(self._uris)]
        if len(shown) > 16:
            shown[8:-2] = ["  ..."]
        lines = [
            f"{brokers(len(self._uris))} up after {seconds:.2f} s",
            *shown,
            "in another terminal:",
            f"  . {shlex.quote(environ)}",
            "  headgate status",
            f"  headgate ping {len(self._uris) - 1}",
            "  headgate sub hello.",
            *(line for wing in self._wings for line in wing.where()),
            "Ctrl-C ends it",
        ]
        print("\n".join(lines), flush=True)
        supervision.announce(asyncio.get_running_loop().call_later, "READY=1")
        await first_of(self._tree.leaving.wait(), all_left(self._tree.ranks))
        if not self._tree.leaving.is_set():
            raise HeadgateError("no broker is left")
        return OK


def brokers(count: int) -> str:
    """So many brokers, as the subject of a sentence."""
    return f"{count} brokers are" if count > 1 else "one broker is"
