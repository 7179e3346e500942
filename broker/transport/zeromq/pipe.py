"""Messages, as lists of parts, over one open connection of ZMTP: for who keeps what waits in an outbox of its own.

A part is one box, made and opened whole: one of a MiB holds the loop for a millisecond or more. The other way to use a
connection is ``codec`` with a ``stream.StreamLink``, which carries messages of Flux, in records.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from broker.errors import LinkBroken, LinkEnded, LinkError
from broker.transport.batching import Part
from broker.transport.leaving import Leaving
from broker.transport.zeromq.connection import Connection
from broker.transport.zeromq.frames import COMMAND

log = logging.getLogger("headgate")
READ_BYTES: Final = 16 << 10
"""One read of a pipe that takes no turns: some dozens of messages."""
SHARE_BYTES: Final = 1 << 10
"""One read of a pipe that takes turns with others: two or three messages."""
LARGE_BYTES: Final = 128 << 10
"""One read at most: the rest of a large part is read, anyway, since nobody has to act on it yet."""
READS: Final = 2
"""Reads of those who wait, in a turn of the loop. Boxes are opened as they come, which takes longer than reading."""
WRITE_BYTES: Final = 256 << 10
"""What is made before it is written, but of a larger message, which is made whole."""
_PING: Final = b"\x04PING" + bytes(2)
"""Without time to live: nothing ends for want of another one."""


class Owner(Protocol):
    """Whose pipe it is; every method is called in the loop."""

    def received(self, messages: list[list[Part]]) -> None:
        """One read completed these, in order; large parts are views."""

    def room(self) -> None:
        """What ``add`` has found no room behind has left."""

    def ended(self, error: LinkError) -> None:
        """The connection is over, and everything that came by it was handed over. Called once, and not for a close."""


class Turns:
    """Those who have sent more than one read takes wait here for the next one, in the order in which they were read.

    So whoever sends little is read at once, however many there are who send without end.
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


