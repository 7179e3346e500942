"""The numbering of events outlives rank 0 where a journal records it: the next rank 0 goes on with the same numbers.

Theory of operation. A file beside the segments has the epoch, the runs of the journal in which it went on, and the last
number that may have left this process: it is written before what bears that number is (``note``), and events are with
the journal's writer before they are with anybody else. So whoever starts on the same machine knows exactly where the
numbers ended, however the former one ended, and has from the journal what was published (``restored``); what is not
there, because the writer was behind or recording was off, is told as missing to whoever asks for it.

No number may leave twice. So numbers begin anew, with another epoch, when the machine was started again and rank 0 had
not left in order (what it wrote last may not be on the disk), and when it was away for longer than events are kept. Of
a rank 0 that ran without its journal in between nothing is known here: who wants that deletes the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import time
from itertools import groupby
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final

import msgspec

from broker import interpreter
from broker.wire.event_history import NUMBERS, FrameHistory

log = logging.getLogger("headgate")

MAGIC: Final = b"FLXN"
HEAD: Final = Struct("<4sIIQ")
"""magic, last number, whether it was left in order, when rank 0 lived last (ns since 1970); then JSON (``_About``)."""
LAST_AT: Final = 4
ALIVE_AT: Final = 12
RUNS_MAX: Final = 16
"""Runs that are remembered."""
FOREVER_S: Final = 7 * 86400.0
"""How long rank 0 may be away where events are kept whatever their age."""
READER: Final = interpreter.command("broker.journal.reading.last_events")
WHEN: Final = Struct("<q")
FRAME_HEAD: Final = Struct(">4sI")
PORTION_BYTES: Final = 256 << 10
ENDED_TRIES: Final = 200
"""How often it is looked whether the reader has ended, which was killed: a disk that hangs keeps it."""


class _About(msgspec.Struct):
    epoch: str
    boot: str
    runs: list[tuple[str, int]]


def path_of(directory: str, writer: str) -> Path:
    """The file beside the segments."""
    return Path(directory, f".{writer}.events")


def forget(directory: str, writer: str) -> None:
    """Nobody is to go on with these numbers: what comes now does not have them."""
    with contextlib.suppress(OSError):
        path_of(directory, writer).unlink()


class EventNumbers:
    """The numbering of one rank 0.

    Args:
        directory, writer, run: of the journal. max_age_s: of the events that are kept; 0 is any.

    Attributes:
        epoch: whose numbers are given. last: the last one that was given before.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, directory: str, writer: str, run: str, epoch: str, max_age_s: float) -> None:
        self._directory, self._writer = directory, writer
        self._path = path_of(directory, writer)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.epoch, self.last, self._former = epoch, 0, list[tuple[str, int]]()
        known = self._read(boot, max_age_s or FOREVER_S)
        if known is not None:
            about, self.last = known
            self.epoch, self._former = about.epoch, about.runs
        runs = [*self._former[1 - RUNS_MAX :], (run, self.last)]
        data = HEAD.pack(MAGIC, self.last, 0, time.time_ns())
        data += msgspec.json.encode(_About(self.epoch, boot, runs))
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(self._fd, data, 0)
            os.ftruncate(self._fd, len(data))
            os.fsync(self._fd)
        except OSError:
            os.close(self._fd)
            raise

    def _read(self, boot: str, max_age_s: float) -> tuple[_About, int] | None:
        """What the former rank 0 has left, if numbers may go on behind it."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            magic, last, in_order, alive_ns = HEAD.unpack_from(data)
            about = msgspec.json.decode(data[HEAD.size :], type=_About)
        except (StructError, msgspec.MsgspecError) as error:
            log.warning("%s is damaged (%s): event numbers begin anew", self._path, error)
            return None
        away_s = (time.time_ns() - alive_ns) / 1e9
        if magic != MAGIC or not 0 <= away_s <= max_age_s or not (in_order or about.boot == boot):
            return None
        return about, last

    def note(self, sequence: int) -> None:
        """``sequence`` is the newest number: before anything that bears it leaves."""
        self._write(LAST_AT, sequence.to_bytes(4, "little"))

    def live(self) -> None:
        """Rank 0 lives: called now and then."""
        self._write(ALIVE_AT, time.time_ns().to_bytes(8, "little"))

    def _write(self, offset: int, data: bytes) -> None:
        if self._fd < 0:
            return
        try:
            os.pwrite(self._fd, data, offset)
        except OSError as error:
            log.error("%s: %s: event numbers will begin anew with the next start", self._path, error.strerror)
            os.close(self._fd)
            self._fd = -1
            forget(self._directory, self._writer)

    def close(self, sequence: int) -> None:
        """Rank 0 leaves in order, and has given ``sequence`` last; harmless twice."""
        self._write(0, HEAD.pack(MAGIC, sequence, 1, time.time_ns()))
        if self._fd >= 0:
            with contextlib.suppress(
                OSError
            ):  # it counts until the machine is started again, as after a kill
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1

    async def restore(self, history: FrameHistory, max_bytes: int, max_age_s: float) -> None:
        """Put in front of what ``history`` has, which begins behind ``last``, what the journal has of the former runs.

        Whatever is wrong with the journal costs those events, and is logged.
        """
        if not self._former or not self.last:
            return
        since_ns = time.time_ns() - int((max_age_s or FOREVER_S) * 1e9)
        wanted = {
            "directory": self._directory,
            "writer": self._writer,
            "runs": self._former,
            "last": self.last,
            "max_bytes": max_bytes,
            "since_ns": since_ns,
        }
        try:
            process = _reader(msgspec.json.encode(wanted))
        except OSError as error:
            log.warning("the last events of the journal cannot be read: %s", error.strerror)
            return
        try:
            await _take(process, history)
        finally:
            process.kill()
            assert process.stdout is not None
            process.stdout.close()
            for _ in range(ENDED_TRIES):
                if process.poll() is not None:
                    break
                await asyncio.sleep(0.01)


def _reader(wanted: bytes) -> subprocess.Popen[bytes]:
    """The process that reads the journal."""
    given = interpreter.order(wanted)
    try:
        return subprocess.Popen(READER, stdin=given, stdout=subprocess.PIPE, start_new_session=True)
    finally:
        os.close(given)


async def _take(process: subprocess.Popen[bytes], history: FrameHistory) -> None:
    """Read what the process writes, the newest event first, and keep as much as there is room for."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=PORTION_BYTES, loop=loop)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    behind_s = time.time() - loop.time()
    rest, newest = b"", history.before
    try:
        while data := await reader.read(PORTION_BYTES):
            rest += data
            at = 0
            came: list[tuple[int, bytes]] = []
            while len(rest) - at >= WHEN.size + FRAME_HEAD.size:
                (when,) = WHEN.unpack_from(rest, at)
                begin = at + WHEN.size
                end = begin + FRAME_HEAD.size + FRAME_HEAD.unpack_from(rest, begin)[1]
                if end > len(rest):
                    break
                came.append((when, rest[begin:end]))
                at = end
            rest = rest[at:]
            for _, group in groupby(came, lambda each: each[0] // 1_000_000_000):
                times, frames = zip(*group, strict=True)
                if not history.prepend(newest, list(reversed(frames)), times[0] / 1e9 - behind_s):
                    return
                newest = (newest - len(frames)) % NUMBERS
    finally:
        transport.close()
