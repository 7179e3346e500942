"""Processes that are looked after together: started in order, heard, started again when they end, ended together.

Theory of operation. Each program has a task that runs it in lives: a process with a pipe for what it prints and a
socket for its word that it is ready (sd_notify(3)). A life that ends by itself is followed by another after a pause
that grows (``backoff``) up to ``LONGEST_PAUSE_S``, for as long as it takes: what ends workers may pass. Who ends with
code 0, or says that its options or configuration are wrong, is left; so is who has ended ``ENDS_MAX`` times in a row
and was never ready, and the one without which there are no others: with it all end. Processes have sessions of their
own, so that a Ctrl-C at the terminal is the supervisor's to deal with, and they end when it does, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final

from broker import supervision
from broker.backoff import Backoff
from broker.endings import AT_ONCE, CONFIG, FAILED, NOT_AGAIN, OK, USAGE, in_words

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
LASTED_S: Final = 10.0
"""Who lived so long was well: its next pause is the first again."""
ENDS_MAX: Final = 5
"""Ends in a row after which a program that was never ready, or that all others need, is left. A job that ends workers
is given up before a worker has ended so often (``attempts_max`` of the broker)."""
LINE_BYTES_MAX: Final = 64 << 10
"""Of what a process prints; a longer line is told in pieces."""
LATE_S: Final = 1.0
"""How long what a process has printed may take to be read once it has ended; its children may keep the pipe open."""
KILL_S: Final = 10.0
"""How long a process may live after the time that it has for its end."""
LAST_LINE_CHARS: Final = 300
"""Of the last line that is told with an end."""
HURRY_S: Final = 3.0
"""How long it may take to leave at once."""

ALWAYS: Final = {AT_ONCE: "1", "PYTHONUNBUFFERED": "1"}
"""Variables of every process: it leaves the waiting to us, and its lines come as they are printed."""

Tell = Callable[[str, str, str], None]
"""Gets (name, event, text) of what happens: ``starting``, ``ready``, ``line``, ``ended``, ``left``."""


@dataclass(frozen=True)
class Program:
    """What is run.

    Attributes:
        words: makes the command line, before each life. depends_on: names of programs that have to be ready before.
        environ: further variables.
    """

    name: str
    words: Callable[[], Sequence[str]]
    depends_on: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)


class Process:
    """One program through its lives.

    Args:
        program: it. tell: see ``Tell``. place: path of a socket to be made. needed: all end when it is left.

    Attributes:
        ready: set while it runs and has said so. left: set once it is not started again. settled: set once either was.
        code: its last exit code, -N after signal N.
    """

    def __init__(self, program: Program, tell: Tell, place: str, *, needed: bool = False) -> None:
        self.program = program
        self._needed = needed
        self.ready = asyncio.Event()
        self.left = asyncio.Event()
        self.settled = asyncio.Event()
        self.code: int | None = None
        self._all_told = tell
        self._last_line = ""
        self._place = place
        self._leaving = asyncio.Event()
        self._running: subprocess.Popen[bytes] | None = None

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Tell it to leave; it is not started again."""
        self._leaving.set()
        if self._running is not None and self._running.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._running.send_signal(number)

    def _tell(self, event: str, text: str) -> None:
        if event == "line":
            self._last_line = text.strip() or self._last_line
        self._all_told(self.program.name, event, text)

    async def keep(self, before: Sequence[Process] = ()) -> None:
        """Run it once those ``before`` it are ready, and again and again, until it is left."""
        try:
            for other in before:
                await other.until_ready()
                if not other.ready.is_set() and not self._leaving.is_set():
                    self._tell(
                        "left", f"is not started: {other.program.name}, which it depends on, is not there"
                    )
                    return
            await self._keep()
        finally:
            self.left.set()
            self.settled.set()

    async def until_ready(self) -> None:
        """Return once it is ready, or left: it may have been ready before, and be about to be started again."""
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(each.wait(), name=self.program.name) for each in (self.ready, self.left)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _keep(self) -> None:
        clock = asyncio.get_running_loop().time
        pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, LASTED_S, spread=False)
        was_ready = False
        while not self._leaving.is_set():
            began = clock()
            self.code = await self._live()
            was_ready = was_ready or self.settled.is_set()
            pause_s = pauses.after(clock() - began)
            if self._leaving.is_set() or self.code == OK:
                self._tell("left", "has left")
                return
            ended = (
                f"ended with {in_words(self.code)} ({self._last_line[:LAST_LINE_CHARS] or 'without a word'})"
            )
            times = f" {pauses.failures} times in a row" if pauses.failures > 1 else ""
            if self.code in NOT_AGAIN or (pauses.failures >= ENDS_MAX and (self._needed or not was_ready)):
                self._tell("left", f"{ended}{times}, is not started again")
                return
            self._tell("ended", f"{ended}{times}, is started again in {pause_s:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), pause_s)

    async def _live(self) -> int:
        """Run it once; returns the exit code."""
        self._last_line = ""
        loop = asyncio.get_running_loop()
        read, write = os.pipe()  # a child of the process may keep it open for longer
        reading = loop.create_task(self._read(read), name=f"lines of {self.program.name}")
        self._running = None
        try:
            with os.fdopen(write, "wb", 0) as output, supervision.hearing(loop, self._place, self._heard):
                self._running = self._spawned(output)
                self._tell("starting", f"is started, process {self._running.pid}")
                if self._leaving.is_set():
                    self.end()
                code = await supervision.exit_code(loop, self._running)
        except OSError as error:
            started = self._running is not None
            self._tell("line", f"cannot be {'looked after' if started else 'started'}: {error}")
            code = FAILED if started else CONFIG
        finally:
            self.ready.clear()
        await asyncio.wait([reading], timeout=LATE_S)
        reading.cancel()
        return code

    def _spawned(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start it; what it prints goes to ``output``, which is closed here."""
        try:
            return subprocess.Popen(
                self.program.words(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=supervision.environ_of_child(
                    **{**ALWAYS, **self.program.environ, "NOTIFY_SOCKET": self._place}
                ),
                start_new_session=True,
                preexec_fn=supervision.following(os.getpid()),  # noqa: PLW1509 - it imports nothing
            )
        finally:
            output.close()

    async def _read(self, fd: int) -> None:
        """Tell the lines that come from ``fd``, and close it."""
        stream = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(fd, "rb", 0)
        )
        try:
            rest = b""
            while data := await stream.read(LINE_BYTES_MAX):
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) >= LINE_BYTES_MAX:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    self._tell("line", line.decode(errors="replace").rstrip("\r"))
            if rest:
                self._tell("line", rest.decode(errors="replace"))
        finally:
            transport.close()

    def _heard(self, line: str) -> None:
        if line == "READY=1" and not self.ready.is_set():
            self.ready.set()
            self.settled.set()
            self._tell("ready", "is ready")


class Supervisor:
    """The processes of a broker and of its workers.

    Args:
        programs: in the order of their start. first: the name of the one that ends last, and ends all when it is
            left; "": none does. tell: see ``Tell``; ``up`` and ``leaving`` have the name "". folder: for sockets.
            interval_s: between two starts. patience_s: how long all others, and then the first, may take to leave.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        first: str,
        tell: Tell,
        folder: str,
        *,
        interval_s: float = 0.0,
        patience_s: float = KILL_S,
    ) -> None:
        self._processes = {
            each.name: Process(each, tell, os.path.join(folder, str(at)), needed=each.name == first)
            for at, each in enumerate(programs)
        }
        self._first = self._processes.get(first)
        self._tell = tell
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._leaving = asyncio.Event()
        self._hurry = asyncio.Event()

    def leave(self) -> None:
        """End all, in order; called again: at once."""
        (self._hurry if self._leaving.is_set() else self._leaving).set()

    async def run(self) -> int:
        """Run until told to leave, or until what matters is left; returns an exit code."""
        loop = asyncio.get_running_loop()
        starting = loop.create_task(self._start(), name="start")
        waits = [loop.create_task(self._over()), loop.create_task(self._leaving.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        told = self._leaving.is_set()
        self._leaving.set()
        for each in (starting, *waits):
            each.cancel()
        await asyncio.gather(starting, *waits, return_exceptions=True)
        if any(not each.left.is_set() for each in self._processes.values()):
            self._tell("", "leaving", "ends all, workers first")
        await self._end([each for each in self._processes.values() if each is not self._first])
        if self._first is not None:
            await self._end([self._first])
        return OK if told else self._code()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for at, (name, process) in enumerate(self._processes.items()):
            if at and self._interval_s:
                await asyncio.sleep(self._interval_s)
            before = [self._processes[other] for other in process.program.depends_on]
            self._keeping[name] = loop.create_task(process.keep(before), name=name)
            if process is self._first:
                await process.settled.wait()
        for process in self._processes.values():
            await process.settled.wait()
        ready = [name for name, each in self._processes.items() if each.ready.is_set()]
        absent = [name for name in self._processes if name not in ready]
        said = f"up after {loop.time() - began:.2f} s: {', '.join(ready) or 'nobody'}"
        self._tell("", "up", f"{said}; not there: {', '.join(absent)}" if absent else said)

    async def _over(self) -> None:
        """Wait until the first is left, or all are where there is no first."""
        for each in self._processes.values() if self._first is None else [self._first]:
            await each.left.wait()

    async def _end(self, processes: Sequence[Process]) -> None:
        """Have them leave: as they were told, then at once, then by force."""
        tasks = [self._keeping[name] for each in processes if (name := each.program.name) in self._keeping]
        hurry = asyncio.get_running_loop().create_task(self._hurry.wait(), name="hurry")
        steps = ((signal.SIGTERM, self._patience_s), (signal.SIGTERM, HURRY_S), (signal.SIGKILL, None))
        for step, (number, seconds) in enumerate(steps):
            if all(task.done() for task in tasks):
                break
            for each in processes:
                each.end(number)
            ended = asyncio.gather(*(asyncio.shield(task) for task in tasks), return_exceptions=True)
            waits: list[asyncio.Future[Any]] = [ended] if step or hurry.done() else [ended, hurry]
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()

    def _code(self) -> int:
        left = self._processes.values() if self._first is None else [self._first]
        codes = {each.code for each in left}
        return OK if codes == {OK} else CONFIG if codes <= {CONFIG, USAGE} else FAILED