class Pipe:
    """One connection.

    ``add`` and ``write`` may be called by another thread, too, while that of the loop is blocked; in the loop ``flush``
    follows then.

    Args:
        sock: is the pipe's from here on; it does not block.
        connection: one that is open; ``limit`` was called.
        address: for people.
        owner: is told.
        turns: those that it takes turns with; None: with nobody.

    Attributes:
        lock: is held while something is made and written, since boxes have numbers; whoever has more to keep in order
            holds it, too.
        lost: None, or why nothing can be sent any more, though what came before is still handed over.
        reads: how often something came. taken: bytes that the kernel took.
    """

    __slots__ = (
        "_connection",
        "_loop",
        "_out",
        "_over",
        "_reading",
        "_rest",
        "_share",
        "_size",
        "_sock",
        "_turns",
        "_waits",
        "_wanted",
        "_writing",
        "address",
        "lock",
        "lost",
        "owner",
        "reads",
        "taken",
    )

    def __init__(
        self,
        sock: socket.socket,
        connection: Connection,
        address: str,
        owner: Owner,
        turns: Turns | None = None,
    ) -> None:
        self.owner = owner
        self.address = address
        self.lost: LinkError | None = None
        self.reads = self.taken = 0
        self._sock = sock
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self.lock = threading.RLock()
        self._out: list[Part | bytearray] = []
        self._size = 0
        self._rest: Part = b""
        self._turns = turns
        self._share = SHARE_BYTES if turns is not None else READ_BYTES
        self._wanted = self._reading = self._waits = self._writing = self._over = False

    # -- reading -------------------------------------------------------------------------------

    def start(self) -> None:
        """Read; what came with the end of the handshake comes first."""
        self._loop.call_soon(self._feed, b"")
        self.resume()

    def resume(self) -> None:
        """Read again; harmless twice, as is ``pause``."""
        self._wanted = True
        self._watch()

    def pause(self) -> None:
        """Read no more for now: the kernel's buffers fill, and the peer has to wait. Its end is not seen, either."""
        self._wanted = False
        self._watch()

    def _watch(self) -> None:
        wanted = self._wanted and not self._waits
        if self._over or wanted is self._reading:
            return
        self._reading = wanted
        if wanted:
            self._loop.add_reader(self._sock.fileno(), self._readable)
        else:
            self._loop.remove_reader(self._sock.fileno())

    def read_on(self) -> None:
        """Its turn has come (``Turns``)."""
        self._waits = False
        if self._wanted and not self._over:
            self._readable()
        self._watch()

    def _readable(self) -> None:
        size = max(self._share, min(self._connection.missing_bytes, LARGE_BYTES))
        try:
            data = self._sock.recv(size)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(self.lost or _broken(f"reading from {self.address}", error))
            return
        if not data:
            self._end(self.lost or LinkEnded(f"{self.address} ended the connection"))
            return
        self.reads += 1
        self._feed(data)
        if self._turns is not None and len(data) == size and not self._over:
            self._waits = True
            self._watch()
            self._turns.wait(self)

    def _feed(self, data: bytes) -> None:
        if self._over:
            return
        connection = self._connection
        with self.lock:  # an answer to a ping is sealed here
            messages = connection.feed(data)
        if messages:
            try:
                self.owner.received(messages)
            except Exception:  # costs this connection, no other
                log.exception("%s: its messages broke their receiver", self.address)
                self._end(LinkBroken(f"{self.address}: its messages broke their receiver"))
        if connection.owed:
            self.flush()
        if connection.failure is not None:
            self._end(LinkBroken(f"{self.address}: {connection.failure}", connection.failure.errno))

    # -- writing -------------------------------------------------------------------------------

    @property
    def free(self) -> bool:
        """Whether ``add`` takes a message."""
        return not (self._rest or self._over or self.lost)

    def add(self, parts: Sequence[Part]) -> bool:
        """Make a message, to be written with the next ones. False: no room (``Owner.room`` tells of it), or no peer."""
        with self.lock:
            if not self.free:
                return False
            self._seal(0, parts)
            self._size += sum(map(len, parts))
            if self._size >= WRITE_BYTES:
                self.write()
            return True

    def _seal(self, flags: int, parts: Sequence[Part]) -> None:
        connection, out = self._connection, self._out
        if connection.owed:  # was made before, and comes before
            out.append(connection.take_owed())
        if flags:
            connection.frame(flags, parts, out)
        else:
            connection.encode(parts, out)

    @property
    def life(self) -> tuple[int, int]:
        """Changes with every sign of life: a read; or what the peer takes, where too much waits for a ping to leave."""
        return self.reads, 0 if self.free else self.taken

    def ping(self) -> None:
        """Ask the peer for a sign of life: ``life`` will tell."""
        with self.lock:
            if self.free:
                self._seal(COMMAND, (_PING,))
        self.flush()

    def write(self) -> None:
        """Give the kernel what was made, as far as it takes it."""
        with self.lock:
            if self._rest or self._over:
                return
            out = self._out
            if self._connection.owed:
                out.append(self._connection.take_owed())
            if out:
                data = b"".join(out) if len(out) != 1 or isinstance(out[0], memoryview) else out[0]
                out.clear()
                self._size = 0
                self._send(data)

    def flush(self) -> None:
        """``write``, and the rest of it when the kernel takes more."""
        self.write()
        self._await_room(bool(self._rest))

    def _send(self, data: Part | bytearray) -> None:
        """What the kernel does not take becomes the rest; nothing does where the peer has gone: it misses nothing."""
        sent = len(data)
        if self.lost is None:
            try:
                sent = self._sock.send(data)
                self.taken += sent
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self.lost = _broken(f"writing to {self.address}", error)
                with contextlib.suppress(OSError):  # what it sent comes first, and then its end
                    self._sock.shutdown(socket.SHUT_RD)
        self._rest = memoryview(data)[sent:] if sent < len(data) else b""

    def _writable(self) -> None:
        with self.lock:
            self._send(self._rest)
        if not self._rest:
            try:
                self.owner.room()
            except Exception:  # else it would be called again and again
                log.exception("%s: cannot send", self.address)
                self._end(LinkBroken(f"{self.address}: cannot send"))
            self.flush()

    def _await_room(self, wanted: bool) -> None:
        if self._over or wanted is self._writing:
            return
        self._writing = wanted
        if wanted:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        else:
            self._loop.remove_writer(self._sock.fileno())

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """End it. What was added follows, as far as the peer takes it; harmless twice."""
        with self.lock:
            self.write()
            if not self._over:
                rest = self._rest
                self._release()
                Leaving(self._loop, self._sock, rest, deque(), _nothing)

    def abort(self) -> None:
        """End it at once; harmless twice."""
        with self.lock:
            if not self._over:
                self._release()
                self._sock.close()

    def _end(self, error: LinkError) -> None:
        if not self._over:
            self.abort()
            self.owner.ended(error)

    def _release(self) -> None:
        self._over = True
        self._connection.forget()
        self._out, self._rest = [], b""
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())


def _broken(what: str, error: OSError) -> LinkError:
    kind = LinkEnded if error.errno in (errno.ECONNRESET, errno.EPIPE) else LinkBroken
    return kind(f"{what}: {error.strerror}", error.errno)


def _nothing(_forms: deque[bytes]) -> bytes:
    return b""
