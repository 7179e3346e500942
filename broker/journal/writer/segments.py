"""Blocks -> files: a segment's begin, rotation, sync; cut back to the last complete block when a write fails.

A segment comes into being with its first block: header, peers and block are written under a hidden name, which is then
changed. So a segment that can be seen has records, and no number is in the name of two.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from broker.atomic import sync_folder
from broker.journal.layout import BOTH_ENDS, PAYLOADS, SEGMENT_HEADER, SEGMENT_MAGIC, SUFFIX, VERSION
from broker.journal.options import JournalOptions
from broker.journal.writer.blocks import BlockBuilder, EncodedBlock, Piece
from broker.journal.writer.peers import PeerTable
from broker.journal.writer.recovery import Found, Noted, Notes, fair_share, hidden, sweep

log = logging.getLogger("headgate")

FILE_MODE: Final = 0o600
"""Payloads and credentials are in it."""
SWEEP_S: Final = (0.2, 30.0)
"""Retention looks at the directory at most and at least so often, else four times within ``keep_s``."""
PARTS: Final = 4
"""Of what is kept unasked a segment takes one in so many, so that some are left when the oldest goes."""


class Segments:
    """The segments of one writer, the last one open.

    Args:
        options: of the writer, ``run`` included.
        found: what recovery found.
        notes: where numbers are kept that no segment tells any more.
        builder: makes the block of peers.
        monotonic: a clock that does not step, s. wall_ns: the time of day, ns since 1970.

    Attributes:
        next_seq: number of the next record. written: records of this run on disk, gap records not counted.
        disk_bytes: of all segments of this name.

    ``append``, ``tick`` and ``close`` raise OSError when the disk does; what is on it then ends with a complete block.
    """

    def __init__(
        self,
        options: JournalOptions,
        found: Found,
        notes: Notes,
        builder: BlockBuilder,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._options = options
        self._base = found.base
        self._notes = notes
        self._builder = builder
        self._monotonic = monotonic
        self._wall_ns = wall_ns
        self._peers = PeerTable()
        self._lost = found.lost
        self._used = found.used
        self._errno = found.errno
        self.next_seq = found.next_seq
        self.written = found.next_seq - found.base - found.lost
        self.disk_bytes = 0
        self._fd = -1
        self._path = ""
        self._size = 0
        self._rotate_bytes = options.rotate_bytes
        self._opened = self._synced = self._swept = monotonic()
        self._dirty = False
        self._note()
        self._sweep()

    # -- blocks --------------------------------------------------------------------------------

    def append(self, block: EncodedBlock) -> None:
        """Write one block, into a new segment when the present one is full, old or gone."""
        if self._fd >= 0 and self._over(block.size):
            self.seal()
        if self._fd < 0:
            self._open(block)
        else:
            self._extend(block.pieces)
        self._dirty = True
        self._peers.apply(block.changes)
        self.next_seq = block.next_seq
        self.written += block.records - (block.lost > 0)
        if block.lost:
            self._lost += block.lost
            self._note()
        if self._options.sync == "block":
            self._sync()

    def seal(self) -> None:
        """End the open segment; the next block begins another one."""
        if self._fd < 0:
            return
        try:
            if self._options.sync != "none":
                self._sync()
        finally:
            fd, self._fd, self._path = self._fd, -1, ""
            os.close(fd)
        self._note()
        self._sweep()

    close = seal

    def tick(self) -> None:
        """What time asks for: sync, rotation by age, retention."""
        now = self._monotonic()
        if self._fd >= 0 and now - self._opened >= self._options.rotate_s:
            self.seal()
        if self._dirty and self._options.sync == "interval" and now - self._synced >= self._options.sync_s:
            self._sync()
        if now - self._swept >= self._sweep_s:
            self._sweep()

    def due(self) -> float:
        """When ``tick`` is to be called next, by the monotonic clock; infinite when nothing is to come."""
        times = [self._swept + self._sweep_s]
        if self._fd >= 0:
            times.append(self._opened + self._options.rotate_s)
            if self._dirty and self._options.sync == "interval":
                times.append(self._synced + self._options.sync_s)
        return min(times)

    def lose(self, used: int, number: int) -> None:
        """Note that the numbers below ``used`` are taken, though nothing will be written: the next run tells of it.

        ``number`` is the errno of what is in the way. Needs no room on the disk.
        """
        self._used, self._errno = max(self._used, used), number
        self._note()

    # -- files ---------------------------------------------------------------------------------

    def _over(self, size: int) -> bool:
        """The open segment takes no further block."""
        if os.fstat(self._fd).st_nlink == 0:
            log.warning("journal: %s was deleted while it was written to; another one begins", self._path)
            return True
        old = self._monotonic() - self._opened >= self._options.rotate_s
        return old or self._size + size > self._rotate_bytes

    def _open(self, block: EncodedBlock) -> None:
        options, first_seq = self._options, block.first_seq
        peers = self._builder.repeat(self._peers, first_seq, self._wall_ns())
        pieces = [self._header(first_seq), *(peers.pieces if peers else ()), *block.pieces]
        name = f"{options.writer}-{first_seq:020d}{SUFFIX}"
        path, begun = os.path.join(options.directory, name), os.path.join(options.directory, hidden(name))
        fd = os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        try:
            size = _write(fd, pieces)
            if options.sync != "none":
                os.fdatasync(fd)
            if os.path.lexists(path):  # a rename would replace it, and with it records that are on disk
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            os.rename(begun, path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):  # recovery removes it otherwise
                os.unlink(begun)
            raise
        self._fd, self._path, self._size = fd, path, size
        self._opened = self._synced = self._monotonic()
        self.disk_bytes += size
        if options.sync != "none":
            sync_folder(options.directory)

    def _header(self, first_seq: int) -> bytes:
        options = self._options
        flags = (PAYLOADS if options.payload else 0) | (BOTH_ENDS if options.capture == "both" else 0)
        run = bytes.fromhex(options.run)
        head = SEGMENT_HEADER.pack(
            SEGMENT_MAGIC, VERSION, flags, options.rank, run, first_seq, self._wall_ns(), self._base, 0
        )[:-4]
        return head + zlib.crc32(head).to_bytes(4, "little")

    def _extend(self, pieces: Sequence[Piece]) -> None:
        try:
            size = _write(self._fd, pieces)
        except OSError as error:
            try:  # what is on disk has to end with a complete block: recovery would cut it, readers would call it torn
                os.ftruncate(self._fd, self._size)
            except OSError as second:
                log.error("journal: %s cannot be cut back to %d: %s", self._path, self._size, second.strerror)
            raise error from None
        self._size += size
        self.disk_bytes += size

    def _sync(self) -> None:
        os.fdatasync(self._fd)
        self._synced = self._monotonic()
        self._dirty = False

    def _note(self) -> None:
        used = max(self._used, self.next_seq)
        number = self._errno if used > self.next_seq else 0
        self._notes.write(Noted(self.next_seq, self._options.run, self._base, self._lost, used, number))

    # -- retention -----------------------------------------------------------------------------

    @property
    def _sweep_s(self) -> float:
        keep_s = self._options.keep_s
        if keep_s:
            return min(max(keep_s / 4, SWEEP_S[0]), SWEEP_S[1])
        return float("inf") if self._options.keep_bytes == 0 else SWEEP_S[1]

    def _sweep(self) -> None:
        options = self._options
        self._swept = self._monotonic()
        keep_bytes = options.keep_bytes
        if keep_bytes is None:
            keep_bytes = fair_share(options.directory, options.writer)
            # only what is sealed can be deleted
            self._rotate_bytes = min(options.rotate_bytes, max(keep_bytes // PARTS, 1))
        self.disk_bytes, gone = sweep(
            options.directory,
            options.writer,
            self._path,
            keep_bytes=keep_bytes,
            keep_s=options.keep_s,
            now_s=self._wall_ns() / 1e9,
        )
        if gone:
            log.info("journal: %d segments deleted: older or more than is to be kept", len(gone))


def _write(fd: int, pieces: Sequence[Piece]) -> int:
    """Write all pieces, however few bytes a call takes; returns their bytes."""
    views = [memoryview(piece) for piece in pieces if len(piece)]
    total = 0
    while views:
        done = os.writev(fd, views)
        total += done
        while views and done >= len(views[0]):
            done -= len(views.pop(0))
        if views:
            views[0] = views[0][done:]
    return total
