"""Bytes of the socket -> chunks (``marks``)."""

from __future__ import annotations

import socket
from typing import Final, NamedTuple

from broker.errors import ProtocolError
from broker.journal.marks import CHUNK_HEAD, CHUNK_MAGIC, CHUNK_MAX_BYTES

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
