"""Messages, as lists of parts, over one open connection of ZMTP: for who keeps what waits in an outbox of its own.

A part is one box, made and opened whole: one of a MiB holds the loop for a millisecond or more. The other way to use a
connection is ``codec`` with a ``stream.StreamLink``, which carries messages of Flux, in records.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from broker.errors import LinkClosed, LinkError
from broker.transport import byte_stream
from broker.transport.batching import Part
from broker.transport.byte_stream import ByteStream, Leaving
from broker.transport.zeromq.connection import Connection

log = logging.getLogger("headgate")
READ_BYTES: Final = 16 << 10
"""One read of a pipe that takes no turns: some dozens of messages."""
SHARE_BYTES: Final = 4 << 10
"""One read of a pipe that takes turns with others: some ten messages. The rest of a large part is read at once,
since nobody has to act on it yet.
"""
READS: Final = 2
"""Reads of those who wait, in a turn of the loop. Boxes are opened as they come, which takes longer than reading."""
WRITE_BYTES: Final = 256 << 10
"""Bytes encoded before they are written; a larger message is encoded whole."""


class Owner(Protocol):
    """The owner of a pipe; every method is called in the loop."""

    def received(self, messages: list[list[Part]]) -> None:
        """One read completed these, in order; large parts are views."""

    def room(self) -> None:
        """There is room again for ``add``."""

    def ended(self, error: LinkError) -> None:
        """The connection is over, and everything that came by it was handed over. Called once, and not for a close."""


class Turns:
    """Those who have sent more than one read takes wait here for the next one, in the order in which they were read.

    So a peer that sends little is read at once, however many others send without end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Pipe] = deque()
        self._planned = False

    def wait(self, pipe: Pipe) -> None:
        """``pipe`` is to be read on."""
        self._waiting.append(pipe)
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._take)

    def _take(self) -> None:
        for _ in range(READS):
            if self._waiting:
                pipe = self._waiting.popleft()
                try:
                    pipe.read_on()
                except Exception:  # the others must not pay for it
                    log.exception("%s: reading failed", pipe.address)
        self._planned = bool(self._waiting)
        if self._planned:
            self._loop.call_soon(self._take)


class Pipe(ByteStream[list[Part]]):
    """One connection.

    ``add`` and ``write`` may be called by another thread, too, while that of the loop is blocked; in the loop ``flush``
    follows then.

    Args:
        sock: as of ``ByteStream``.
        connection: one that is open; ``limit`` was called.
        address: for people.
        owner: is told.
        turns: those that it takes turns with; None: with nobody.

    Attributes:
        lock: is held while something is made and written, since boxes have numbers; a caller that has more to keep in
            order holds it, too.
        reads: how often something came. taken: bytes that the kernel took.
    """

    _codec: Connection

    def __init__(
        self,
        sock: socket.socket,
        connection: Connection,
        address: str,
        owner: Owner,
        turns: Turns | None = None,
    ) -> None:
        super().__init__(sock, address, connection)
        self.owner: Owner | None = owner
        self.ended: LinkError | None = None
        self.reads = self.taken = 0
        self.lock = threading.RLock()
        self._fresh: list[Sequence[Part]] = []
        self._size = 0
        self._turns = turns
        self._share = SHARE_BYTES if turns is not None else READ_BYTES
        self._waits = False

    @property
    def lost(self) -> LinkError | None:
        """None, or why nothing can be sent any more, though what came before is still handed over."""
        return self._lost

    # -- reading -------------------------------------------------------------------------------

    def resume(self) -> None:
        """See ``ByteStream``; one that waits for its turn has it later."""
        self._reading = True
        if not self._waits:
            super().resume()

    def read_on(self) -> None:
        """Its turn has come (``Turns``)."""
        self._waits = False
        if self._reading and self.ended is None:
            self._readable()
            if self._reading:
                self.resume()

    def _read_bytes(self) -> int:
        return max(self._share, min(self._codec.missing_bytes, byte_stream.READ_BYTES))

    def _deliver(self, data: bytes) -> None:
        self.reads += 1
        more = self._turns is not None and len(data) == self._read_bytes()
        super()._deliver(data)
        if self._turns is not None and more and self.ended is None:
            self._waits = True
            self._loop.remove_reader(self._sock.fileno())
            self._turns.wait(self)

    def hand_over(self, messages: list[list[Part]]) -> None:
        """See ``ByteStream``: to the owner."""
        if self.owner is not None:
            self.owner.received(messages)

    # -- writing -------------------------------------------------------------------------------

    @property
    def free(self) -> bool:
        """Whether ``add`` takes a message."""
        return not self._rest and self._is_open()

    def add(self, parts: Sequence[Part]) -> bool:
        """Take a message, to be written with the next ones. False: no room (``Owner.room`` tells of it), or no peer."""
        with self.lock:
            if not self.free:
                return False
            self._fresh.append(parts)
            self._size += sum(map(len, parts))
            if self._size >= WRITE_BYTES:
                self.write()
            return True

    @property
    def life(self) -> tuple[int, int]:
        """Changes with every sign of life: a read; or what the peer takes, where too much waits for a ping to leave."""
        return self.reads, 0 if self.free else self.taken

    def ping(self) -> None:
        """Ask the peer for a sign of life: ``life`` will tell."""
        if self.free:
            self._codec.ping()
        self.flush()

    def write(self) -> None:
        """Make what was added, and give it to the kernel as far as that takes it.

        What cannot be written is the rest, whatever the reason: the loop finds that when it tries again.
        """
        with self.lock:
            codec = self._codec
            if not self.free or not (self._fresh or codec.owed):
                return
            out: list[Part | bytearray] = [codec.take_owed()] if codec.owed else []
            for parts in self._fresh:
                codec.encode(parts, out)
            self._fresh, self._size = [], 0
            data = b"".join(out) if len(out) != 1 or isinstance(out[0], memoryview) else out[0]
            try:
                sent = self._sock.send(data)
            except OSError:
                sent = 0
            self.taken += sent
            self._rest = memoryview(data)[sent:] if sent < len(data) else b""

    def flush(self) -> None:
        """``write``, and the rest of it when the kernel takes more."""
        self.write()
        self._want_write(bool(self._rest))

    def _pay(self) -> None:
        self.flush()

    def _drain(self) -> None:
        with self.lock:
            sent = self._write_rest()
        if self._is_open():
            self.taken += sent
            if not self._rest and self.owner is not None:
                self.owner.room()
                self.flush()

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """End it. What was added follows, as far as the peer takes it; harmless twice."""
        with self.lock:
            self.write()
            if self._is_open():
                self._release()
                self._codec.forget()
                Leaving(self._loop, self._sock, self._rest, deque(), _nothing)
                self.finish(LinkClosed("closed"))
            else:
                self.abort()

    def abort(self, error: LinkError | None = None) -> None:
        """End it at once; harmless twice."""
        self._shut(error or LinkClosed("closed"))

    def _shut(self, error: LinkError) -> None:
        with self.lock:
            super()._shut(error)

    def finish(self, error: LinkError) -> None:
        """See ``ByteStream``."""
        self.ended = error
        self._fresh, self._rest = [], b""
        owner, self.owner = self.owner, None  # which has this pipe: a cycle else
        if owner is not None and not isinstance(error, LinkClosed):
            owner.ended(error)


def _nothing(_forms: deque[bytes]) -> bytes:
    return b""
