"""``--workers N``: several processes behind the same listeners, and the one that looks after them.

Theory of operation. The supervisor binds each TCP port once, with SO_REUSEPORT and without listening: so port 0 becomes
one port for all, and it stays ours while workers come and go. Each worker binds and listens for itself, and the kernel
spreads connections over them; a UNIX socket is bound once and inherited. Workers are forked before any event loop,
thread or database exists. One that ends by itself is started again, after a pause that doubles up to ``PAUSE_MAX_S``
while it does not live for ``LASTED_S``; one whose exit code says that the configuration is wrong is not, before a
reload. SIGHUP, SIGTERM and SIGINT are passed on; a second SIGTERM is, too, and a worker that is still there ``KILL_S``
behind its drain is killed.

Concurrency: one thread, no event loop; the signals are blocked and taken one by one by ``broker.signals``.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker import supervision
from broker.backoff import Backoff
from broker.children import forked
from broker.children.forked import Forked
from broker.endings import CONFIG, FAILED, OK, in_words
from broker.endpoints import Endpoint
from broker.errors import ConfigError, HeadgateError, print_error
from broker.signals import take
from gateway import process
from gateway.identity import leases
from gateway.identity.store import Store
from gateway.serve import Reread
from gateway.settings.addresses import place_of
from gateway.settings.reading import renewed
from gateway.settings.schema import GatewaySettings
from gateway.web.listener import bind
from gateway.web.worker_peers import fold

log = logging.getLogger("headgate")

SIGNALS: Final = frozenset({signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 10.0
READY_TRIES: Final = 50
"""How often the service manager is told again that everything is up, while its queue is full."""
LASTED_S: Final = 10.0
"""A worker that lived so long was a good one: the next pause is the first again."""
READY_S: Final = 30.0
"""How long workers may take to open their doors."""
KILL_S: Final = 10.0
"""How long after the time for its drain a worker may live."""


@dataclass(slots=True)
class Worker:
    """One place for a worker process."""

    index: int
    name: str = ""
    """Of the present incarnation."""
    child: Forked | None = None
    """None while none runs."""
    born: float = 0.0
    pauses: Backoff = field(default_factory=lambda: Backoff(PAUSE_S, PAUSE_MAX_S, LASTED_S, spread=False))
    again_at: float = 0.0
    """When the next incarnation may begin; inf: not before a reload."""


class Supervisor:
    """The workers of one gateway.

    Args:
        settings: ``gateway.workers`` says how many. upstream, reread: as of ``Gateway``.

    Attributes:
        urls: where clients connect.

    Raises:
        ConfigError: an address cannot be used.
    """

    def __init__(self, settings: GatewaySettings, upstream: str | None, reread: Reread | None = None) -> None:
        self._settings = settings
        self._reread = reread
        self._upstream = upstream
        self._workers = [Worker(index) for index in range(settings.gateway.workers)]
        urls = [entry.url for entry in settings.listen]
        if settings.gateway.metrics_listen is not None:
            urls.append(settings.gateway.metrics_listen)
        self._reserved: list[tuple[socket.socket, Endpoint]] = []
        try:
            for url in urls:
                self._reserved.append(bind(place_of(url), shared=True))
        except ConfigError:
            self._release()
            raise
        self.urls: list[str] = [place.text for _sock, place in self._reserved[: len(settings.listen)]]
        self._folder = tempfile.mkdtemp(prefix="headgate-workers-")
        self._leaving_at: float | None = None
        self._beat_at = math.inf

    def run(self, ready: Callable[[], None]) -> int:
        """Run until told to leave; ``ready`` is called once every worker serves. Returns an exit code."""
        process.set_up_logging(self._settings.gateway.log_level, "gateway")
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._forget(None)  # those of a supervisor that was killed
        try:
            code = self._start_all()
            if code is not None:
                return code
            ready()
            self._say_ready()
            self._beat_at = 0.0
            return self._look_after()
        finally:
            self._end_all()
            self._release()
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- up ------------------------------------------------------------------------------------

    def _say_ready(self) -> None:
        """To the service manager; again while its queue is full, as when a machine starts all of its services."""
        for _ in range(READY_TRIES):
            if supervision.notify("READY=1"):
                return
            time.sleep(supervision.RETRY_S)

    def _start_all(self) -> int | None:
        """Start the workers one by one; an exit code when one cannot serve."""
        for worker in self._workers:
            child = self._fork(worker)
            if not forked.until_ready([child], READY_S):
                print_error(f"headgate gateway: worker {worker.index} did not start")
                if child.code is not None:
                    worker.child = None
                return child.code if child.code and child.code > 0 else FAILED
        return None

    def _fork(self, worker: Worker) -> Forked:
        """Start an incarnation of ``worker``."""
        worker.name = f"{worker.index}-{secrets.token_hex(4)}"
        worker.born = time.monotonic()
        supervisor = os.getpid()
        work = functools.partial(self._serve, worker.name, supervisor)
        worker.child = Forked(f"headgate gateway: worker {worker.index}", work)
        return worker.child

    def _serve(self, name: str, supervisor: int, tell: Callable[[], None]) -> int:
        """Be the worker ``name``; returns its exit code."""
        return process.run(
            self._settings,
            upstream=self._upstream,
            sockets=self._sockets(),
            worker=(name, self._folder),
            ready=lambda _gateway: tell(),
            reread=self._reread,
            reload_all=functools.partial(_tell, supervisor, signal.SIGHUP),
            leave_all=functools.partial(_tell, supervisor, signal.SIGTERM),
        )

    def _sockets(self) -> Sequence[socket.socket]:
        """A worker's own sockets at the reserved places; it shares UNIX sockets with the others."""
        return [sock if place.is_unix else bind(place, shared=True)[0] for sock, place in self._reserved]

    # -- while they run ------------------------------------------------------------------------

    def _look_after(self) -> int:
        while True:
            self._beat()
            taken = take(SIGNALS, self._pause())
            if taken and taken.number == signal.SIGHUP:
                self._reload()
            elif taken and taken.number in (signal.SIGTERM, signal.SIGINT):
                return OK
            self._reap()
            self._revive()
            if all(worker.again_at == math.inf for worker in self._workers):
                return CONFIG

    def _pause(self) -> float:
        due = [worker.again_at for worker in self._workers if worker.child is None]
        return min(3600.0, max(0.0, min([*due, self._beat_at]) - time.monotonic()))

    def _beat(self) -> None:
        """Tell a watchdog, if there is one, that this loop turns."""
        now = time.monotonic()
        if now < self._beat_at:
            return
        period_s = supervision.watchdog_s()
        if period_s is None:
            self._beat_at = math.inf
            return
        self._beat_at = now + period_s
        supervision.notify("WATCHDOG=1")

    def _reload(self) -> None:
        """Workers read again what they can; one that is started later begins with the same users and rules."""
        if self._reread is not None:
            with contextlib.suppress(ConfigError):  # the workers say so
                self._settings = renewed(self._settings, self._reread())
        for worker in self._workers:
            if worker.again_at == math.inf:  # what was wrong may have been mended
                worker.again_at = 0.0
        self._pass_on(signal.SIGHUP)

    def _pass_on(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.child is not None:
                worker.child.send_signal(number)

    def _reap(self) -> None:
        """Take in workers that have ended: keep what they counted, forget whom they had."""
        for worker in self._workers:
            child = worker.child
            if child is None or not child.reap():
                continue
            worker.child = None
            try:
                fold(self._folder, worker.name)
            except OSError as error:  # a full disk costs counts, not the gateway
                log.warning("the counts of worker %d are lost: %s", worker.index, error)
            self._forget(worker.name)
            if self._leaving_at is None:
                self._mourn(worker, child.code or OK)

    def _forget(self, worker: str | None) -> None:
        """Let the connections of an ended worker, None is all, count no more for their users' limits.

        The store is opened for this alone: it must not be there at a fork.
        """
        try:
            store = Store(self._settings.gateway.statedir)
            try:
                leases.forget(store, worker)
            finally:
                store.close()
        except HeadgateError as error:  # their lease ends them
            log.warning("connections of ended workers stay counted for %g s: %s", leases.LEASE_S, error)

    def _mourn(self, worker: Worker, code: int) -> None:
        if code == CONFIG:
            worker.again_at = math.inf
            log.error(
                "worker %d ended with %s; none in its place before a reload", worker.index, in_words(code)
            )
            return
        now = time.monotonic()
        pause_s = worker.pauses.after(now - worker.born)
        worker.again_at = now + pause_s
        log.error("worker %d ended with %s; another one in %.1f s", worker.index, in_words(code), pause_s)

    def _revive(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if worker.child is None and worker.again_at <= now:
                self._fork(worker)

    # -- down ----------------------------------------------------------------------------------

    def _end_all(self) -> None:
        """Let the workers drain; a second signal, or time, ends them at once. Those of workers do not count: each
        may have been told ``gateway.drain``.
        """
        self._leaving_at = time.monotonic()
        patience_s = self._settings.gateway.drain_s + KILL_S
        supervision.leaving(patience_s + forked.HURRY_S + process.END_S)
        children = [worker.child for worker in self._workers if worker.child is not None]
        forked.end(children, patience_s, self._beat)
        self._reap()

    def _release(self) -> None:
        for sock, place in self._reserved:
            sock.close()
            if place.is_unix:
                with contextlib.suppress(OSError):
                    os.unlink(place.path)


def _tell(supervisor: int, number: signal.Signals) -> None:
    """From a worker: the supervisor reads its settings again, or ends, and passes that on to every worker."""
    if os.getppid() == supervisor:  # else it is gone, and its number may be another process's
        os.kill(supervisor, number)
