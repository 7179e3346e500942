"""Ranks that are forked from this process, which has loaded everything, and the settings of each.

Each rank is linked to its parent by ZeroMQ with CURVE under a key of its own, over ``ipc://`` in the run directory: no
port to choose, no race for it. A rank is not started again: what has forked it has gone on since then.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from broker import supervision
from broker.children.child import HAS_LEFT, Child, Program, Restarts
from broker.children.supervisor import named
from broker.endings import FAILED, shell_code
from broker.errors import print_error
from broker.local.tree import START_S, Tree
from broker.settings import HostEntry, Settings, check
from broker.tasks import first_of

if TYPE_CHECKING:
    from broker.node.bootstrap import Beside

PATIENT_S: Final = 2.0
"""After this long a slow start says whom it waits for, and again after twice as long."""


def plan(base: Settings, size: int, topology: str, rundir: str) -> list[Settings]:
    """The settings of each rank; writes a certificate per rank into ``rundir`` (mode 0600).

    Args:
        base: what the instance takes over: everything but the run directory, the tree's shape and its keys.
        size: number of brokers.
        topology: ``kary:K``.
        rundir: where sockets and certificates go.

    Raises:
        ConfigError: the result contradicts itself (a path too long for a socket), or a file cannot be written.
    """
    replace = msgspec.structs.replace
    keys = [_certificate(rundir, rank) for rank in range(size)]
    hosts = tuple(
        HostEntry(rank=rank, address=f"ipc://{rundir}/tree-{rank}", public_key=key)
        for rank, (_, key) in enumerate(keys)
    )
    section = replace(base.broker, rank=None, rundir=rundir, local_uri=None)
    tree = replace(base.tree, size=size, topology=topology, curve_cert=keys[0][0])
    common = check(replace(base, broker=section, tree=tree, hosts=hosts))
    return [
        replace(common, tree=replace(common.tree, curve_cert=path)).at_rank(rank)
        for rank, (path, _) in enumerate(keys)
    ]


def _certificate(rundir: str, rank: int) -> tuple[str, str]:
    from broker.transport import curve

    path = os.path.join(rundir, f"rank-{rank}.cert")
    certificate = curve.generate({"name": f"rank {rank}"})
    curve.save(certificate, path, replace=True)
    return path, certificate.public_key


class Rank(Child):
    """One broker. That it has ended is told on stderr, once it was ready and unless it was told to leave.

    Args:
        settings: as of ``plan``. beside: what runs in its process beside it, as of ``bootstrap.run``.
    """

    def __init__(self, settings: Settings, beside: Beside | None) -> None:
        number, rundir = settings.broker.rank or 0, settings.broker.rundir
        work = functools.partial(_run, settings, beside)
        program = Program(f"rank {number}", work=work, restarts=Restarts(final=frozenset()))
        super().__init__(program, self._report, f"{rundir}/rank-{number}")

    def is_final(self, _ends: int) -> bool:
        """Always."""
        return True

    def _report(self, name: str, event: str, text: str) -> None:
        if event == "left" and text != HAS_LEFT and self.was_ready:
            print_error(f"headgate: {name} (pid {self.last_pid}) {self.why}")


def _run(settings: Settings, beside: Beside | None) -> int:
    from broker.node import bootstrap

    return bootstrap.run(settings, beside=beside)


class LocalTree(Tree):
    """A tree whose ranks are forked from this process.

    Args:
        settings: of each rank, see ``plan``; without rank 0 where that is elsewhere.
        beside: see ``Rank``.
    """

    def __init__(self, settings: Sequence[Settings], beside: Beside | None = None) -> None:
        ranks = [Rank(each, beside) for each in settings]
        super().__init__(ranks, ranks[0] if settings and not settings[0].broker.rank else None)

    def begin(self) -> None:
        """Fork all in the next turn of the loop; what is loaded by then they share."""
        import pwd  # noqa: F401 - a rank loads it late; loaded before the fork, it is shared

        supervision.raise_descriptor_limit()  # two for each rank
        gc.collect()
        gc.freeze()  # pages of what exists now stay shared: no collection touches them
        super().begin()

    async def join(self, seconds: float = START_S) -> None:
        """As of ``Tree``; a slow start says on stderr for whom it waits."""
        await first_of(super().join(seconds), self._tell_of_the_wait())

    async def _tell_of_the_wait(self) -> None:
        waited = PATIENT_S
        await asyncio.sleep(waited)
        while True:
            print_error(f"headgate: waiting for {named(self.missing())} ({waited:.0f} s)")
            await asyncio.sleep(waited)
            waited *= 2

    def failure(self) -> tuple[str, int]:
        """What is to be said of a rank that ended before all had joined, which has said why itself, and the exit code
        that tells of it.
        """
        rank = self.lost()[0]
        return f"{rank.program.name} {rank.why} before it was ready", shell_code(rank.code or FAILED)
