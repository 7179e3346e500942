"""Processes beside this one: a node's proxy, and its bridge. Started, watched, started again, ended with us.

Each child is this program again (``room``): it reads its order, JSON, from its input, and writes one line to its output
once it can be used. The kernel tells it when we are gone (``PR_SET_PDEATHSIG``), however that happens.

Concurrency: one event loop. A child's end is noticed through its pidfd, so that nobody else's SIGCHLD is in the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from broker import interpreter, supervision
from broker.backoff import Backoff
from broker.endings import CONFIG, TEMPFAIL, in_words
from broker.errors import ConfigError, HeadgateError, NotReady
from broker.secret import revealed
from broker.settings import JournalSection, OsloSection

log = logging.getLogger("headgate.oslo")

READY_S: Final = 20.0
"""How long a child may take until it can be used, the first time."""
LEAVE_S: Final = 12.0
"""How long it may take to leave before it is killed: a proxy gives its servers what waits for them for 10 s."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
"""Before it is started again: twice as long each time, up to this; at first again once it ran for STEADY_S."""
STEADY_S: Final = 10.0


_KINDS: Final = {CONFIG: ConfigError, TEMPFAIL: NotReady}


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is told: to be the proxy, or, with ``bridge``, the Flux broker to be reachable on."""

    section: OsloSection
    bridge: str = ""
    parent: int = 0
    """Our pid: a child whose parent is somebody else has lost us already."""
    log_level: str = "warning"
    journal: JournalSection = msgspec.field(default_factory=JournalSection)

    @property
    def name(self) -> str:
        """For people."""
        return "bridge" if self.bridge else "proxy"


class Ready(msgspec.Struct, frozen=True):
    """What a child says once it can be used: where its rooms listen."""

    endpoints: dict[str, str] = msgspec.field(default_factory=dict)


def orders(
    section: OsloSection,
    bridge: str = "",
    *,
    log_level: str = "warning",
    journal: JournalSection | None = None,
) -> list[Order]:
    """The children that settings ask for: the proxy, and the bridge where ``bridge`` names a broker."""
    parent = os.getpid()
    kept = journal if journal is not None else JournalSection()
    made = [Order(section=section, parent=parent, log_level=log_level, journal=kept)]
    if bridge:
        made.append(Order(section=section, bridge=bridge, parent=parent, log_level=log_level))
    return made


class Child:
    """One child, kept running.

    Attributes:
        ready: set once it said so for the first time.
        said: what it said last.
        starts: how often it was started.
        pid: of the running process; 0 none.
        hurry: it is killed, not told to leave.
        stop_by: what tells it to leave: SIGTERM for a restart, SIGINT for good.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.ready = asyncio.Event()
        self.said = Ready()
        self.starts = 0
        self.pid = 0
        self.hurry = False
        self.stop_by: signal.Signals = signal.SIGTERM
        self._input = -1
        self._told = order
        self._running = False

    def renew(self, order: Order) -> None:
        """Go by ``order`` from now on: a process that runs is told to read it again, the next one begins with it."""
        self.order = order
        if self._running:
            self._tell()

    def _tell(self) -> None:
        if self._told is self.order or self.order.bridge:  # a bridge finds its settings when it starts
            return
        self._told = self.order
        interpreter.renew(self._input, _told(self.order))
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGHUP)

    async def keep(self) -> None:
        """Run it until cancelled.

        Raises:
            ConfigError, HeadgateError: it ended before it was ready for the first time; it has said why itself.
        """
        loop = asyncio.get_running_loop()
        pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_S, spread=False)
        while True:
            began = loop.time()
            try:
                code = await self._once()
                said = f"ended with {in_words(code)}"
            except OSError as error:  # no process, memory or descriptor to be had: there may be later
                code, said = 1, f"could not be started: {error.strerror}"
            if not self.ready.is_set():
                kind = _KINDS.get(code, HeadgateError)
                raise kind(f"the process for {self.order.name} {said} before it was ready")
            pause_s = pauses.after(loop.time() - began)
            log.warning("the process for %s %s: started again in %g s", self.order.name, said, pause_s)
            await asyncio.sleep(pause_s)

    async def _once(self) -> int:
        """Start it and wait for its end; returns its exit code, below 0 for a signal."""
        self._told = self.order
        self._input = interpreter.order(_told(self.order))
        try:
            return await self._run(_spawned(self._input))
        finally:
            os.close(self._input)

    async def _run(self, process: subprocess.Popen[bytes]) -> int:
        with supervision.end_of(asyncio.get_running_loop(), process) as ended:
            self.starts += 1
            self.pid = process.pid
            try:
                assert process.stdout is not None
                with process.stdout:
                    await self._listen(process.stdout.fileno(), ended)
                await asyncio.shield(ended)
            finally:
                self._running = False
                await self._end(process, ended)
                self.pid = 0
        return process.wait()

    async def _listen(self, fd: int, ended: asyncio.Future[None]) -> None:
        """Wait for the line that says it is ready; its end or ``ended`` ends the wait, too."""
        os.set_blocking(fd, False)
        line = b""
        while not line.endswith(b"\n"):
            with supervision.readable(asyncio.get_running_loop(), fd) as there:
                await asyncio.wait((there, ended), return_when=asyncio.FIRST_COMPLETED)
                if not there.done():
                    return
            some = os.read(fd, 65536)
            if not some:
                return
            line += some
        self.said = msgspec.json.decode(line, type=Ready)
        self.ready.set()
        self._running = True
        self._tell()  # what has changed since it was started

    async def _end(self, process: subprocess.Popen[bytes], ended: asyncio.Future[None]) -> None:
        """Tell it to leave, kill it when it does not."""
        for number, patience_s in ((self.stop_by, LEAVE_S), (signal.SIGKILL, None)):
            if ended.done() or process.poll() is not None:
                break
            process.send_signal(signal.SIGKILL if self.hurry else number)
            await asyncio.wait((ended,), timeout=patience_s)
        process.wait()


