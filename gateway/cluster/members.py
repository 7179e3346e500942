"""One member of a cluster as a process: started, looked at, frozen, killed, started again.

A member says itself when it is ready, by sd_notify(3), as to any service manager: that somebody listens where it will
be tells nothing, for that may be somebody else.

One that ends in any other way than by leaving in order (exit code 0) or for a wrong configuration (78) is started again
after ``RESTART_S``, and after twice as long each time it did not last; like a service that is restarted on failure. One
that was killed to stay away is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from gateway.cluster.children import ended, spawn
from gateway.cluster.engine import Member, State

log = logging.getLogger("headgate")

RESTART_S: Final = 1.0
"""Pause before a member that failed is started again."""
RESTART_MAX_S: Final = 30.0
"""Longest such pause."""
LASTED_S: Final = 10.0
"""Who ran for so long did not fail at the start: the next pause is the first again."""
TOLD_BYTES: Final = 4096
"""Longest word of a member."""
NOT_STARTED: Final = 127
"""Exit code of a member that cannot be started at all, as shells have it."""
NOT_AGAIN: Final = (0, 78)
"""Exit codes after which starting again makes no sense: told to leave; wrong configuration (sysexits.h EX_CONFIG)."""


class Process:
    """A member and its process, which changes when it is started again.

    Args:
        name: as of ``Member``.
        rank: of a broker; None of others.
        argv: its command line.
        log: file of its output.
        uri: where it is reached, once it is ready.
        told: path of the socket on which it says that it is.
        enter: see ``children.spawn``.

    Attributes:
        pid: of its present process; 0 while there is none.
        partitioned: what ``status`` says of it while it runs: the links are others' to cut.
    """

    def __init__(
        self,
        name: str,
        rank: int | None,
        argv: Sequence[str],
        log: Path,
        uri: str,
        told: Path,
        enter: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.rank = rank
        self.uri = uri
        self.pid = 0
        self.partitioned = False
        self._argv = tuple(argv)
        self._log = log
        self._told = told
        self._enter = enter
        self._process: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._wanted = True
        self._paused = False
        self._ready = False
        self._why = self._said = ""
        self._restarts = 0
        self._since = time.time()
        self._wake = asyncio.Event()

    # -- what it is ----------------------------------------------------------------------------

    def member(self) -> Member:
        """What there is to say about it."""
        return Member(
            name=self.name,
            rank=self.rank,
            state=self._state(),
            id=str(self.pid or ""),
            uri=self.uri,
            since=self._since,
            why=self._why,
            restarts=self._restarts,
            said=self._said,
        )

    def _state(self) -> State:
        if not self.pid:
            return "exited"
        if self._paused:
            return "paused"
        if not self._ready:
            return "starting"
        return "partitioned" if self.partitioned else "running"

    # -- what is done to it --------------------------------------------------------------------

    def begin(self) -> None:
        """Start it, and again when it fails, until ``end``. Harmless when it runs; also after ``kill(stay=True)``."""
        self._wanted = True
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._live(), name=self.name)

    def move(self, uri: str, argv: Sequence[str]) -> None:
        """Start it with another command line, so that it is reached elsewhere; only when it has ended."""
        self.uri = uri
        self._argv = tuple(argv)
        self.begin()

    def kill(self, *, stay: bool) -> None:
        """SIGKILL; with ``stay`` it is not started again by itself. Harmless when it does not run."""
        if stay:
            self.leave_unasked()
        self._signal(signal.SIGKILL)

    def pause(self) -> bool:
        """SIGSTOP; False when it does not run."""
        if self._signal(signal.SIGSTOP):
            self._paused = True
            self._changed("")
        return self._paused

    def resume(self) -> None:
        """SIGCONT; harmless when it is not paused."""
        if self._paused and self._signal(signal.SIGCONT):
            self._paused = False
            self._changed("")

    def tell(self, number: signal.Signals) -> None:
        """Ask it to leave for good, by a signal; a frozen one thaws, to be able to."""
        self.leave_unasked()
        self._signal(number)
        self._signal(signal.SIGCONT)

    def leave_unasked(self) -> None:
        """It is expected to leave by itself: it is not started again."""
        self._wanted = False
        self._wake.set()

    async def gone(self) -> None:
        """Until it has ended for good."""
        if self._task is not None:
            await asyncio.wait([self._task])  # who stops waiting does not cancel it

    def _signal(self, number: signal.Signals) -> bool:
        """Signal the present process: a child that was not waited for, so the pid is its own."""
        process = self._process
        if process is None or process.returncode is not None:
            return False
        process.send_signal(number)
        return True

    def _changed(self, why: str) -> None:
        self._why = why
        self._since = time.time()

    # -- its life ------------------------------------------------------------------------------

    async def _live(self) -> None:
        clock = asyncio.get_running_loop().time
        pause_s = RESTART_S
        while self._wanted:
            began = clock()
            code = await self._run()
            self._why = _words(code)
            if self._is_over(code):
                return
            if clock() - began > LASTED_S:
                pause_s = RESTART_S
            log.warning("%s: %s; starts again in %g s", self.name, self._why, pause_s)
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            pause_s = min(2 * pause_s, RESTART_MAX_S)
            self._restarts += self._wanted

    def _is_over(self, code: int) -> bool:
        return code in NOT_AGAIN or not self._wanted

    async def _run(self) -> int:
        """One process, from its start to its end."""
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._listening(loop))
                self._process = spawn(self._argv, self._log, self._enter, NOTIFY_SOCKET=str(self._told))
            except (OSError, subprocess.SubprocessError) as error:
                log.error("%s: cannot be started: %s", self.name, error)
                return NOT_STARTED
            self.pid = self._process.pid
            self._changed("")
            log.info("%s: pid %d", self.name, self.pid)
            try:
                return await ended(self._process, loop)
            finally:
                self.pid = 0
                self._ready = self._paused = False
                self._said = ""
                self._changed("")

    @contextlib.contextmanager
    def _listening(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Take in what the process says, while there is one."""
        self._told.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
            ear.setblocking(False)
            ear.bind(str(self._told))
            loop.add_reader(ear, self._hear, ear)
            try:
                yield
            finally:
                loop.remove_reader(ear)

    def _hear(self, ear: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            for line in ear.recv(TOLD_BYTES).decode(errors="replace").splitlines():
                name, _, value = line.partition("=")
                if name == "STATUS":
                    self._said = value
                elif line == "READY=1" and not self._ready:
                    self._ready = True
                    self._changed("")


def _words(code: int) -> str:
    """An exit code in words.

    >>> _words(-9), _words(78)
    ('killed by SIGKILL', 'exit code 78')
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
