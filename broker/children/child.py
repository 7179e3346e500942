"""One program as a child process, through its lives: started, heard, started again when it ends, told to leave.

Theory of operation. A child is another program, or goes on from here (``forked``). It says that it is ready, and
whatever else it has to say, by sd_notify(3), as to any service manager. A life that ends by itself is followed by
another after a pause that grows (``backoff``), unless the exit code says that it would end the same way. Children have
sessions of their own, so that a Ctrl-C at the terminal is ours to deal with, and they end when this process does,
however it ends (``PR_SET_PDEATHSIG``).

Concurrency: one event loop. The end of a process is noticed through its pidfd: nobody else's SIGCHLD is in the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker import supervision
from broker.backoff import Backoff
from broker.children.forked import Forked
from broker.endings import AT_ONCE, CONFIG, FAILED, NOT_AGAIN, OK, in_words
from broker.errors import NotReady
from broker.obstacles import obstacle
from broker.tasks import first_of

ENDS_MAX: Final = 5
"""Ends in a row after which a program that was never ready, or that all others need, is left. A job that ends workers
is given up before a worker has ended so often (``attempts_max`` of the NFP broker)."""
LINE_BYTES_MAX: Final = 64 << 10
"""Of what a process prints; a longer line is told in pieces. A pipe holds no more."""
LAST_LINE_CHARS: Final = 300
"""Of the last line that is told with an end."""
HAS_LEFT: Final = "has left"
"""What is told of an end that was asked for."""
ALWAYS: Final = {AT_ONCE: "1", "PYTHONUNBUFFERED": "1"}
"""Variables of every child: it leaves the waiting to us, and its lines come as they are printed."""

_LEVELS: Final = {"line": logging.DEBUG, "ended": logging.WARNING, "left": logging.ERROR}

Tell = Callable[[str, str, str], None]
"""Gets (name, event, text) of what happens: ``starting``, ``ready``, ``line``, ``ended``, ``left``."""


def telling(log: logging.Logger) -> Tell:
    """A ``Tell`` that writes to ``log``: warnings of ends that nobody asked for, an error where that was the last."""

    def tell(name: str, event: str, text: str) -> None:
        level = logging.INFO if text == HAS_LEFT else _LEVELS.get(event, logging.INFO)
        log.log(level, "%s: %s", name, text)

    return tell


@dataclass(frozen=True)
class Restarts:
    """When a child that ended by itself is started again.

    Attributes:
        first_s: the first pause. longest_s: the longest one.
        lasted_s: who lived so long was well: its next pause is the first again.
        ends_max: ends in a row after which one that was never ready, or that is needed, is left; 0: no limit.
        final: exit codes after which it is left.
    """

    first_s: float = 0.5
    longest_s: float = 30.0
    lasted_s: float = 10.0
    ends_max: int = ENDS_MAX
    final: frozenset[int] = NOT_AGAIN


@dataclass(frozen=True)
class Program:
    """What is run.

    Attributes:
        words: makes the command line, before each life.
        work: what a child does that is forked from this process, instead: returns its exit code; prints to stderr.
        depends_on: names of programs that have to be ready before.
        environ: further variables.
        needed: the others are there for this one's sake: they begin once it is ready, and all end when it is left.
        stdin: descriptor of its input; stays open.
        output: opens what it prints to, before each life; None: its lines are told.
        follow: the signal that it gets when this process ends.
        restarts: when it is started again.
    """

    name: str
    words: Callable[[], Sequence[str]] = tuple
    depends_on: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    work: Callable[[], int] | None = None
    needed: bool = False
    stdin: int = subprocess.DEVNULL
    output: Callable[[], int] | None = None
    follow: signal.Signals = signal.SIGTERM
    restarts: Restarts = Restarts()


class Child:
    """One program and its process, which changes when it is started again.

    Args:
        program: it. tell: see ``Tell``. place: path of a socket to be made, in a folder that nobody else may enter.

    Attributes:
        pid: of its process; 0 while there is none. last_pid: of its last one.
        ready: its process has said so. was_ready: one of them has.
        settled: set while it is ready, and once it is left. left: set once it is not started again.
        said: how it stands, as its process says (STATUS of sd_notify(3)); "" nothing.
        code: its last exit code, -N after signal N. why: how it ended or could not be started; "" while it runs.
        restarts: how often it was started again by itself.
        changed: called after anything of this may have changed.
    """

    def __init__(self, program: Program, tell: Tell, place: str) -> None:
        self.program = program
        self.pid = self.last_pid = 0
        self.ready = self.was_ready = False
        self.settled = asyncio.Event()
        self.left = asyncio.Event()
        self.said = ""
        self.code: int | None = None
        self.why = ""
        self.restarts = 0
        self.changed: Callable[[], object] = lambda: None
        self._told = tell
        self._place = place
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()
        self._wake = asyncio.Event()
        self._rest = b""
        self._last_line: str | None = None
        """None: its lines are not told."""

    # -- what is done to it --------------------------------------------------------------------

    def start(self, before: Sequence[Child] = ()) -> None:
        """Start it once those ``before`` it are ready, and again when it ends, until it is left or told to leave.

        Harmless while it runs; one that waits to be started again does not wait any longer.
        """
        self._leaving.clear()
        self._wake.set()
        if self.over:
            self.settled.clear()
            self.left.clear()
            keeping = self._keep(before)
            self._keeping = asyncio.get_running_loop().create_task(keeping, name=self.program.name)

    def send_signal(self, number: signal.Signals) -> bool:
        """Signal its process; False when there is none."""
        process = self._process
        if process is None or process.returncode is not None:
            return False
        process.send_signal(number)  # a child that was not waited for: the pid is still its own
        return True

    def expect_end(self) -> None:
        """It leaves by itself: it is not started again."""
        self._leaving.set()
        self._wake.set()

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Tell it to leave; it is not started again. A stopped one goes on, to be able to leave."""
        self.expect_end()
        self.send_signal(number)
        self.send_signal(signal.SIGCONT)

    @property
    def over(self) -> bool:
        """It is not looked after: it was not started yet, or is left."""
        return self._keeping is None or self._keeping.done()

    async def wait(self) -> None:
        """Return once it is over; who stops waiting does not end it."""
        if self._keeping is not None:
            await asyncio.wait([self._keeping])

    # -- what a kind of child has of its own ---------------------------------------------------

    def hear(self, line: str) -> None:
        """Take in a line that its process says, such as ``READY=1``."""
        name, _, value = line.partition("=")
        if name == "STATUS":
            self.said = value
        if line == "READY=1" and not self.ready:
            self.ready = self.was_ready = True
            self.settled.set()
            self.tell("ready", "is ready")
        self.changed()

    def tell(self, event: str, text: str) -> None:
        """Tell of what happens, see ``Tell``."""
        self._told(self.program.name, event, text)

    def is_final(self, ends: int) -> bool:
        """Whether it is left after ``ends`` ends in a row, the last one with ``code``."""
        limited = self.program.needed or not self.was_ready
        rules = self.program.restarts
        return self.code in rules.final or (limited and 0 < rules.ends_max <= ends)

    # -- its lives -----------------------------------------------------------------------------

    async def _keep(self, before: Sequence[Child]) -> None:
        try:
            for other in before:
                # it may have been ready before, and be about to be started again
                await first_of(other.settled.wait(), self._leaving.wait())
                if not other.ready and not self._leaving.is_set():
                    absent = other.program.name
                    self.tell("left", f"is not started: {absent}, which it depends on, is not there")
                    return
            await self._run()
        finally:
            self.left.set()
            self.settled.set()
            self.changed()

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        rules = self.program.restarts
        pauses = Backoff(rules.first_s, rules.longest_s, rules.lasted_s, spread=False)
        while not self._leaving.is_set():
            began = clock()
            self.code = await self._live()
            pause_s = pauses.after(clock() - began)
            if self._leaving.is_set() or (self.code == OK and OK in rules.final):
                self.tell("left", HAS_LEFT)
                return
            ended = self.why
            if self._last_line is not None:
                ended += f" ({self._last_line[:LAST_LINE_CHARS] or 'without a word'})"
            if pauses.failures > 1:
                ended += f" {pauses.failures} times in a row"
            if self.is_final(pauses.failures):
                self.tell("left", f"{ended}, is not started again")
                return
            self.tell("ended", f"{ended}, is started again in {pause_s:g} s")
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause_s)
            self.restarts += not self._leaving.is_set()

    async def _live(self) -> int:
        """Run it once; returns the exit code."""
        self._last_line = None
        with contextlib.ExitStack() as stack:
            try:
                hear = self._listen(stack)
                process = self._process = self._spawn(stack)
            except (OSError, subprocess.SubprocessError) as error:
                self.why = f"cannot be started: {error}"
                # what has been there once comes back, as a program does while it is upgraded
                passes = isinstance(obstacle(self.why, error, absent=self.was_ready), NotReady)
                return FAILED if passes else CONFIG
            stack.callback(self._bury, process)
            self._last_line = "" if self.program.output is None and self.program.work is None else None
            self.pid = self.last_pid = process.pid
            self.why = ""
            self.tell("starting", f"is started, process {process.pid}")
            try:
                fd = os.pidfd_open(process.pid)
            except OSError as error:
                self.why = f"cannot be looked after: {error}"
                return FAILED
            stack.callback(os.close, fd)
            ended = asyncio.Event()
            self._watch(fd, ended.set, stack)
            await ended.wait()
            while hear():  # its last words may have come in the same turn of the loop
                pass
            code = process.wait()
            self.why = f"ended with {in_words(code)}"
            return code

    def _watch(self, fd: int, came: Callable[[], object], stack: contextlib.ExitStack) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(fd, came)
        stack.callback(loop.remove_reader, fd)

    def _spawn(self, stack: contextlib.ExitStack) -> subprocess.Popen[bytes] | Forked:
        program = self.program
        environ = {**ALWAYS, **program.environ, "NOTIFY_SOCKET": self._place}
        if program.work is not None:
            return Forked(program.name, program.work, environ, program.follow)
        output = self._pipe(stack) if program.output is None else program.output()
        try:
            return subprocess.Popen(
                program.words(),
                stdin=program.stdin,
                stdout=output,
                stderr=output,
                env=supervision.environ_of_child(**environ),
                start_new_session=True,
                preexec_fn=supervision.following(os.getpid(), program.follow),  # noqa: PLW1509 - it imports nothing
            )
        finally:
            os.close(output)

    def _bury(self, process: subprocess.Popen[bytes] | Forked) -> None:
        """Take in its end; who is not looked after any more is killed."""
        if process.poll() is None:
            process.kill()
            process.wait()
        self.pid, self.said = 0, ""
        self.ready = False
        self.settled.clear()

    # -- what it says and prints ---------------------------------------------------------------

    def _listen(self, stack: contextlib.ExitStack) -> Callable[[], bool]:
        """Be its service manager; what is returned takes in one thing that it has said, False when there is none."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._place)
        sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK))
        os.fchmod(
            sock.fileno(), 0o600
        )  # of the file, whatever the umask: a readiness is for its process to tell
        sock.bind(self._place)

        def came() -> bool:
            try:
                lines = sock.recv(4096).decode(errors="replace").splitlines()
            except BlockingIOError:
                return False
            for line in lines:
                self.hear(line)
            return True

        self._watch(sock.fileno(), came, stack)
        return came

    def _pipe(self, stack: contextlib.ExitStack) -> int:
        """A descriptor to print to, whose lines are told."""
        self._rest = b""
        read, write = os.pipe()
        os.set_blocking(read, False)
        stack.callback(os.close, read)
        stack.callback(self._print_rest, read)
        self._watch(read, lambda: self._print(read), stack)
        return write

    def _print(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(fd, LINE_BYTES_MAX)
            if not data:  # it has closed its output, and may live on
                asyncio.get_running_loop().remove_reader(fd)
            *lines, rest = (self._rest + data).split(b"\n")
            if len(rest) >= LINE_BYTES_MAX:
                lines, rest = [*lines, rest], b""
            self._rest = rest
            for line in lines:
                self._tell_line(line)

    def _print_rest(self, fd: int) -> None:
        """What its process has printed is in the pipe; processes that it has started may keep that open."""
        self._print(fd)
        if self._rest:
            self._tell_line(self._rest)

    def _tell_line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self._last_line = text.strip() or self._last_line
        self.tell("line", text)
