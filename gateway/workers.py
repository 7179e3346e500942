"""``--workers N``: several processes behind the same listeners, and the one that looks after them.

Theory of operation. The supervisor binds each TCP port once, with SO_REUSEPORT and without listening: so port 0 becomes
one port for all, and it stays ours while workers come and go. Each worker binds and listens for itself, and the kernel
spreads connections over them; a UNIX socket is bound once and inherited. Workers are forked (``broker.children``) from
the supervisor, which has an event loop and neither a thread nor a database. One that ends by itself is started again,
after a pause that doubles up to ``RESTARTS.longest_s`` while it does not last; one whose exit code says that the
configuration is wrong is not, before a reload. SIGHUP, SIGTERM and SIGINT are passed on; a second SIGTERM is, too, and
a worker that is still there ``KILL_S`` behind its drain is killed. A worker that is called ``gateway.reload`` or
``gateway.drain`` says so to the supervisor, and all of them do it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from typing import Final

from broker import supervision
from broker.children import supervisor
from broker.children.child import HAS_LEFT, Child, Program, Restarts
from broker.children.supervisor import HURRY_S, Step, all_left
from broker.endings import CONFIG, FAILED, OK
from broker.errors import ConfigError, print_error
from broker.tasks import first_of, run_to_end
from gateway import process
from gateway.fleet import siblings
from gateway.serve import Reread
from gateway.settings.reading import renewed
from gateway.settings.schema import GatewaySettings
from gateway.web.listener import bind, bind_all
from gateway.web.worker_counts import fold

log = logging.getLogger("headgate")

RESTARTS: Final = Restarts(first_s=0.1, longest_s=10.0, ends_max=1, final=frozenset((CONFIG,)))
"""One that was never ready is left: the gateway does not start."""
READY_S: Final = 30.0
"""How long workers may take to open their doors."""
KILL_S: Final = 10.0
"""How long after the time for its drain a worker may live."""
RELOAD: Final = "X_HEADGATE_RELOAD=1"
"""What a worker says of a call of ``gateway.reload``."""
LEAVE: Final = "X_HEADGATE_LEAVE=1"
"""And of ``gateway.drain``."""


class Worker(Child):
    """One place for a worker process.

    Args:
        index: of the place. serve: what a worker of a name does; returns its exit code.
        of: its supervisor. folder: for a socket.

    Attributes:
        name: of its present process, which no other one has, be it another gateway's.
    """

    def __init__(self, index: int, serve: Callable[[str], int], of: Supervisor, folder: str) -> None:
        program = Program(f"worker {index}", work=lambda: serve(self.name), restarts=RESTARTS)
        super().__init__(program, self._told_of, os.path.join(folder, f"ready-{index}"))
        self._index = index
        self._of = of
        self._outdated = False
        self.name = self._fresh_name()

    def _fresh_name(self) -> str:
        return f"{self._index}-{secrets.token_hex(8)}"  # other gateways know it by that, too

    def reload(self) -> None:
        """Have its process read the settings again, which may start one where it was left."""
        if self.ready:
            self.send_signal(signal.SIGHUP)
        else:
            self._outdated = (
                self.pid > 0
            )  # told once it is ready: a process that is not yet there for it would end
        self.start()

    def hear(self, line: str) -> None:
        """Take in a line that it says, see ``Child``."""
        if line == RELOAD:
            self._of.reload()
        elif line == LEAVE:
            self._of.leaving.set()  # not the second word of a person, however many workers say so
        super().hear(line)

    def _told_of(self, _name: str, event: str, text: str) -> None:
        if event == "starting":
            self._outdated = False
        elif event == "ready" and self._outdated:
            self.send_signal(signal.SIGHUP)
        if event not in ("ended", "left") or not self.was_ready:
            return
        self._of.forget(self.name)
        self.name = self._fresh_name()
        if event == "ended":
            log.error("worker %d %s", self._index, text)
        elif text != HAS_LEFT:
            log.error("worker %d %s before a reload", self._index, text)


class Supervisor(supervisor.Supervisor):
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
        self._reserved = bind_all(settings, shared=True)
        self.urls: list[str] = [place.text for _sock, place in self._reserved[: len(settings.listen)]]
        self._folder = tempfile.mkdtemp(prefix="headgate-workers-")
        places = range(settings.gateway.workers)
        self._workers = [Worker(index, self._serve, self, self._folder) for index in places]
        super().__init__(self._workers)

    def run(self, ready: Callable[[], None]) -> int:
        """Run until told to leave; ``ready`` is called once every worker serves. Returns an exit code."""
        process.set_up_logging(self._settings.gateway.log_level, "gateway")
        try:
            return run_to_end(self._run(ready))
        finally:
            self._release()
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _run(self, ready: Callable[[], None]) -> int:
        loop = asyncio.get_running_loop()
        self.on_signals()
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        supervision.watch(loop.call_later)
        try:
            for worker in self._workers:
                worker.start()
                await first_of(worker.settled.wait(), self.leaving.wait(), seconds=READY_S)
                if self.leaving.is_set():
                    return OK
                if not worker.ready:
                    print_error(f"headgate gateway: {worker.program.name} did not start")
                    return worker.code if worker.code and worker.code > 0 else FAILED
            ready()
            supervision.announce(loop.call_later, "READY=1")
            await first_of(all_left(self._workers), self.leaving.wait())
            return OK if self.leaving.is_set() else CONFIG
        finally:
            self.leaving.set()
            patience_s = self._settings.gateway.drain_s + KILL_S
            supervision.leaving(patience_s + HURRY_S + process.END_S)
            await self.end(self._workers, Step(self._workers, signal.SIGTERM, patience_s))

    def reload(self) -> None:
        """Workers read again what they can; one that is started later begins with the same users and rules."""
        if self.leaving.is_set():
            return
        if self._reread is not None:
            with contextlib.suppress(ConfigError):  # the workers say so
                self._settings = renewed(self._settings, self._reread())
        for worker in self._workers:
            worker.reload()  # also one that was left: what was wrong may have been mended

    def forget(self, worker: str) -> None:
        """Take in the end of a worker: keep what it counted, and tell the others."""
        try:
            fold(self._folder, worker)
        except OSError as error:  # a full disk, say
            log.warning("the counts of worker %s stay in a file of their own: %s", worker, error)
        siblings.tell_end(self._folder, worker)

    def _release(self) -> None:
        for sock, place in self._reserved:
            sock.close()
            if place.is_unix:
                with contextlib.suppress(OSError):
                    os.unlink(place.path)

    # -- inside a worker -----------------------------------------------------------------------

    def _serve(self, name: str) -> int:
        """Be the worker ``name``; returns its exit code."""
        return process.run(
            self._settings,
            upstream=self._upstream,
            sockets=self._sockets(),
            worker=(name, self._folder),
            reread=self._reread,
            reload_all=functools.partial(_say, RELOAD),
            leave_all=functools.partial(_say, LEAVE),
        )

    def _sockets(self) -> Sequence[socket.socket]:
        """A worker's own sockets at the reserved places; it shares UNIX sockets with the others."""
        return [sock if place.is_unix else bind(place, shared=True)[0] for sock, place in self._reserved]


def _say(line: str) -> None:
    supervision.announce(asyncio.get_running_loop().call_later, line)
