"""Chunks to the process that writes: bounded, never waiting; what it sheds is counted and named.

Theory of operation. The writer is a process of its own at the other end of a socket pair; it ends when the pair does.
``hand`` sends a chunk in one system call; what the socket does not take waits here, up to ``queue_bytes``, and beyond
that whole chunks are shed. Records are numbered when they are sent, and those that were shed use up numbers, so the
writer sees each loss as a jump, and its cause in the next chunk. A writer that dies is replaced (``RESTART_S``), and
the new one is told of all peers first. A writer that reports OFF (a full disk) ends capture: ``state`` says why, until
``start`` is called again.

One descriptor stands for all of it: ``fileno`` is readable when the writer said something, or when what waits here can
go on; then call ``poll``. Restarts need a clock, so ``poll`` has to be called now and then while ``waiting``.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from broker import interpreter
from broker.backoff import Backoff
from broker.journal import premises
from broker.journal.child import Child, Shipment
from broker.journal.marks import (
    CAPTURE_OFF,
    CHUNK_HEAD,
    CHUNK_MAGIC,
    CHUNK_MAX_BYTES,
    NOTHING_LOST,
    OFF,
    READY,
    SHED,
    WRITER_DIED,
)
from broker.journal.options import JournalOptions
from broker.obstacles import obstacle

log = logging.getLogger("headgate")

WRITER: Final = interpreter.command("broker.journal.writer")
"""The writer's command; behind it comes what ``Child`` says."""
RESTART_S: Final = (0.1, 5.0)
"""Pause before a dead writer is replaced: the first one and the longest; it doubles in between."""
FAILED_STARTS_MAX: Final = 5
"""Writers in a row that died before they were ready; then capture is off: time does not heal what is wrong."""
PAIR_SLACK_BYTES: Final = 1 << 20
"""How much a chunk may be larger than the one behind it that holds the same message: what the tap puts with it."""
CLOSE_S: Final = 5.0
"""How long a writer may take to write what it has and end."""
FORMER_S: Final = 2.0
"""How long the first start waits for the writer of a broker that was just killed."""


class Figures(NamedTuple):
    """Counts since the recorder was made: records, and bytes where the name says so."""

    handed: int
    """All that were handed over, shed ones among them."""
    written: int
    """Of this run, on disk, as last reported."""
    shed: int
    """Found the queue full, or capture off."""
    lost: int
    """Sent to a writer that died with them, or that found the disk full."""
    restarts: int
    """Writers started in place of dead ones."""
    waiting_bytes: int
    disk_bytes: int
    """What this writer's name has on disk, as last reported."""


class _Chunk(NamedTuple):
    skipped: int
    """Number of records shed just before this chunk."""
    records: int
    size: int
    pieces: list[bytes]


