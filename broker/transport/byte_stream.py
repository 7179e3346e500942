"""One connected stream socket on the event loop: what comes by it, the rest of what it was given, and its end.

A subclass says what is written, and when: a ``stream.StreamLink`` from its outbox, a ``zeromq.pipe.Pipe`` what fits.
What the kernel does not take is the *rest*: it is sent before anything else, since bytes that were made (and sealed)
once cannot be made again.

When a link is closed, its peer gets what is left of it, and then the end (``Leaving``). Closing a socket of TCP at once
would lose what is on its way: where anything of the peer is unread, or still comes, the kernel answers with RST and
forgets what it has not sent. So the connection is ended in our direction, and kept until the peer ends its own, for a
bounded time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from broker.errors import LinkBroken, LinkEnded, LinkError, ProtocolError

log = logging.getLogger("headgate")

READ_BYTES: Final = 128 << 10
"""One read at most; half of what a batch may hold, so that one greedy peer costs the others one batch."""
_HUNG_UP: Final = (errno.EPIPE, errno.ECONNRESET)

Came = TypeVar("Came")

_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()
LOOK_S: Final = 0.25
"""How often it is looked at whether the peer still takes something."""
IDLE_S: Final = 1.0
"""A connection is kept for so long while the peer takes nothing and does not end it, where nobody says otherwise ..."""
LEAVE_S: Final = 10.0
"""... and never longer than this."""
_SKIPPED_BYTES: Final = 64 << 10


def _buffer() -> memoryview:
    """The receive buffer that all streams of this loop share: codecs keep only what is not complete."""
    loop = asyncio.get_running_loop()
    buffer = _buffers.get(loop)
    if buffer is None:
        buffer = _buffers[loop] = memoryview(bytearray(READ_BYTES))
    return buffer


class Reading(Protocol[Came]):
    """The interface of a stream's codec; see ``codec.Codec``, and ``zeromq.connection.Connection``, which is
    another.
    """

    @property
    def failure(self) -> ProtocolError | LinkError | None:
        """See ``Codec``."""

    @property
    def early(self) -> bool:
        """See ``Codec``."""

    @property
    def owed(self) -> object:
        """See ``Codec``."""

    def feed(self, data: bytes) -> list[Came]:
        """See ``Codec``."""

    def forget(self) -> None:
        """See ``Codec``."""


class ByteStream(ABC, Generic[Came]):
    """One socket, which does not block. It has no slots, since links have some of their own.

    Args:
        sock: is the stream's from here on.
        address: the peer's, for people.
        codec: makes messages of what comes.

    Attributes:
        ended: None, or why it is over.

    ``_rest`` are bytes that were made and not taken; ``_lost`` says why nothing can be sent any more, though what came
    before is still handed over.
    """

    ended: LinkError | None

    def __init__(self, sock: socket.socket, address: str, codec: Reading[Came]) -> None:
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._buffer = _buffer()
        self._codec = codec
        self._rest: bytes | memoryview = b""
        self._writing = self._reading = False
        self._early = codec.early
        self._lost: LinkError | None = None

    # -- reading -------------------------------------------------------------------------------

    def resume(self) -> None:
        """Read (again); harmless twice, as is ``pause``."""
        self._reading = True
        if self.ended is None:
            if self._early:
                self._loop.call_soon(self._feed_early)
            self._loop.add_reader(self._sock.fileno(), self._readable)

    def _feed_early(self) -> None:
        """What came before there was a link comes first."""
        if self._early and self._reading and self.ended is None:
            self._early = False
            self._deliver(b"")

    def pause(self) -> None:
        """Stop reading; the kernel's buffer fills and the peer blocks. Its end is not seen, either.

        Over TCP its system gives a connection up on which it could send nothing for ``dialing.Probing``.
        """
        if self.ended is None and self._lost is None:
            self._reading = False
            self._loop.remove_reader(self._sock.fileno())

    def _readable(self) -> None:
        buffer = self._buffer
        try:
            count = self._sock.recv_into(buffer, self._read_bytes())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            text = f"reading from {self.address}: {error.strerror}"
            hung_up = error.errno == errno.ECONNRESET
            self._shut(self._hung_up(text, error.errno) if hung_up else LinkBroken(text, error.errno))
            return
        if count == 0:
            self._shut(self._hung_up(f"{self.address} closed the connection"))
            return
        self._deliver(bytes(buffer[:count]))

    @abstractmethod
    def _read_bytes(self) -> int:
        """Bytes that one read may take; 0: as many as the buffer holds."""

    def _hung_up(self, text: str, number: int | None = None) -> LinkError:
        """The end that is meant when nothing more comes."""
        return self._lost or LinkEnded(text, number)

    def _deliver(self, data: bytes) -> None:
        codec = self._codec
        try:
            messages = codec.feed(data)
            if messages:
                self.hand_over(messages)
        except Exception:  # costs this link, no other
            log.exception("%s: its messages broke their receiver", self.address)
            self._fail()
        if self.ended is None:
            if codec.owed:
                self._pay()
            if codec.failure is not None:
                self._refuse(codec.failure)

    @abstractmethod
    def hand_over(self, messages: list[Came]) -> None:
        """One read completed these, in order; never empty."""

    @property
    def _is_heard(self) -> bool:
        """Whether there is a receiver that they can be handed to."""
        return True

    def _fail(self) -> None:
        """End for a fault of our own."""
        self._shut(LinkBroken(f"{self.address}: its messages broke their receiver"))

    def _refuse(self, failure: ProtocolError | LinkError) -> None:
        """End: the peer sent something that is no message, behind which nothing can be trusted, or its own last
        word.
        """
        self.flush()
        kind = type(failure) if isinstance(failure, LinkError) else LinkBroken
        self.abort(kind(f"{self.address}: {failure}", failure.errno))

    # -- writing -------------------------------------------------------------------------------

    @abstractmethod
    def flush(self) -> None:
        """Give the kernel what there is to send as far as it takes it; the rest follows when it takes more."""

    @abstractmethod
    def _pay(self) -> None:
        """Send what the codec owes by itself, unless something waits that it can go with."""

    @abstractmethod
    def _drain(self) -> None:
        """The kernel takes more."""

    def _write(self, data: bytes | bytearray | memoryview) -> int:
        """Bytes the kernel took. All, where the peer has hung up: it misses nothing, and what it sent comes first."""
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            text = f"writing to {self.address}: {error.strerror}"
            if error.errno not in _HUNG_UP:
                self._shut(LinkBroken(text, error.errno))
            else:
                self.lose(LinkEnded(text, error.errno))
            return len(data)

    def _write_rest(self) -> int:
        """Bytes of the rest that the kernel took; nothing is held of one that has left."""
        rest = self._rest
        sent = self._write(rest)
        self._rest = memoryview(rest)[sent:] if sent < len(rest) else b""
        return sent

    def _writable(self) -> None:
        try:
            self._drain()
        except Exception as error:  # else it would be called again and again
            log.exception("%s: cannot send", self.address)
            self._shut(LinkBroken(f"{self.address}: cannot send: {error!r}"))

    def _want_write(self, wanted: bool) -> None:
        if self.ended is not None:
            return
        if wanted and not self._writing:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        elif self._writing and not wanted:
            self._loop.remove_writer(self._sock.fileno())
        self._writing = wanted

    # -- the end -------------------------------------------------------------------------------

    @abstractmethod
    def finish(self, error: LinkError) -> None:
        """The connection is over: note it in ``ended``, and tell the receiver or owner. Called once."""

    def lose(self, error: LinkError) -> None:
        """The connection is over: what came by it is handed over, paused or not, then it ends with ``error``."""
        if self.ended is None and self._lost is None:
            self._want_write(False)
            self._lost = error
            if self._sock.family == socket.AF_UNIX:
                # a peer that shut down reading alone could write on and on, past every pause
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RD)
            if self._is_heard:
                self.resume()

    def _is_open(self) -> bool:
        return self.ended is None and self._lost is None

    def abort(self, error: LinkError) -> None:
        """End at once with ``error``."""
        self._shut(error)

    def _shut(self, error: LinkError) -> None:
        if self.ended is None:
            self._release()
            self._codec.forget()
            self._sock.close()
            self._rest = b""
            self.finish(error)

    def _release(self) -> None:
        """Watch the socket no more."""
        fd = self._sock.fileno()
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)


_leaving: WeakKeyDictionary[asyncio.AbstractEventLoop, set[Leaving]] = WeakKeyDictionary()


async def all_left(seconds: float) -> None:
    """Wait until the peers of all closed links have what is left, for so long at most: the loop is about to end."""
    left = [each.left for each in _leaving.get(asyncio.get_running_loop(), ())]
    if left:
        await asyncio.wait(left, timeout=seconds)


class Leaving:
    """Sends, reads and forgets what comes, and closes the socket.

    Args:
        sock: is owned by this from here on; nobody watches it.
        rest: bytes that come first.
        forms: what comes behind them; ``encode(forms)`` takes some of them and returns their bytes, b"" at the end.
        is_told: that says goodbye, and the peer ends the connection. We do not end it first: asyncio's TLS would forget
            what it has not read.
        is_answer: hears what comes; True: that was the peer's last word, and the connection ends when all has left.
        idle_s: see ``IDLE_S``.

    Attributes:
        left: resolves when it is over.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        rest: bytes | memoryview,
        forms: deque[Any],
        encode: Callable[[deque[Any]], bytes | bytearray],
        is_told: bool = False,
        is_answer: Callable[[bytes], bool] = lambda _data: False,
        idle_s: float = IDLE_S,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._rest = rest
        self._forms = forms
        self._encode = encode
        self._is_told = is_told
        self._is_answer = is_answer
        self._idle_max_s = idle_s
        self._is_over = self._moved = False
        self._idle_s = self._left_s = 0.0
        self.left: asyncio.Future[None] = loop.create_future()
        _leaving.setdefault(loop, set()).add(self)
        loop.add_reader(sock.fileno(), self._skip)
        loop.add_writer(sock.fileno(), self._send)
        self._timer = loop.call_later(LOOK_S, self._look)
        self._send()  # now: the process may leave

    def _send(self) -> None:
        try:
            # kept before anything is tried: it cannot be made again
            while self._rest or (piece := self._encode(self._forms)):
                self._rest = self._rest or memoryview(piece)
                self._rest = memoryview(self._rest)[self._sock.send(self._rest) :]
                self._moved = True
            self._loop.remove_writer(self._sock.fileno())
            if not self._is_told:
                self._sock.shutdown(socket.SHUT_WR)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the peer does not want the rest
            self._close()
            return
        if self._is_over or self._sock.family == socket.AF_UNIX:  # here nothing is lost by closing
            self._close()

    def _skip(self) -> None:
        try:
            data = self._sock.recv(_SKIPPED_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self._is_over = not data or self._is_answer(data)
        if self._is_over and (self._rest or self._forms):  # it sends no more, and may still read
            self._loop.remove_reader(self._sock.fileno())
        elif self._is_over:
            self._close()

    def _look(self) -> None:
        self._left_s += LOOK_S
        self._idle_s = 0.0 if self._moved else self._idle_s + LOOK_S
        self._moved = False
        if self._idle_s >= self._idle_max_s or self._left_s >= LEAVE_S:
            self._close()
        else:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _close(self) -> None:
        fd = self._sock.fileno()
        if fd >= 0:
            _leaving[self._loop].discard(self)
            if not self.left.done():
                self.left.set_result(None)
            self._timer.cancel()
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
            self._sock.close()
            self._forms.clear()
            self._rest = b""
