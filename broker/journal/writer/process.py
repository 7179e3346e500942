"""The writer at work: chunks in, blocks out, reports back; ends when the other end of the socket does.

READY says where numbers go on, WRITTEN follows each block, OFF is the last word before the process ends because of an
error. A report that finds no room in the socket is left out: the next one says more.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import select
import socket
import time
from typing import Final

from broker.errors import ProtocolError
from broker.journal.marks import READY, REPORT, WRITTEN
from broker.journal.options import JournalOptions
from broker.journal.writer.blocks import BEFORE, BlockBuilder, EncodedBlock
from broker.journal.writer.intake import Chunk, Intake
from broker.journal.writer.recovery import Notes, recover
from broker.journal.writer.segments import Segments
from broker.journal.writer.start import report_off

log = logging.getLogger("headgate")

IDLE_S: Final = 60.0
"""The longest wait for a chunk; nothing depends on it."""
LAST_S: Final = 1.0
"""How long a writer that has ended capture listens to what is lost for it; the recorder hangs up before that."""


class Writer:
    """One run of the process.

    Args:
        sock: the recorder's other end. options: of this writer. lock_fd: its lock file, locked.

    Raises:
        ConfigError: the codec's library is missing. OSError: the directory cannot be worked in.
    """

    def __init__(self, sock: socket.socket, options: JournalOptions, lock_fd: int) -> None:
        self._sock = sock
        self._options = options
        notes = Notes(lock_fd)
        found = recover(options.directory, options.writer, options.run, notes)
        before = f"{BEFORE}: {os.strerror(found.errno)}" if found.errno else BEFORE
        self._builder = BlockBuilder(
            options, base=found.base, number=found.next_seq - found.base, before=before
        )
        self._base = found.base
        self._segments = Segments(options, found, notes, self._builder)
        self._intake = Intake(sock)
        self._since = math.inf
        self._report(READY, max(found.next_seq, found.base), 0)

    def run(self) -> int:
        """Write until the stream ends; the exit code."""
        try:
            self._until_end()
            if (rest := self._intake.rest()) is not None:
                self._last(rest)
            self._flush()
            self._segments.close()
        except ProtocolError as error:
            return self._off(error, errno.EPROTO)
        except OSError as error:
            return self._off(error, error.errno or errno.EIO)
        return 0

    def _until_end(self) -> None:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while not self._intake.ended:
            wait_s = min(self._due() - time.monotonic(), IDLE_S)
            poll.poll(math.ceil(max(0.0, wait_s) * 1000))
            while (chunk := self._receive()) is not None:
                self._take(chunk)
                self._tick()
            self._tick()

    def _receive(self) -> Chunk | None:
        try:
            return self._intake.receive()
        except ProtocolError:
            self._flush()  # what came before is whole
            raise

    def _due(self) -> float:
        return min(self._since + self._options.block_s, self._segments.due())

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._since + self._options.block_s:
            self._flush()
        if now >= self._segments.due():
            self._segments.tick()

    def _take(self, chunk: Chunk) -> None:
        repeated = self._builder.repeated
        for block in self._builder.add(chunk, time.time_ns()):
            self._write(block)
        if self._builder.repeated > repeated:
            known = self._builder.repeated - repeated
            log.warning("journal: %d records came again and are on disk already: left out", known)
        if not self._builder.records:
            self._since = math.inf
        elif self._since == math.inf:
            self._since = time.monotonic()
        if self._builder.broken is not None:
            self._flush()

    def _last(self, rest: Chunk) -> None:
        """Half a chunk: the broker ended within it."""
        before = self._builder.number
        self._take(rest)
        missing = rest.first + rest.records - max(self._builder.number, before)
        log.warning(
            "journal: the broker ended inside a chunk: the last %d of its %d records are lost",
            missing,
            rest.records,
        )

    def _flush(self) -> None:
        """Write what waits.

        Raises:
            ProtocolError: it ends with what is no record.
        """
        block = self._builder.build()
        if block is not None:
            self._write(block)
        self._since = math.inf
        if self._builder.broken is not None:
            raise self._builder.broken

    def _write(self, block: EncodedBlock) -> None:
        self._segments.append(block)
        self._report(WRITTEN, self._segments.written, self._segments.disk_bytes)

    def _report(self, what: int, first: int, second: int) -> None:
        with contextlib.suppress(OSError):
            self._sock.send(REPORT.pack(what, 0, first, second), socket.MSG_DONTWAIT)

    def _off(self, error: Exception, number: int) -> int:
        """End because of ``error``; the file, cut back, ends with a complete block."""
        with contextlib.suppress(OSError):
            self._segments.close()
        report_off(self._sock, number, self._segments.written, self._segments.disk_bytes)
        used = self._base + max(self._builder.number, self._hear_out())
        self._segments.lose(used, number)
        lost = max(0, used - self._segments.next_seq)
        log.error("journal: capture ends: %s; %d records were not written", error, lost)
        return 1

    def _hear_out(self) -> int:
        """Take in what is still on its way, for its numbers only; returns the one behind the last of them."""
        behind, until = 0, time.monotonic() + LAST_S
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        with contextlib.suppress(ProtocolError):  # then nobody knows
            while not self._intake.ended and (left_s := until - time.monotonic()) > 0:
                poll.poll(math.ceil(left_s * 1000))
                while (chunk := self._intake.receive()) is not None:
                    behind = max(behind, chunk.first + chunk.records)
            if (rest := self._intake.rest()) is not None:
                behind = max(behind, rest.first + rest.records)
        return behind
