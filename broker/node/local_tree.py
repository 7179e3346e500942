"""A local tree: the ranks of one tree as processes of this machine, forked from one that has loaded everything.

Theory of operation. The launcher imports what a broker needs, then forks once per rank, before any event loop, thread
or ZeroMQ context exists: a rank then costs milliseconds and shares its code with the others. Each rank is linked by
ZeroMQ with CURVE under a key of its own, over ``ipc://`` in the run directory: no port to choose, no race for it.
A rank writes one byte into its pipe once its socket answers (rank 0: once everybody has joined, state ``run``); the
pipe's end without that byte means that it died. Ranks have sessions of their own, so that a Ctrl-C at the terminal
is the launcher's to deal with, and they end when the launcher does, however it ends.

Concurrency: one thread, no event loop; who uses this must have SIGCHLD blocked and waits for it by ``broker.signals``.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from broker import supervision
from broker.errors import print_error
from broker.settings import HostEntry, Settings, check
from broker.signals import take

if TYPE_CHECKING:
    from broker.node.assembly import Node
    from broker.node.bootstrap import Beside

LEAVE_S: Final = 3.0
"""How long the ranks may take to follow rank 0 before each is told to leave."""
STOP_S: Final = 10.0
"""How long the ranks may take to drain and leave, all in all, before they are killed."""
_READY: Final = b"r"


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


@dataclass(slots=True)
class Rank:
    """One broker process."""

    number: int
    uri: str
    """Its local socket."""
    pid: int
    pipe: int
    """Read end of its readiness pipe; -1 once closed."""
    ready: bool = False
    code: int | None = None
    """None while it lives, then its exit code, 128 + N when signal N ended it."""


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
        _preload()
        sys.stdout.flush()
        sys.stderr.flush()
        gc.collect()
        gc.freeze()  # pages of what exists now stay shared: no collection touches them
        for settings in self._settings:
            self.ranks.append(self._fork(settings))

    def _fork(self, settings: Settings) -> Rank:
        read, write = os.pipe2(os.O_CLOEXEC)
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become(settings, write, launcher, self._beside)
        os.close(write)
        return Rank(settings.broker.rank or 0, settings.broker.local_uri or "", pid, read)

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for readiness; returns whether every rank is ready.

        A rank that died before it was ready has its ``code`` set; then this returns False at once.
        """
        pending = {rank.pipe: rank for rank in self.ranks if not rank.ready and rank.code is None}
        poll = select.poll()
        for pipe in pending:
            poll.register(pipe, select.POLLIN)
        deadline = time.monotonic() + seconds
        while pending and not self.dead:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for pipe, _events in poll.poll(left * 1000):
                poll.unregister(pipe)
                _hear(pending.pop(pipe))
        return not self.dead

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
        return [rank for rank in self.alive if _reap(rank, os.WNOHANG)]

    def stop(self, leave_s: float = LEAVE_S, stop_s: float = STOP_S) -> None:
        """Have the instance drain and leave: rank 0 is told, the others follow it, as in a real one. A rank 0 that is
        not among the ranks here, but a part of the launcher, has left already.

        Who has not followed after ``leave_s`` is told, too; who is there after ``stop_s`` is killed.
        Safe to call twice.
        """
        began = time.monotonic()
        first = next((rank for rank in self.alive if rank.number == 0 and rank.ready), None)
        if first is not None:
            os.kill(first.pid, signal.SIGTERM)
        if first is not None or all(rank.number for rank in self.ranks):
            self._await_end(began + leave_s)
        self._signal_all(signal.SIGTERM)
        self._await_end(began + stop_s)
        self._signal_all(signal.SIGKILL)
        for rank in self.alive:
            _reap(rank, 0)

    def _signal_all(self, number: signal.Signals) -> None:
        for rank in self.alive:
            os.kill(rank.pid, number)  # a child that was not waited for: the pid is still its own

    def _await_end(self, deadline: float) -> None:
        while self.alive and (left := deadline - time.monotonic()) > 0:
            take({signal.SIGCHLD}, min(left, 0.2))
            self.reap()


def _hear(rank: Rank) -> None:
    """Its pipe is readable: it is ready, or it is dead."""
    said = os.read(rank.pipe, 1)
    os.close(rank.pipe)
    rank.pipe = -1
    rank.ready = said == _READY
    if not rank.ready:
        _reap(rank, 0)


def _reap(rank: Rank, options: int) -> bool:
    pid, status = os.waitpid(rank.pid, options)
    if pid == 0:
        return False
    code = os.waitstatus_to_exitcode(status)
    rank.code = code if code >= 0 else 128 - code
    return True


# ---------------------------------------------------------------- inside a rank


def _preload() -> None:
    """Load what a rank loads late, so that it is there before the fork."""
    import ctypes  # noqa: F401 - loaded, not used
    import pwd  # noqa: F401 - the same


def _become(settings: Settings, pipe: int, launcher: int, beside: Beside | None) -> None:
    """Turn this forked process into a rank; never returns."""
    code = 1
    try:
        _detach(launcher)
        code = _run(settings, pipe, beside)
    except BaseException as error:
        print_error(f"headgate: rank {settings.broker.rank}: {type(error).__name__}: {error}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the launcher's own exit handlers are not ours to run


def _detach(launcher: int) -> None:
    """Leave the terminal and its signals, end with the launcher, keep nothing of its input and output."""
    os.setsid()
    supervision.disown()  # a service manager looks after the launcher
    supervision.following(launcher)()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _run(settings: Settings, pipe: int, beside: Beside | None) -> int:
    from broker.node import bootstrap

    def tell() -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody waits any more
            os.write(pipe, _READY)
        os.close(pipe)

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
