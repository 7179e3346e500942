"""The process that writes, seen from its master: a socket pair, the process behind it, one descriptor to watch.

Sockets and processes come and go with restarts; the descriptor that stands for them all does not (an epoll set, which
can be watched like any other descriptor).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
from collections.abc import Sequence
from typing import Final

from broker import interpreter
from broker.journal.marks import REPORT

SOCKET_BYTES: Final = 1 << 20
"""Asked of the kernel as send buffer; it grants what net.core.wmem_max allows."""
PIECES_MAX: Final = 512
"""Pieces that are sent without being joined first; the kernel takes at most 1024."""
READ_BYTES: Final = 4096


class Child:
    """One writer at a time. Belongs to one thread.

    Args:
        command: what is started; behind it come the number of the child's end of the pair, and that of the lock file
            that it inherits, if it does. Its options are its input.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._sock: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._epoll = select.epoll()
        self._heard = b""
        self._full = False

    @property
    def connected(self) -> bool:
        """There is a pair: what is sent may arrive."""
        return self._sock is not None

    @property
    def gone(self) -> bool:
        """There is no process, or it has ended."""
        return self._process is None or self._process.poll() is not None

    @property
    def pid(self) -> int:
        """Its process; 0 when there is none."""
        return 0 if self._process is None else self._process.pid

    def fileno(self) -> int:
        """Readable when it said something, and after ``watch(True)`` when it takes more."""
        return self._epoll.fileno()

    # -- beginning and end ---------------------------------------------------------------------

    def spawn(self, options: bytes, lock_fd: int = -1) -> None:
        """Start one, which inherits the lock file ``lock_fd`` (-1: it takes the lock itself); the former one has been
        reaped.

        Raises:
            OSError: no descriptor, no memory, no process.
        """
        inherited = [fd for fd in (lock_fd,) if fd >= 0]
        given = interpreter.order(options)
        try:
            ours, theirs = socket.socketpair()
        except BaseException:
            os.close(given)
            raise
        try:
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
            self._process = subprocess.Popen(
                [*self._command, str(theirs.fileno()), *map(str, inherited)],
                pass_fds=[theirs.fileno(), *inherited],
                stdin=given,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is ours to deal with: it ends when we do
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(given)
        self._sock = ours
        self._heard = b""
        self._full = False
        self._epoll.register(ours.fileno(), select.EPOLLIN)

    def hang_up(self) -> None:
        """Close our end, which ends it."""
        if self._sock is not None:
            self._epoll.unregister(self._sock.fileno())
            self._sock.close()
            self._sock = None

    def say_all(self) -> None:
        """Nothing more will come; what it says can still be heard."""
        if self._sock is not None:
            with contextlib.suppress(OSError):  # it is gone, or was told before
                self._sock.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """End its process, without waiting for that."""
        if self._process is not None:
            self._process.kill()

    def reap(self, timeout_s: float) -> int | None:
        """Wait for the end of its process: the exit code (0 when there was none), None when it goes on."""
        if self._process is None:
            return 0
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self._process = None
        return code

    def close(self) -> None:
        """Give the descriptor back."""
        self.hang_up()
        self._epoll.close()

    # -- bytes ---------------------------------------------------------------------------------

    def send(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Bytes that were taken, of all pieces together; 0 when the socket is full.

        Raises:
            OSError: the other end is closed.
        """
        if self._sock is None:
            return 0
        if len(pieces) > PIECES_MAX:
            pieces = [b"".join(pieces)]
        try:
            return self._sock.sendmsg(pieces)
        except (BlockingIOError, InterruptedError):
            return 0

    def reports(self) -> tuple[list[tuple[int, int, int, int]], bool]:
        """What it said since the last time (see ``marks.REPORT``), and whether its end is closed."""
        reports: list[tuple[int, int, int, int]] = []
        while self._sock is not None:
            try:
                received = self._sock.recv(READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return reports, False
            except OSError:
                received = b""
            if not received:
                return reports, True
            received = self._heard + received
            whole = len(received) - len(received) % REPORT.size
            self._heard = received[whole:]
            reports += REPORT.iter_unpack(received[:whole])
        return reports, False

    def watch(self, full: bool) -> None:
        """Have ``fileno`` become readable when the socket takes more, too, or no longer so."""
        if full != self._full and self._sock is not None:
            self._full = full
            self._epoll.modify(self._sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if full else 0))

    def until_writable(self, timeout_s: float) -> bool:
        """Wait until the socket takes more; False when it does not in time, or there is none."""
        return self._sock is not None and timeout_s > 0 and _ready(self._sock, select.POLLOUT, timeout_s)

    def until_readable(self, timeout_s: float) -> bool:
        """Wait until it said something or ended; False when it does not in time, or there is none."""
        return self._sock is not None and timeout_s > 0 and _ready(self._sock, select.POLLIN, timeout_s)


def _ready(sock: socket.socket, what: int, timeout_s: float) -> bool:
    poll = select.poll()  # select() would not take descriptors above 1023
    poll.register(sock, what)
    return bool(poll.poll(1000 * timeout_s))
