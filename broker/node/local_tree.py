"""A local tree: the ranks of one tree as processes of this machine, forked from one that has loaded everything.

Theory of operation. The launcher imports what a broker needs, then forks once per rank, before any event loop, thread
or ZeroMQ context exists: a rank then costs milliseconds and shares its code with the others. Each rank is linked by
ZeroMQ with CURVE under a key of its own, over ``ipc://`` in the run directory: no port to choose, no race for it.
A rank says that it is ready once its socket answers (rank 0: once everybody has joined, state ``run``).

Concurrency: one thread, no event loop; who uses this must have SIGCHLD blocked and waits for it by ``broker.signals``.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from broker.children import forked
from broker.settings import HostEntry, Settings, check

if TYPE_CHECKING:
    from broker.node.assembly import Node
    from broker.node.bootstrap import Beside

LEAVE_S: Final = 3.0
"""How long the ranks may take to follow rank 0 before each is told to leave."""
STOP_S: Final = 10.0
"""How long the ranks may take to drain and leave, all in all, before they are killed."""


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


# ---------------------------------------------------------------- the ranks


class Rank(forked.Forked):
    """One broker process.

    Attributes:
        number: its rank. uri: its local socket.
    """

    def __init__(self, settings: Settings, beside: Beside | None) -> None:
        self.number = settings.broker.rank or 0
        self.uri = settings.broker.local_uri or ""
        super().__init__(f"headgate: rank {self.number}", lambda tell: _run(settings, tell, beside))


class LocalTree:
    """The processes of one local tree.

    Args:
        settings: of each rank, see ``plan``.
        beside: what runs in each rank's process beside it, as of ``bootstrap.run``.

    Attributes:
        ranks: by rank; empty before ``start``.
    """

    def __init__(self, settings: Sequence[Settings], beside: Beside | None = None) -> None:
        self._settings = settings
        self._beside = beside
        self.ranks: list[Rank] = []

    def start(self) -> None:
        """Fork every rank; returns at once, see ``wait``."""
        import pwd  # noqa: F401 - a rank loads it late; loaded before the fork, it is shared

        gc.collect()
        gc.freeze()  # pages of what exists now stay shared: no collection touches them
        for settings in self._settings:
            self.ranks.append(Rank(settings, self._beside))

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for readiness; returns whether every rank is ready.

        A rank that died before it was ready has its ``code`` set; then this returns False at once.
        """
        return forked.until_ready(self.ranks, seconds)

    @property
    def dead(self) -> list[Rank]:
        """Ranks that have ended."""
        return [rank for rank in self.ranks if rank.code is not None]

    @property
    def alive(self) -> list[Rank]:
        """Ranks that run."""
        return [rank for rank in self.ranks if rank.code is None]

    def reap(self) -> list[Rank]:
        """Take in the ranks that ended since the last call; to be called after SIGCHLD."""
        return [rank for rank in self.alive if rank.reap()]

    def stop(self, leave_s: float = LEAVE_S, stop_s: float = STOP_S) -> None:
        """Have the instance drain and leave: rank 0 is told, the others follow it, as in a real one. A rank 0 that is
        not among the ranks here, but a part of the launcher, has left already.

        Who has not followed after ``leave_s`` is told, too; who is there after ``stop_s`` leaves at once or is
        killed. Where SIGINT and SIGTERM are blocked, one that comes meanwhile does not wait for that.
        Safe to call twice.
        """
        began = time.monotonic()
        first = next((rank for rank in self.alive if rank.number == 0 and rank.ready), None)
        if first is not None:
            first.send_signal(signal.SIGTERM)
        follow = first is not None or all(rank.number for rank in self.ranks)
        at_once = follow and forked.until_ended(self.ranks, leave_s)
        forked.end(self.ranks, 0.0 if at_once else began + stop_s - time.monotonic())


# ---------------------------------------------------------------- inside a rank


def _run(settings: Settings, tell: Callable[[], None], beside: Beside | None) -> int:
    from broker.node import bootstrap

    return bootstrap.run(settings, ready=lambda node: _when_running(node, tell), beside=beside)


def _when_running(node: Node, tell: Callable[[], None]) -> None:
    """Call ``tell`` once: at once off rank 0, there when the whole tree has joined."""
    if node.rank != 0 or node.lifecycle.state == "run":
        tell()
        return

    def watch(state: str) -> None:
        if state == "run":
            node.lifecycle.watchers.remove(watch)
            tell()

    node.lifecycle.watchers.append(watch)