def _spawned(given: int) -> subprocess.Popen[bytes]:
    """A child whose input is the file ``given``, which has its order: nobody waits for anybody to read it."""
    return subprocess.Popen(
        interpreter.command("broker.cli.oslo.room"),
        stdin=given,
        stdout=subprocess.PIPE,
        env=supervision.environ_of_child(),
        start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on
    )


def _told(order: Order) -> bytes:
    return msgspec.json.encode(order, enc_hook=revealed)


class Children:
    """All of them.

    Args:
        wanted: an order for each.
    """

    def __init__(self, wanted: Sequence[Order]) -> None:
        self.children = [Child(order) for order in wanted]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def endpoints(self) -> Mapping[str, str]:
        """Where the rooms listen."""
        return {room: where for child in self.children for room, where in child.said.endpoints.items()}

    async def start(self) -> None:
        """Start all and wait until each can be used.

        Raises:
            ConfigError, HeadgateError: one of them cannot. TimeoutError: not within READY_S.
        """
        loop = asyncio.get_running_loop()
        rooms = [child for child in self.children if not child.order.bridge]
        bridges = [child for child in self.children if child.order.bridge]
        try:
            for share in (rooms, bridges):  # a bridge finds its node's rooms there
                keeping = [loop.create_task(child.keep(), name=f"oslo {child.order.name}") for child in share]
                self._tasks += keeping
                await self._until_ready(share)
        except BaseException:
            await self.stop()
            raise

    async def _until_ready(self, share: Sequence[Child]) -> None:
        if not share:
            return
        loop = asyncio.get_running_loop()
        ready = loop.create_task(_all_ready(share), name="oslo ready")
        try:
            async with asyncio.timeout(READY_S):
                await asyncio.wait((ready, *self._tasks), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            missing = ", ".join(child.order.name for child in share if not child.ready.is_set())
            raise TimeoutError(f"not ready within {READY_S:g} s: {missing}") from None
        finally:
            ready.cancel()
        for task in self._tasks:
            if task.done():
                task.result()

    def renew(self, section: OsloSection) -> None:
        """All of them go by ``section`` from now on."""
        for child in self.children:
            child.renew(msgspec.structs.replace(child.order, section=section))

    async def failed(self) -> None:
        """Wait for ever, unless a child can no longer be kept.

        Raises:
            Exception: why it cannot.
        """
        if self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def stop(self, number: signal.Signals = signal.SIGTERM, *, hurry: bool = False) -> None:
        """End all by signal ``number``, ``hurry`` at once; harmless twice."""
        for child in self.children:
            child.hurry, child.stop_by = hurry, number
        while self._tasks:  # the latest first: a bridge leaves through its node's rooms
            share = self._tasks[-1:] if not hurry else list(self._tasks)
            del self._tasks[-len(share) :]
            for task in share:
                task.cancel()
            await asyncio.gather(*share, return_exceptions=True)


async def _all_ready(share: Sequence[Child]) -> None:
    for child in share:
        await child.ready.wait()
