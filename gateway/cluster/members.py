"""One member of a cluster as a process: started, looked at, paused, killed, started again.

A member says itself when it is ready, by sd_notify(3), as to any service manager: that somebody listens where it will
be tells nothing, for that may be somebody else.

One that ends in any other way than by leaving in order (exit code 0) or for a wrong command line or configuration (2,
78) is started again after ``RESTART_S``, and after twice as long each time it did not last; like a service that is
restarted on failure. One that was killed to stay away is not.

Each dies with the supervisor, whatever happens, and is waited for without a thread: the supervisor has one, so that
what runs between fork and exec is safe, and the ends of children are told by descriptors (pidfd_open(2)).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from broker.backoff import Backoff
from broker.endings import AT_ONCE, NOT_AGAIN, TEMPFAIL, in_words
from broker.supervision import environ_of_child, exit_code, following, hearing

log = logging.getLogger("headgate")

RESTART_S: Final = 1.0
"""Pause before a member that failed is started again."""
RESTART_MAX_S: Final = 30.0
"""Longest such pause."""
LASTED_S: Final = 10.0
"""Who ran for so long did not fail at the start: the next pause is the first again."""
NOT_STARTED: Final = 127
"""Exit code of a member that cannot be started at all, as shells have it."""

State = Literal["running", "paused", "partitioned", "exited", "starting"]
"""``starting``: it runs, and is not ready yet. ``paused`` goes before ``partitioned``."""


@dataclass(frozen=True)
class Member:
    """What there is to say about one process of a cluster.

    Attributes:
        name: ``rank-3``, ``gateway``.
        rank: of a broker; None of the gateway.
        state: see ``State``. It is the supervisor's view; what the tree thinks of a rank is for the tree to say.
        id: process id as text; "" while there is none.
        uri: how clients on this machine reach it (``local:///...``, ``http://...``).
        since: seconds since 1970 of its last change of state.
        why: why it is in this state where that is not plain: ``ended with code 78``.
        restarts: how often it was started again by itself.
        said: what it last said of itself (STATUS of sd_notify(3)): ``rank 3 of 7, state run, ...``; "" nothing.
    """

    name: str
    rank: int | None
    state: State
    id: str
    uri: str
    since: float
    why: str = ""
    restarts: int = 0
    said: str = ""


class Process:
    """A member and its process, which changes when it is started again.

    Args:
        name: as of ``Member``.
        rank: of a broker; None of the gateway.
        argv: its command line.
        log: file of its output.
        uri: where it is reached, once it is ready.
        notify: path of the socket on which it says that it is.

    Attributes:
        pid: of its present process; 0 while there is none.
        partitioned: what ``status`` says of it while it runs: the links are others' to cut.
    """

    def __init__(
        self, name: str, rank: int | None, argv: Sequence[str], log: Path, uri: str, notify: Path
    ) -> None:
        self.name = name
        self.rank = rank
        self.uri = uri
        self.pid = 0
        self.partitioned = False
        self._argv = tuple(argv)
        self._log = log
        self._notify = notify
        self._process: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._wanted = True
        self._paused = False
        self._ready = False
        self._was_ready = False
        self._why = self._status = ""
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
            said=self._status,
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

    def start(self) -> None:
        """Start it, and again when it fails, until it is stopped. Harmless when it runs; undoes ``kill(stay=True)``."""
        self._wanted = True
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep_running(), name=self.name)

    def move(self, uri: str, argv: Sequence[str]) -> None:
        """Start it with another command line, so that it is reached elsewhere; only when it has ended."""
        self.uri = uri
        self._argv = tuple(argv)
        self.start()

    def kill(self, *, stay: bool) -> None:
        """SIGKILL; with ``stay`` it is not started again by itself. Harmless when it does not run."""
        if stay:
            self.expect_exit()
        self._signal(signal.SIGKILL)

    def pause(self) -> bool:
        """SIGSTOP; False when it does not run."""
        if self._signal(signal.SIGSTOP):
            self._paused = True
            self._changed()
        return self._paused

    def resume(self) -> None:
        """SIGCONT; harmless when it is not paused."""
        if self._paused and self._signal(signal.SIGCONT):
            self._paused = False
            self._changed()

    def stop(self, number: signal.Signals) -> None:
        """End it for good, by a signal; a paused one goes on, to be able to leave."""
        self.expect_exit()
        self._signal(number)
        self._signal(signal.SIGCONT)

    def expect_exit(self) -> None:
        """It leaves by itself: it is not started again."""
        self._wanted = False
        self._wake.set()

    async def wait(self) -> None:
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

    def _changed(self) -> None:
        self._why = ""
        self._since = time.time()

    # -- its life ------------------------------------------------------------------------------

    async def _keep_running(self) -> None:
        clock = asyncio.get_running_loop().time
        pauses = Backoff(RESTART_S, RESTART_MAX_S, LASTED_S, spread=False)
        while self._wanted:
            began = clock()
            code = await self._run()
            self._why = f"ended with {in_words(code)}"
            # of one that never was ready TEMPFAIL is told to whoever makes the cluster
            never = code in NOT_AGAIN or (code == TEMPFAIL and not self._was_ready)
            if never or not self._wanted:
                return
            pause_s = pauses.after(clock() - began)
            log.warning("%s: %s; starts again in %g s", self.name, self._why, pause_s)
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            self._restarts += self._wanted

    async def _run(self) -> int:
        """One process, from its start to its end; returns its exit code."""
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(hearing(loop, str(self._notify), self._heard))
                self._process = spawn(
                    self._argv, self._log, NOTIFY_SOCKET=str(self._notify), **{AT_ONCE: "1"}
                )
            except (OSError, subprocess.SubprocessError) as error:
                log.error("%s: cannot be started: %s", self.name, error)
                return NOT_STARTED
            self.pid = self._process.pid
            self._changed()
            log.info("%s: pid %d", self.name, self.pid)
            try:
                return await exit_code(loop, self._process)
            except OSError as error:
                log.error("%s: killed, since its end cannot be noticed: %s", self.name, error)
                return -signal.SIGKILL
            finally:
                self.pid = 0
                self._ready = self._paused = False
                self._status = ""
                self._changed()

    def _heard(self, line: str) -> None:
        name, _, value = line.partition("=")
        if name == "STATUS":
            self._status = value
        elif line == "READY=1" and not self._ready:
            self._ready = self._was_ready = True
            self._changed()


# ---------------------------------------------------------------- child processes


def spawn(argv: Sequence[str], log: Path, **environ: str) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own that dies with this one.

    Args:
        argv: its command line.
        log: its output is appended there; made with mode 0600.
        environ: variables it has besides ours.

    Raises:
        OSError, SubprocessError: it cannot be started.
    """
    follow = following(os.getpid(), signal.SIGKILL)  # a paused process follows no milder one
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            env=environ_of_child(**environ),
            preexec_fn=follow,  # noqa: PLW1509 - one thread, see above
        )
    finally:
        os.close(descriptor)
