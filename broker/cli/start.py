"""``headgate start``: a tree of brokers on this machine, for one command or until Ctrl-C.

The launcher has neither threads nor an event loop: it blocks its signals and takes them one by one with
``broker.signals``, which tells who sent them. A Ctrl-C at the terminal reaches the command by itself; a signal that
another process sent to the launcher is passed on.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from broker.cli import exits, wings
from broker.cli.command import AWAITED, BLOCKED, Command, environment, own_directory, where
from broker.cli.nfp import inside as nfp
from broker.cli.parsing import Parser
from broker.cli.rundir import Rundir
from broker.endings import FAILED, OK, shell_code
from broker.errors import ConfigError, HeadgateError, print_error
from broker.node.local_tree import LocalTree, plan
from broker.outlet import take_over
from broker.settings import NfpSection, OsloSection, Settings, read
from broker.signals import take

START_S: Final = 60.0
"""How long the ranks may take to find together."""
PATIENT_S: Final = 2.0
"""After this long a slow start says whom it waits for."""
_STEP_S: Final = 0.1

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
    add = parser.add_argument
    add("-n", "--size", type=positive, default=1, metavar="N", help="How many brokers (default 1).")
    add("-t", "--topo", metavar="kary:K", help="The parent of rank r is (r-1)/K (default kary:2).")
    add(
        "--rundir",
        metavar="DIR",
        help="Sockets and keys go here (default: a new private directory, removed at the end).",
    )
    add("-w", "--wait", action="store_true", help="No command: print how to connect, stay until Ctrl-C.")
    add(
        "-c",
        "--config",
        metavar="FILE",
        help="Settings for every rank; the shape and keys of the tree are made here.",
    )
    parser.add_set("SECTION.KEY=VALUE", "One setting more")
    add(
        "--nfp",
        action="store_true",
        help="And a broker of NFP inside rank 0, with [nfp] of the settings or defaults.",
    )
    add(
        "--oslo",
        action="store_true",
        help="And a node proxy for oslo.messaging beside rank 0, with [oslo] of the settings or defaults.",
    )
    add(
        "--journal",
        metavar="DIR",
        help="Record what passes, into this folder (headgate journal, headgate pipeline).",
    )
    add("-v", "--verbose", action="store_true", help="Let the brokers log what they do.")
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=argparse.SUPPRESS)
    return parser


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
        instance = LocalTree(
            plan(base, given.size, base.tree.topology, rundir.path),
            wings.beside if wings.wanted(base) else None,
        )
        try:
            return _run(instance, words, rundir, wait=given.wait, said=_wings(base), more=_variables(base))
        finally:
            instance.stop()
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
    if given.nfp:
        settings = with_nfp(settings)
    if given.oslo:
        settings = with_oslo(settings)
    if given.journal:
        settings = with_journal(settings, given.journal)
    if settings.tree.topology == "custom":
        raise ConfigError(
            "tree.topology: saw custom, expected kary:K: a local tree makes its own hosts (try --topo)"
        )
    return settings


def with_nfp(settings: Settings) -> Settings:
    """``settings`` with a section ``[nfp]``: its own, or the defaults."""
    return settings if settings.nfp is not None else msgspec.structs.replace(settings, nfp=NfpSection())


def with_oslo(settings: Settings) -> Settings:
    """``settings`` with a section ``[oslo]``: its own, or the defaults."""
    return settings if settings.oslo is not None else msgspec.structs.replace(settings, oslo=OsloSection())


def with_journal(settings: Settings, directory: str) -> Settings:
    """``settings`` with the journal on, in ``directory``; the rest of ``[journal]`` as it is."""
    return msgspec.structs.replace(settings, journal=settings.journal.at(directory))


def _wings(settings: Settings) -> Callable[[], list[str]]:
    """Lines that say how what runs beside rank 0 is found."""

    def said() -> list[str]:
        lines = nfp.where(settings.nfp) if settings.nfp is not None else []
        if settings.oslo is not None:
            from broker.cli.oslo import plan as oslo

            lines += oslo.where(settings.oslo, oslo.planned(settings.oslo))
        return lines

    return said


def _variables(settings: Settings) -> dict[str, str]:
    """What the environment has to say beside the broker's address, so that what runs beside rank 0 is found."""
    found = nfp.variables(settings.nfp) if settings.nfp is not None else {}
    if settings.oslo is not None:
        from broker.cli.oslo import plan as oslo

        found |= oslo.variables(settings.oslo)
    return found


