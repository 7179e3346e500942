"""One ZeroMQ socket on a reactor: read in turns with a budget, written through a bounded outbox.

What libzmq does not take at once waits in the outbox, in order, counted in messages and bytes; what does not fit there
is refused to the sender, who knows best what to do with it. A ROUTER has an outbox for each peer (``router``).

Frames are copied into libzmq: sending them without a copy needs a thread of pyzmq's own, which eventlet makes green.
"""

# compiled: mypyc

from __future__ import annotations

import errno
import itertools
import struct
from collections import deque
from collections.abc import Callable, Sequence, Sized
from enum import IntEnum
from typing import Any, Final

import zmq

from broker.oslo.reactor.bundle import FRAMES_MAX, unpack
from broker.oslo.reactor.loop import Reactor, Timer

__all__ = ["Frames", "Outcome", "Receive", "Socket", "SocketEvents"]

DRAIN_MSGS: Final = 64
"""Messages read in one turn, so that other sockets get theirs."""
# read where it is used, not folded by the compiler: tests change it
DRAIN_BYTES: int = 8 << 20
"""The same in bytes: copying as much takes some milliseconds."""
FLUSH_MSGS: Final = 256
"""Messages that waited and are sent in one turn, of one peer."""
RETRY_S: Final = 0.01
"""While something waits for room it is tried again after so long: the news of room may have been swallowed."""
RETRY_MAX_S: Final = 0.25
"""After twice as long each time, up to this, where the socket tells room by POLLOUT: asking a hundred times a second
for a peer that is away took two percent of a processor. Its return is seen at once all the same."""
_TELL_ROOM: Final = (zmq.DEALER, zmq.PUSH)
"""Sockets whose POLLOUT is there exactly when one more message finds room."""
NO_BUNDLE: Final = b"no bundle: "
"""Stands before the first frame of what should have been a bundle."""
# read where it is used, not folded by the compiler: tests change it
SKIPPED_FRAMES: int = 4096
"""Frames beyond those that are kept which are read in one go: two bytes on the wire make an empty one."""
OUTBOX_MSGS: Final = 10_000
OUTBOX_BYTES: Final = 64 << 20
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)
_POLLOUT: Final = int(zmq.POLLOUT)
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.SNDMORE | zmq.NOBLOCK)


Frames = Sequence[bytes]

MESSAGE_COST: Final = 256
"""Bytes that a waiting message costs beside its frames, about: small ones are not to be had for nothing."""