class Recorder:
    """Starts, feeds and replaces one writer. Belongs to one thread.

    Args:
        options: what the writer is to do; an empty ``run`` gets a uuid. on_state: told of each new ``state``.
        command: what is started instead of ``WRITER``.

    Attributes:
        state: "on", "off", or "off: REASON". introduce: makes the records that a new writer has to know first.
    """

    def __init__(
        self,
        options: JournalOptions,
        *,
        on_state: Callable[[str], None] | None = None,
        command: Sequence[str] = WRITER,
    ) -> None:
        self.options = options if options.run else msgspec.structs.replace(options, run=os.urandom(16).hex())
        self.state = "off"
        self.introduce: Callable[[], tuple[list[bytes], int]] | None = None
        self._on_state = on_state
        self._child = Child(command)
        self._shipment: Shipment | None = None
        self._queue: deque[_Chunk] = deque()
        self._rest = memoryview(b"")
        self._waiting_bytes = 0
        self._number = 0
        self._skip = 0
        self._unheard = False
        self._cause = NOTHING_LOST
        self._ready = self._closing = False
        self._base = -1
        self._sent_before = self._accounted = 0
        self._failed_starts = 0
        self._backoff = Backoff(*RESTART_S, spread=False)
        self._ready_at = self._retry_at = 0.0
        self._handed = self._written = self._shed = self._lost = self._restarts = self._disk_bytes = 0

    # -- on and off ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the writer; does nothing while capture is on. Does not wait until it is ready, but for the end of the
        former one.

        Raises:
            ConfigError: it could not work (see ``premises``), or the former one goes on.
        """
        if self.state == "on":
            return
        if not self._see_off(time.monotonic() + CLOSE_S):
            text = f"journal {self.options.directory}: the former writer is still at work"
            raise obstacle(text, errno.EBUSY)
        lock = premises.take(self.options, 0.0 if self._number else FORMER_S)
        self._failed_starts = 0
        self._backoff.reset()
        try:
            with contextlib.closing(lock):
                self._spawn(lock.fd)
        except OSError as error:
            text = f"the journal's writer cannot be started: {error.strerror}"
            raise obstacle(text, error) from error
        if self.options.ship_to and self._shipment is None:
            self._shipment = Shipment(self.options)
        self._enter("on")
        self._send()

    def stop(self, reason: str = "") -> None:
        """Turn capture off. Chunks that the socket does not take at once are shed; the writer writes what it has and
        ends, and ``poll`` reads its last reports.
        """
        if self.state == "on":
            self._send()
            self._drop_queue()
            self._closing = True
            self._child.say_all()
            self._enter(f"off: {reason}" if reason else "off")

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Send everything, wait until the writer has written it and ended; kill the writer after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        child = self._child
        while self._unsent and child.until_writable(deadline - time.monotonic()):
            self._send()
        self._drop_queue()
        self._closing = True
        child.say_all()
        if not self._see_off(deadline):
            child.kill()
            child.reap(CLOSE_S)
            before = self._lost
            self._count_lost()
            log.error(
                "journal: the writer did not end within %g s and is killed; %d records are lost",
                timeout_s,
                self._lost - before,
            )
        child.close()
        if self._shipment is not None:
            self._shipment.close()
        if self.state == "on":
            self._enter("off")

    def _see_off(self, deadline: float) -> bool:
        """Read the last reports of a writer that was told to end; False when it has not ended at the deadline."""
        child = self._child
        while child.connected and child.until_readable(deadline - time.monotonic()):
            self._hear()
        child.hang_up()
        return child.reap(max(0.0, deadline - time.monotonic())) is not None

    def _enter(self, state: str) -> None:
        if state != self.state:
            self.state = state
            if self._on_state is not None:
                self._on_state(state)

    # -- what the owner asks -------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when ``poll`` has something to do; the same number across restarts, until ``close``."""
        return self._child.fileno()

    @property
    def waiting(self) -> bool:
        """Whether ``poll`` has to be called again: chunks wait here, or a writer has to be replaced."""
        return self.state == "on" and (self._unsent or not self._child.connected)

    @property
    def gone(self) -> bool:
        """Whether no writer runs, so that ``start`` need not wait for the end of one."""
        return self._child.gone

    @property
    def pid(self) -> int:
        """The writer's process; 0 while there is none."""
        return 0 if self._child.gone else self._child.pid

    @property
    def figures(self) -> Figures:
        """All counts since the recorder was made."""
        counts = (self._handed, self._written, self._shed, self._lost, self._restarts)
        return Figures(*counts, self._waiting_bytes, self._disk_bytes)

    @property
    def _unsent(self) -> bool:
        return len(self._rest) + len(self._queue) > 0

    # -- chunks --------------------------------------------------------------------------------

    def hand(self, items: list[bytes], records: int) -> None:
        """Send or queue one chunk of marks and frames that are dated already; never waits, never raises.

        The chunk is shed when capture is off, or when others wait and the queue is full.
        """
        self._handed += records
        if self.state != "on":
            self._shed += records
            return
        size = sum(map(len, items))
        if not self._room_for(size):
            self._send()
            if not self._room_for(size):
                self._shed += records
                self._skip += records
                self._unheard = True
                return
        self._put(items, records, size)
        self._send()

    def poll(self) -> None:
        """Hear what the writer said, send what waits, replace a writer that died. Never waits, never raises."""
        if self._child.connected:
            self._hear()
        elif self.state == "on" and time.monotonic() >= self._retry_at:
            self._restart()
        self._send()

    def _room_for(self, size: int) -> bool:
        """Two chunks of a size may always wait, so that a large message is not lost for its size: its delivery comes
        right behind it.
        """
        if size > CHUNK_MAX_BYTES:
            return False
        room = self.options.queue_bytes
        if 2 * size > room:
            room = 2 * size + PAIR_SLACK_BYTES
        return not self._waiting_bytes or self._waiting_bytes + size <= room

    def _put(self, items: list[bytes], records: int, size: int) -> None:
        """Queue a chunk; behind a loss that may have taken introductions along, all peers go first."""
        if self._unheard and self.introduce is not None:
            self._unheard = False
            known, peers = self.introduce()
            if peers:
                self._handed += peers
                self._put(known, peers, sum(map(len, known)))
        if records or self._skip:
            self._queue.append(_Chunk(self._skip, records, size, items))
            self._skip = 0
            self._waiting_bytes += size

    def _send(self) -> None:
        """Send what the socket takes."""
        child = self._child
        if self._closing or not child.connected:
            return
        try:
            while True:
                if self._rest:  # the rest of a chunk goes first: the writer reads a stream
                    sent = child.send([self._rest])
                    self._rest = self._rest[sent:]
                    self._waiting_bytes -= sent
                elif self._queue:
                    sent = self._send_chunk(self._queue[0])
                elif self._skip:  # the writer keeps up again: tell it at once what is missing
                    self._put([], 0, 0)
                    continue
                else:
                    break
                if not sent:
                    break
        except OSError:  # EPIPE, ECONNRESET; what it said last may still be there
            self._hear()
            if child.connected:
                self._lose_writer()
            return
        child.watch(self._unsent)

    def _send_chunk(self, chunk: _Chunk) -> int:
        """Number the oldest chunk and send it; what the socket does not take of it goes to ``_rest``."""
        # records shed while capture was off are missing for that reason, though the queue was full, too
        cause = SHED if chunk.skipped and self._cause != CAPTURE_OFF else self._cause
        first = self._number + chunk.skipped
        head = CHUNK_HEAD.pack(CHUNK_MAGIC, chunk.size, first, chunk.records, cause)
        pieces = [head, *chunk.pieces]
        sent = self._child.send(pieces)
        if sent:
            self._queue.popleft()
            self._number = first + chunk.records
            self._cause = NOTHING_LOST
            self._waiting_bytes -= chunk.size
            if sent < len(head) + chunk.size:
                self._rest = memoryview(b"".join(pieces))[sent:]
                self._waiting_bytes += len(self._rest)
        return sent

    # -- the writer ----------------------------------------------------------------------------

    def _spawn(self, lock_fd: int = -1) -> None:
        """Start a writer, which inherits the lock if there is one already; one that takes over is told of all peers
        before anything else.
        """
        # another process ships, and no other has to know where to
        options = msgspec.structs.replace(self.options, log_level=log.getEffectiveLevel(), ship_to=None)
        self._child.spawn(msgspec.json.encode(options), lock_fd)
        self._ready = self._closing = False
        self._sent_before = self._number
        if (
            self.introduce is not None and self._number
        ):  # the first writer of a run is told of peers as they come
            items, records = self.introduce()
            if records:
                size = sum(map(len, items))
                self._unheard = False
                self._handed += records
                self._waiting_bytes += size
                self._queue.appendleft(_Chunk(0, records, size, items))

    def _restart(self) -> None:
        """Replace a writer that died, unless the dead one is not quite gone."""
        self._retry_at = time.monotonic() + self._backoff.after()
        if self._child.reap(0.0) is None:
            return
        try:
            self._spawn()
        except OSError as error:
            log.warning("journal: the writer cannot be started: %s", error.strerror)
            return
        self._restarts += 1

    def _hear(self) -> None:
        """Take in all reports; notice the end of the writer."""
        reports, ended = self._child.reports()
        for what, number, first, second in reports:
            self._report(what, number, first, second)
        if ended and self._child.connected:
            self._lose_writer()

    def _report(self, what: int, number: int, first: int, second: int) -> None:
        if what == READY:
            if self._base < 0:  # the first writer of this run says where the numbers of its name go on
                self._base = first
            self._ready, self._ready_at = True, time.monotonic()
            self._failed_starts = 0
            # what is missing was counted before, where the last writer put nothing on disk either
            self._lost += max(0, self._sent_before - max(first - self._base, self._accounted))
            self._accounted = self._sent_before
            return
        # a writer that could not even begin knows no numbers
        self._written, self._disk_bytes = max(self._written, first), second or self._disk_bytes
        if what == OFF:
            before, reason = self._lost, os.strerror(number)
            if self.state == "on":
                self._give_up()
                self._cause = CAPTURE_OFF
                self._enter(f"off: {reason}")
            self._count_lost()
            text = "journal %s: capture is off: %s; %d records that the writer had are lost"
            log.error(text, self.options.directory, reason, self._lost - before)

    def _count_lost(self) -> None:
        """Count as lost whatever was neither written nor shed: no writer is left that could write it."""
        waiting = sum(chunk.records for chunk in self._queue)
        self._lost = max(self._lost, self._handed - self._shed - self._written - waiting)
        self._accounted = self._number

    def _lose_writer(self) -> None:
        """Prepare to replace a writer that closed its end without a reason; give up after several failed starts."""
        child = self._child
        child.hang_up()
        if self._closing:
            return
        log.warning("journal: the writer (pid %d) ended; another one takes over", child.pid)
        child.kill()  # where it only went deaf, it would keep the lock
        self._drop_rest()
        self._cause = WRITER_DIED
        now = time.monotonic()
        self._retry_at = now + self._backoff.after(now - self._ready_at if self._ready else 0.0)
        if not self._ready:
            self._failed_starts += 1
            if self._failed_starts >= FAILED_STARTS_MAX:
                log.error("journal: %d writers in a row did not start: capture is off", self._failed_starts)
                self._give_up()
                self._count_lost()
                self._enter("off: the writer does not start")

    def _give_up(self) -> None:
        """End the writer by hanging up, and shed all chunks that wait."""
        self._child.hang_up()
        self._drop_queue()

    def _drop_queue(self) -> None:
        """Shed all chunks that wait."""
        self._drop_rest()
        self._shed += sum(chunk.records for chunk in self._queue)
        self._skip += sum(chunk.skipped + chunk.records for chunk in self._queue)
        self._unheard = self._unheard or bool(self._queue)
        self._queue.clear()
        self._waiting_bytes = 0

    def _drop_rest(self) -> None:
        """Drop the rest of a chunk that the writer got in part; the numbers of its records stay used."""
        self._waiting_bytes -= len(self._rest)
        self._rest = memoryview(b"")
