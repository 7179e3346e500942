"""Bytes of the socket -> chunks (``marks``) -> where their records begin, and when they were.

``Walk`` is the one pass that costs something for each record.
"""

from __future__ import annotations

import socket
from struct import Struct, error
from typing import Final, NamedTuple

from broker.errors import ProtocolError
from broker.journal.marks import CHUNK_HEAD, CHUNK_MAGIC, CHUNK_MAX_BYTES, MARK_BYTES, TIME, TIME_MARK

AHEAD_BYTES: Final = 1 << 20
"""A buffer grows by so much, then by doubling, ahead of what has arrived: never at once by what was announced."""


class Chunk(NamedTuple):
    """Marks and frames, with what their head says."""

    first: int
    """Number of its first record in this run."""
    records: int
    cause: int
    """Why numbers are missing in front of it (``marks.CAUSES``)."""
    data: bytes | bytearray
    whole: bool = True
    """False: the stream ended inside it."""


class Intake:
    """The chunks of one stream socket.

    Args:
        sock: the end that chunks come to.

    Attributes:
        ended: the other end is gone, and what it sent was read.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._head = b""
        self._data = bytearray()
        self._got = 0
        self.ended = False

    def receive(self) -> Chunk | None:
        """The next chunk as soon as all of it has come; never waits.

        Raises:
            ProtocolError: no chunk begins where one should.
        """
        try:
            if (len(self._head) == CHUNK_HEAD.size or self._receive_head()) and self._receive_data():
                return self._take(whole=True)
        except (BlockingIOError, InterruptedError):
            pass
        except ConnectionError:  # it closed its end with reports unread: as good as any end
            self.ended = True
        return None

    def rest(self) -> Chunk | None:
        """What came of the chunk inside which the stream ended; None when it ended between two."""
        return self._take(whole=False) if len(self._head) == CHUNK_HEAD.size else None

    def _take(self, *, whole: bool) -> Chunk:
        _magic, _length, first, records, cause = CHUNK_HEAD.unpack(self._head)
        data = self._data
        self._head, self._data = b"", bytearray()
        del data[self._got :]
        return Chunk(first, records, cause, data, whole)

    def _receive_head(self) -> bool:
        received = self._sock.recv(CHUNK_HEAD.size - len(self._head), socket.MSG_DONTWAIT)
        self.ended = not received
        self._head += received
        seen = self._head[: len(CHUNK_MAGIC)]
        if not CHUNK_MAGIC.startswith(seen):
            raise ProtocolError(
                f"chunk begins with {seen.hex(' ')}, expected {CHUNK_MAGIC.hex(' ')}, from the recorder"
            )
        if len(self._head) < CHUNK_HEAD.size:
            return False
        length = CHUNK_HEAD.unpack(self._head)[1]
        if length > CHUNK_MAX_BYTES:
            raise ProtocolError(
                f"chunk of {length} bytes announced, at most {CHUNK_MAX_BYTES} expected, from the recorder"
            )
        self._data = bytearray(min(length, AHEAD_BYTES))
        self._got = 0
        return True

    def _receive_data(self) -> bool:
        length = CHUNK_HEAD.unpack(self._head)[1]
        while self._got < length:
            if self._got == len(self._data):
                self._data += bytes(min(length, max(AHEAD_BYTES, 2 * self._got)) - self._got)
            with memoryview(self._data) as view, view[self._got :] as room:
                size = self._sock.recv_into(room, 0, socket.MSG_DONTWAIT)
            if not size:
                self.ended = True
                return False
            self._got += size
        return True


FRAME_AT: Final = MARK_BYTES + 8
"""From a mark to the parts behind it: the mark, the frame's magic, its size."""
_STEP: Final = Struct(">B19xI").unpack_from
"""Kind of a mark and size of the frame behind it."""
_TIME: Final = TIME_MARK.unpack_from


class Walk:
    """The records of one chunk.

    Args:
        data: marks and frames. now_ns: dates records that no TIME mark follows.

    Attributes:
        starts: where each mark begins. times: (records dated, ns), in order; all records together.
        end: where the last whole record or TIME mark ends.
    """

    __slots__ = ("end", "starts", "times")

    def __init__(self, data: bytes | bytearray, now_ns: int) -> None:
        self.starts: list[int] = []
        self.times: list[tuple[int, int]] = []
        self.end = self._walk(data, len(data), 0)
        if (undated := len(self.starts) - sum(records for records, _ in self.times)) > 0:
            self.times.append((undated, now_ns))

    def _walk(self, data: bytes | bytearray, stop: int, at: int) -> int:
        starts, step = self.starts, _STEP
        append = starts.append
        dated = 0
        try:
            while at < stop:
                kind, size = step(data, at)
                if kind != TIME:
                    append(at)
                    at += FRAME_AT + size
                    continue
                self.times.append((len(starts) - dated, _TIME(data, at)[0]))
                dated = len(starts)
                at += MARK_BYTES
        except error:  # fewer than 24 bytes are left: a TIME mark at the end, or the begin of a record
            if data[at] == TIME and stop - at >= MARK_BYTES:
                self.times.append((len(starts) - dated, _TIME(data, at)[0]))
                at += MARK_BYTES
        if at > stop:
            at = starts.pop()
        return at