def _run(
    instance: LocalTree,
    words: Sequence[str],
    rundir: Rundir,
    *,
    wait: bool,
    said: Callable[[], list[str]],
    more: Mapping[str, str],
) -> int:
    began = time.monotonic()
    instance.start()
    code = _until_ready(instance, began)
    if code is not None:
        return code
    uri = instance.ranks[0].uri
    if wait:
        seconds, environ = (
            time.monotonic() - began,
            rundir.write_environment({**where(uri), **more}, own_directory()),
        )
        _say_where(instance, environ, seconds, said())
        return _until_told(instance)
    if not words:
        words = _shell(rundir, {**where(uri), **more})
        if sys.stdin.isatty():
            print_error(f"headgate: {_brokers(instance)} up; leave the shell to end")
    return Command(words, environment(uri) | dict(more)).run(lambda: report_dead(instance))


def _shell(rundir: Rundir, variables: Mapping[str, str]) -> list[str]:
    """The words of the user's shell; bash takes up our variables behind its ``.bashrc``, which may set them, too."""
    program = os.environ.get("SHELL", "/bin/sh")
    if os.path.basename(program) != "bash" or not sys.stdin.isatty():
        return [program]
    environ = rundir.write_environment(variables, own_directory())
    return [program, "--rcfile", rundir.write_bashrc(environ), "-i"]


def _brokers(instance: LocalTree) -> str:
    return f"{len(instance.ranks)} brokers are" if len(instance.ranks) > 1 else "one broker is"


# ---------------------------------------------------------------- until all are there


def _until_ready(instance: LocalTree, began: float) -> int | None:
    """Wait for every rank; an exit code when that fails or somebody wants an end."""
    said = PATIENT_S
    while not instance.wait(_STEP_S):
        if instance.dead:
            return _failed_start(instance)
        if (came := take(AWAITED, 0)) is not None and came.number != signal.SIGCHLD:
            return 128 + came.number
        waited = time.monotonic() - began
        if waited > START_S:
            raise TimeoutError(f"{_missing(instance)} not ready within {START_S:g} s")
        if waited > said:
            print_error(f"headgate: waiting for {_missing(instance)} ({waited:.0f} s)")
            said *= 2
    return None


def _missing(instance: LocalTree) -> str:
    numbers = [str(rank.number) for rank in instance.ranks if not rank.ready]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(numbers[:16])}{' ...' if len(numbers) > 16 else ''}"


def _failed_start(instance: LocalTree) -> int:
    """A rank died before all were ready; it has said why itself, and what the others say comes before our word."""
    first = instance.dead[0]
    instance.stop()
    print_error(f"headgate start: rank {first.number} {first.why} before it was ready")
    return shell_code(first.code or FAILED)


# ---------------------------------------------------------------- --wait


def _say_where(instance: LocalTree, environ: str, seconds: float, beside: Sequence[str]) -> None:
    shown = [f"  rank {rank.number:<4} {rank.uri}" for rank in instance.ranks]
    if len(shown) > 16:
        shown[8:-2] = ["  ..."]
    lines = [
        f"{_brokers(instance)} up after {seconds:.2f} s",
        *shown,
        "in another terminal:",
        f"  . {shlex.quote(environ)}",
        "  headgate status",
        f"  headgate ping {instance.ranks[-1].number}",
        "  headgate sub hello.",
        *beside,
        "Ctrl-C ends it",
    ]
    print("\n".join(lines), flush=True)


def _until_told(instance: LocalTree) -> int:
    """Stay until a signal asks for the end, or no broker is left."""
    while instance.alive:
        came = take(AWAITED, None)
        if came is None or came.number != signal.SIGCHLD:
            return OK
        report_dead(instance)
    raise HeadgateError("no broker is left")


def report_dead(instance: LocalTree) -> None:
    """Say which ranks have ended since the last look."""
    for rank in instance.reap():
        print_error(f"headgate: rank {rank.number} (pid {rank.pid}) {rank.why}")
