"""A standard error, or output, that nobody waits for: a full pipe or a stopped terminal holds up its lines alone.

What is written goes to the descriptor at once, as far as the kernel takes it without waiting (``_Descriptor``). The
rest goes into a bounded queue, and a thread that is there only while the reader is behind writes that. What finds the
queue full is dropped and counted; once everything before it has been read, one line tells how much that was. Whatever
else the process prints to ``sys.stderr`` takes the same way, so that its order is kept.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import errno
import io
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, TextIO

QUEUE_BYTES: Final = 256 * 1024
"""What waits for a reader at most: some two thousand lines."""
WRITE_BYTES: Final = 4096
"""Lines that are written at once, and in one piece: PIPE_BUF, for processes share a pipe."""
FLUSH_S: Final = 1.0
"""How long a flush waits for a reader. The next one does not wait, unless something was read meanwhile."""


class Outlet(io.TextIOBase):
    """What stands in the place of ``sys.stderr``.

    Args:
        stream: it goes on with this one's descriptor; nothing else may write to the stream from now on.

    Attributes:
        told_of: makes the line about so many lines that were dropped.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        stream.flush()
        self.told_of: Callable[[int], str] = "{} lines were dropped here: nobody read them\n".format
        self._stream = stream
        self._fd = _Descriptor(stream.fileno())
        self._encoding = stream.encoding
        self._ended = False
        self._begin()
        atexit.register(self._end)
        # a fork takes no thread along, and what is in the queue is the parent's to write
        outlet = weakref.ref(self)
        os.register_at_fork(
            before=lambda: _each(outlet, Outlet.flush), after_in_child=lambda: _each(outlet, Outlet._begin)
        )

    def _begin(self) -> None:
        self._fd.forget()
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._part = ""
        self._busy = False
        self._full = False
        self._unread = False
        self._dropped = 0

    # -- as a stream ---------------------------------------------------------------------------

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the stream whose place it took."""
        return self._encoding

    def fileno(self) -> int:
        """The descriptor that is written to."""
        return self._fd.number

    def isatty(self) -> bool:
        """Whether that is a terminal."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Take ``text``; its last line waits here until it is whole, or flushed. Never blocks."""
        with self._changed:
            self._part += text
            if "\n" in text or "\r" in text:
                self._put()
        return len(text)

    def flush(self) -> None:
        """Wait until everything has been written, ``FLUSH_S`` at most, and not at all while nobody reads."""
        with self._changed:
            self._put()
            if self._unread:
                return
            until = time.monotonic() + FLUSH_S
            while self._busy and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            self._unread = self._busy

    def __getattr__(self, name: str) -> Any:
        """Whatever else a text stream has, such as ``buffer`` and ``reconfigure``: that of the stream itself."""
        return getattr(self.__dict__["_stream"], name)

    # -- the queue -----------------------------------------------------------------------------

    def _put(self) -> None:
        text, self._part = self._part, ""
        if not text:
            return
        data = text.encode(self._encoding, "backslashreplace")
        if not self._busy:
            told = self.told_of(self._dropped).encode(self._encoding) if self._dropped else b""
            try:
                written = self._fd.write_now(told + data)
            except OSError:  # the reader has gone, the disk is full: there may be room for later lines
                self._dropped += _lines_in(data)
                return
            if written:
                self._unread, self._dropped = False, 0
                data = (told + data)[written:]
            if not data:
                return
        if self._full or self._bytes + len(data) > QUEUE_BYTES:
            self._full = True
            self._dropped += _lines_in(data)
        else:
            self._queue.append(data)
            self._bytes += len(data)
        if not self._busy:
            self._busy = True
            self._start()

    def _start(self) -> None:
        """Have a thread write; where there can be none any more, at the end of the process, write here."""
        # the new thread inherits the mask: signals are for other threads to take
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            if not self._ended:
                _thread.start_new_thread(self._write_out, ())
                return
        except RuntimeError:  # the system has no more of them, or the interpreter ends
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self._write_out()

    def _write_out(self) -> None:
        failed = False
        while True:
            with self._changed:
                told = 0
                if self._dropped and not failed and not (self._full and self._queue):
                    told, self._dropped, self._full = self._dropped, 0, False
                    data = self.told_of(told).encode(self._encoding, "backslashreplace")
                elif self._queue:
                    data = self._take()
                else:
                    self._busy = self._full = False
                    self._changed.notify_all()
                    return
            try:
                self._fd.write(data)
            except OSError:
                failed = True
                with self._changed:
                    self._dropped += told or _lines_in(data)
            else:
                self._unread = False

    def _take(self) -> bytes:
        taken = [self._queue.popleft()]
        size = len(taken[0])
        while self._queue and size + len(self._queue[0]) <= WRITE_BYTES:
            taken.append(self._queue.popleft())
            size += len(taken[-1])
        self._bytes -= size
        return b"".join(taken)

    def _end(self) -> None:
        """The process ends: from now on there are no threads."""
        self.flush()
        self._ended = not self._busy


def take_over(name: Literal["stdout", "stderr"], told_of: Callable[[int], str] | None = None) -> Any:
    """Put an outlet in the place of a stream of ``sys``, where that is the process's own and not a test's; returns what
    is there now. ``told_of``: see ``Outlet``.
    """
    there: Any = getattr(sys, name)
    if there is not None and there is getattr(sys, f"__{name}__"):
        with contextlib.suppress(OSError, ValueError):  # closed, or no file
            setattr(sys, name, there := Outlet(there))
    if told_of is not None and isinstance(there, Outlet):
        there.told_of = told_of
    return there


def _each(outlet: weakref.ref[Outlet], do: Callable[[Outlet], None]) -> None:
    if (there := outlet()) is not None:
        do(there)


def _lines_in(data: bytes) -> int:
    return max(1, data.count(b"\n"))


class _Descriptor:
    """A descriptor that others share: O_NONBLOCK is not ours to set on it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._own: int | socket.socket | None = None
        self._write_now: Callable[[bytes], int] | None = None

    def forget(self) -> None:
        """After a fork: our own way to where the descriptor leads would keep its reader waiting for the end."""
        if isinstance(self._own, int):
            os.close(self._own)
        elif self._own is not None:
            self._own.close()
        self._own = self._write_now = None

    def write_now(self, data: bytes) -> int:
        """Write as much of ``data`` as is taken without waiting; OSError when it cannot be written."""
        if self._write_now is None:
            self._write_now = self._find_way()
        try:
            return self._write_now(data)
        except BlockingIOError:
            return 0

    def _find_way(self) -> Callable[[bytes], int]:
        try:
            kind = os.fstat(self.number).st_mode
            if stat.S_ISREG(kind):
                return partial(os.write, self.number)
            if stat.S_ISSOCK(kind):
                self._own = own = socket.socket(fileno=os.dup(self.number))
                return lambda data: own.send(data, socket.MSG_DONTWAIT)
            # the same pipe or terminal, opened once more
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            self._own = os.open(f"/proc/self/fd/{self.number}", flags)
            return partial(os.write, self._own)
        except OSError:  # another user's: every line takes a thread
            return lambda _data: 0

    def write(self, data: bytes) -> None:
        """Write all of ``data``, however long that takes; OSError when it cannot be written."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.number, view) :]
            except OSError as error:
                if error.errno != errno.EAGAIN:  # whoever shares the descriptor made it so
                    raise
                poll = select.poll()
                poll.register(self.number, select.POLLOUT)
                poll.poll()