class Tally:
    """What several outboxes hold together, in bytes, ``MESSAGE_COST`` counted in."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Outbox:
    """A queue of messages that knows its size.

    Args:
        tally: shared with other outboxes; None none.

    Attributes:
        bytes: of all frames.
        entries: messages with their bytes, oldest first.
    """

    __slots__ = ("_tally", "bytes", "entries")

    def __init__(self, tally: Tally | None = None) -> None:
        self.bytes = 0
        self.entries: deque[tuple[Frames, int]] = deque()
        self._tally = Tally() if tally is None else tally

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def head(self) -> Frames:
        """The oldest message; there has to be one."""
        return self.entries[0][0]

    @property
    def cost(self) -> int:
        """Bytes that it holds, ``MESSAGE_COST`` counted in."""
        return self.bytes + MESSAGE_COST * len(self.entries)

    def has_room(self, msgs_max: int, bytes_max: int) -> bool:
        """True when one more message may wait here: the one that makes it full may be of any size."""
        return not self.entries or (len(self.entries) < msgs_max and self.bytes < bytes_max)

    def put(self, frames: Frames, size: int) -> None:
        """Add a message whose frames have ``size`` bytes."""
        self.entries.append((frames, size))
        self._count(size, 1)

    def pop(self) -> Frames:
        """Take the oldest one out."""
        frames, size = self.entries.popleft()
        self._count(-size, -1)
        return frames

    def sift(self, take: Callable[[Frames], bool]) -> list[Frames]:
        """Take out what ``take`` says, oldest first; the rest keeps its order."""
        taken: list[Frames] = []
        for _ in range(len(self.entries)):
            frames, size = self.entries.popleft()
            if take(frames):
                taken.append(frames)
                self._count(-size, -1)
            else:
                self.entries.append((frames, size))
        return taken

    def _count(self, size: int, messages: int) -> None:
        self.bytes += size
        self._tally.bytes += size + messages * MESSAGE_COST


Receive = Callable[[list[bytes], str], None]
"""Takes the frames of one message and its origin: the property of its connection that the socket was told to read."""


class Outcome(IntEnum):
    """What became of a message; the positive ones are accepted."""

    GONE = -1
    """No such peer (ROUTER only)."""
    FULL = 0
    """Nowhere to put it."""
    QUEUED = 1
    SENT = 2


class Socket:
    """A socket that belongs to a reactor's thread.

    Whoever does something else with ``sock``, libzmq's, than this class does (connects it further, subscribes) has to
    call ``Reactor.check_after_turn`` in the same turn, also when libzmq refuses it: it may have taken the news of a
    message in on that occasion, and does not tell it again.

    Args:
        reactor: whose.
        sock: bound or connected by the caller; closed by ``close``.
        receive: called for each message; None: nothing is read. What it raises is reported and costs that message.
        origin: property of the connection that ``receive`` is given, such as ``Peer-Address`` or ``User-Id``; "" none.
        outbox_msgs: messages that may wait.
        outbox_bytes: bytes that may wait; the message that makes it full still fits.

    Attributes:
        sent, received: messages.
        sent_bytes, received_bytes: their frames, apart from each other.
        refused: messages that found no room.
        flushed: called with each message that waited and has now been given to libzmq.
        stale: asked before a message that waited is sent; True drops it, and whoever answers counts it.
        tap: called with each message that was given to libzmq; what it raises is reported. None: nobody records them.
    """

    # an instance dictionary is quick for 30 attributes at most, and what is made of this class has more
    __slots__ = (
        "_bundled", "_bytes_max", "_fd", "_most", "_msgs_max", "_origin", "_outbox", "_patience_s", "_paused",
        "_queue", "_reactor", "_receive", "_recv", "_retry", "_send", "_skipping", "_tells_room", "closed",
        "flushed", "received", "received_bytes", "refused", "sent", "sent_bytes", "sock", "stale",
        "tap",
    )  # fmt: skip

    def __init__(
        self,
        reactor: Reactor,
        sock: zmq.Socket[bytes],
        receive: Receive | None = None,
        *,
        origin: str = "",
        outbox_msgs: int = OUTBOX_MSGS,
        outbox_bytes: int = OUTBOX_BYTES,
    ) -> None:
        self.sock = sock
        self.sent = self.received = self.sent_bytes = self.received_bytes = self.refused = 0
        self.flushed: Callable[[Frames], None] | None = None
        self.stale: Callable[[Frames], bool] | None = None
        self.tap: Callable[[Frames], None] | None = None
        self.closed = False
        self._reactor = reactor
        self._receive = receive
        # without pyzmq's check for draft sockets, a call for each frame
        self._send: Any = super(zmq.Socket, sock).send
        self._recv: Any = super(zmq.Socket, sock).recv
        self._origin = origin
        self._skipping = False
        self._bundled = sock.type == zmq.DEALER
        self._most = 1 if self._bundled else FRAMES_MAX
        self._outbox = Outbox()
        self._queue: Sized = self._outbox.entries
        """Empty when nothing waits."""
        self._msgs_max = outbox_msgs
        self._bytes_max = outbox_bytes
        self._paused = False
        self._retry: Timer | None = None
        self._patience_s = RETRY_S
        self._tells_room = sock.type in _TELL_ROOM
        self._fd = int(sock.get(zmq.FD))
        reactor.add_reader(self._fd, self.look)
        reactor.check_after_turn(self)

    # ------------------------------------------------------------ writing

    @property
    def waiting(self) -> int:
        """Messages in the outbox."""
        return len(self._outbox)

    def send(self, frames: Frames) -> Outcome:
        """Send one message, or let it wait behind those that do; see ``Outcome``."""
        if self.closed:
            return self._full()
        if not self._queue:
            self._reactor.check_after_turn(self)
            if self._write(frames):
                return Outcome.SENT
        size = sum(map(len, frames))
        if not self._outbox.has_room(self._msgs_max, self._bytes_max):
            return self._full()
        if not self._outbox:
            self._stalls()
        self._outbox.put(frames, size)
        self._try_later()
        return Outcome.QUEUED

    def sift_all(self, take: Callable[[Frames], bool]) -> list[Frames]:
        """Take back what waits and fits ``take``, oldest first; the rest keeps its order."""
        return self._outbox.sift(take)

    def take_back(self) -> list[Frames]:
        """Empty the outbox: what was never given to libzmq, oldest first."""
        return self.sift_all(lambda _frames: True)

    def _full(self) -> Outcome:
        self.refused += 1
        return Outcome.FULL

    def _write(self, frames: Frames) -> bool:
        """False: there is no room, and nothing of it was sent. The socket has to be looked at afterwards."""
        send = self._send
        last = len(frames) - 1
        at = size = 0
        try:
            for at, frame in enumerate(frames):
                size += len(frame)
                send(frame, _MORE if at < last else _NOBLOCK)
        except zmq.Again:
            # room is only asked for at the first frame; later it means that the connection ended in between: libzmq
            # has dropped the frames before, and drops those behind, which it wants to see all the same
            if 0 < at < last:
                for later in range(at + 1, last + 1):
                    send(frames[later], _MORE if later < last else _NOBLOCK)
            return False
        self._patience_s = RETRY_S
        self.sent += 1
        self.sent_bytes += size
        if self.tap is not None:
            self._show(self.tap, frames)
        return True

    def _show(self, tap: Callable[[Frames], None], frames: Frames) -> None:
        """It was sent, whatever ``tap`` raises: or it would wait, or be its sender's, and be sent again."""
        try:
            tap(frames)
        except Exception as error:
            self._reactor.report(error)

    def _flush(self) -> None:
        """Send what waits, up to a budget."""
        if not self._flush_box(self._outbox):
            self._try_later()

    def _flush_box(self, outbox: Outbox) -> bool:
        """False while something is left in it."""
        for _ in range(min(len(outbox), FLUSH_MSGS)):
            if self.stale is not None and self.stale(outbox.head):
                outbox.pop()
                continue
            if not self._write(outbox.head):
                return False
            frames = outbox.pop()
            if self.flushed is not None:
                self.flushed(frames)
                if self.closed or not outbox:
                    break
        if outbox and not self.closed:
            self._reactor.check_after_turn(self)  # the budget is used up
        return not outbox

    def _try_later(self) -> None:
        if self._retry is None and not self.closed:
            self._retry = self._reactor.call_later(self._patience_s, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        if self._tells_room:
            self._patience_s = min(2 * self._patience_s, RETRY_MAX_S)
        self.look()

    def _stalls(self) -> None:
        """Something begins to wait: it is tried again soon, however long others have waited already."""
        self._patience_s = RETRY_S
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    # ------------------------------------------------------------ reading

    @property
    def paused(self) -> bool:
        """True while nothing is read: what comes waits in libzmq and at the peers."""
        return self._paused

    @paused.setter
    def paused(self, value: bool) -> None:
        self._paused = value
        if not value:
            self._reactor.check_after_turn(self)

    def look(self) -> None:
        """Flush what waits, read what is there, up to the budgets."""
        if self.closed:
            return
        readable = self._readable()
        if self._queue:
            self._flush()
            readable = self._readable()
        if self._receive is None or self._paused or not readable:
            return
        self._drain(self._receive)
        if self._queue:
            self._reactor.check_after_turn(self)  # reading may have taken in the news of room

    def _readable(self) -> bool:
        """Takes the news in, of room as well; the descriptor is quiet then."""
        if self.closed:
            return False
        events = int(self.sock.get(_EVENTS))
        if self._tells_room and events & _POLLOUT and self._queue:
            self._reactor.check_after_turn(self)
        return bool(events & _POLLIN)

    def _drain(self, receive: Receive) -> None:
        size = 0
        for turn in range(DRAIN_MSGS):
            try:
                if self._skipping and not self._skip_rest():
                    break
                frames, origin = self._read()
            except zmq.Again:
                return
            except zmq.ZMQError as error:
                if error.errno in (errno.EINTR, errno.EPROTO):
                    continue
                raise
            came = sum(map(len, frames))
            self.received += 1
            self.received_bytes += came
            size += came
            try:
                receive(frames, origin)
            except Exception as error:
                self._reactor.report(error)
            if self.closed or self._paused:
                return
            if size > DRAIN_BYTES:
                break
            if turn == 0 and not self._readable():
                return  # asking costs a third of being told so by an exception; in a burst it is not worth it
        self._reactor.check_after_turn(self)

    def _read(self) -> tuple[list[bytes], str]:
        """The frames of the next message, and its origin; of too many the first ``FRAMES_MAX``.

        A DEALER is sent bundles (``bundle``, which says why). What is none came from a wrong peer; it is handed on as
        one frame that no receiver can take for anything but malformed, so that each counts and logs it as other
        nonsense.

        Raises:
            zmq.Again: there is none.
        """
        recv = self._recv
        frame = recv(_NOBLOCK, False)
        origin = ""
        if self._origin:
            try:
                origin = str(frame.get(self._origin))
            except zmq.ZMQError:
                origin = ""  # a connection without it
        frames = [frame.bytes]
        while frame.more:
            if len(frames) == self._most:
                self._skipping = True
                break
            frame = recv(_NOBLOCK, False)
            frames.append(frame.bytes)
        if not self._bundled:
            return frames, origin
        if not self._skipping:  # several frames are no bundle, whatever the first one is
            try:
                return unpack(frames[0]), origin
            except ValueError:
                pass
        return [NO_BUNDLE + frames[0]], origin

    def _skip_rest(self) -> bool:
        """False: the rest of the last message is still being dropped; ask again in the next turn."""
        for _ in range(SKIPPED_FRAMES):
            if not self._recv(_NOBLOCK, False).more:
                self._skipping = False
                return True
        return False

    # ------------------------------------------------------------ end

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket; libzmq goes on sending what it was given for ``linger_ms``. Harmless twice.

        What waits in the outbox stays there, for ``take_back``.
        """
        if self.closed:
            return
        self.closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._reactor.remove_reader(self._fd)
        self._reactor.forget(self)
        self.sock.close(linger_ms)


_EVENT: Final = struct.Struct("=HI")
_numbers = itertools.count(1)


class SocketEvents:
    """Tells what happens to the connections of ``sock``, from before it is bound or connected until ``close``.

    Args:
        reactor: whose thread; open.
        sock: the socket; it has one monitor.
        events: bits of ``zmq.EVENT_*``.
        on_event: takes the event and its value: a descriptor, in most cases.
    """

    def __init__(
        self, reactor: Reactor, sock: zmq.Socket[bytes], events: int, on_event: Callable[[int, int], None]
    ) -> None:
        assert reactor.context is not None
        self._sock = sock
        self._on_event = on_event
        where = f"inproc://headgate.events-{next(_numbers)}"
        sock.monitor(where, events)
        news: zmq.Socket[bytes] = reactor.context.socket(zmq.PAIR)
        news.set(zmq.RCVHWM, 0)  # or libzmq's own thread would wait for us
        news.set(zmq.LINGER, 0)
        self._news = Socket(reactor, news, self._on_monitor_message)
        news.connect(where)
        reactor.check_after_turn(self._news)

    @property
    def closed(self) -> bool:
        """Whether it has ended, or was closed."""
        return self._news.closed

    def _on_monitor_message(self, frames: list[bytes], _origin: str) -> None:
        if len(frames[0]) == _EVENT.size:
            self._on_event(*_EVENT.unpack(frames[0]))

    def close(self) -> None:
        """Watch no longer. Harmless twice, and after the end of the socket."""
        if not self._news.closed:
            if not self._sock.closed:
                self._sock.disable_monitor()
            self._news.close()
