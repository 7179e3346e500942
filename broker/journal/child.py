"""The processes of a journal, seen from the one that records: the writer (``Child``) and the shipper (``Shipment``).

The writer has a socket pair, which comes and goes with restarts. The descriptor that stands for all of them does not
(an epoll set, which can be watched like any other descriptor). The shipper ends by itself: a pipe is all that holds it,
and once that is closed it ships what the writer left.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import subprocess
import threading
from collections.abc import Sequence
from typing import Final

import msgspec

from broker import interpreter
from broker.endings import in_words
from broker.journal.marks import REPORT
from broker.journal.options import JournalOptions
from broker.secret import revealed

SOCKET_BYTES: Final = 1 << 20
"""Asked of the kernel as send buffer; it grants what net.core.wmem_max allows."""
PIECES_MAX: Final = 512
"""Pieces that are sent without being joined first; the kernel takes at most 1024."""
READ_BYTES: Final = 4096


class Child:
    """Owns one writer process at a time. Belongs to one thread.

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
        """Whether there is a socket pair, so that bytes sent may arrive."""
        return self._sock is not None

    @property
    def gone(self) -> bool:
        """Whether no process runs: none was started, or the last one has ended."""
        return self._process is None or self._process.poll() is not None

    @property
    def pid(self) -> int:
        """Process id of the writer; 0 when there is none."""
        return 0 if self._process is None else self._process.pid

    def fileno(self) -> int:
        """Becomes readable when the writer reported something, and after ``watch(True)`` when its socket takes more."""
        return self._epoll.fileno()

    # -- beginning and end ---------------------------------------------------------------------

    def spawn(self, options: bytes, lock_fd: int = -1) -> None:
        """Start a writer, which inherits the lock file ``lock_fd`` (-1: it takes the lock itself).

        The former one must have been reaped.

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
        """Close our end of the pair, which makes the writer end."""
        if self._sock is not None:
            self._epoll.unregister(self._sock.fileno())
            self._sock.close()
            self._sock = None

    def say_all(self) -> None:
        """Shut down our sending side; reports of the writer can still be read."""
        if self._sock is not None:
            with contextlib.suppress(OSError):  # it is gone, or was told before
                self._sock.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Send SIGKILL to the writer, without waiting for its end."""
        if self._process is not None:
            self._process.kill()

    def reap(self, timeout_s: float) -> int | None:
        """Wait for the writer's end; returns its exit code (0 when there was no process), None when it still runs."""
        if self._process is None:
            return 0
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self._process = None
        return code

    def close(self) -> None:
        """Close the pair and the descriptor."""
        self.hang_up()
        self._epoll.close()

    # -- bytes ---------------------------------------------------------------------------------

    def send(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Send what the socket takes; returns how many bytes of all pieces that was, 0 when it is full.

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
        """Read the reports (``marks.REPORT``) that have come since the last call.

        The second value: the writer's end of the pair is closed.
        """
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
        """With ``full`` let ``fileno`` become readable when the socket takes more, too; without, no longer."""
        if full != self._full and self._sock is not None:
            self._full = full
            self._epoll.modify(self._sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if full else 0))

    def until_writable(self, timeout_s: float) -> bool:
        """Wait until the socket takes more; False after ``timeout_s``, or without a socket."""
        return self._sock is not None and timeout_s > 0 and _ready(self._sock, select.POLLOUT, timeout_s)

    def until_readable(self, timeout_s: float) -> bool:
        """Wait until the writer reported something or ended; False after ``timeout_s``, or without a socket."""
        return self._sock is not None and timeout_s > 0 and _ready(self._sock, select.POLLIN, timeout_s)


def _ready(sock: socket.socket, what: int, timeout_s: float) -> bool:
    poll = select.poll()  # select() would not take descriptors above 1023
    poll.register(sock, what)
    return bool(poll.poll(1000 * timeout_s))


log = logging.getLogger("headgate")

SHIPPER: Final = interpreter.command("broker.journal.shipping")
"""The command; its options, with the URL that may have a key in it, are the first line of its input."""
RETRY_S: Final = 60.0
"""How long after its end another one is started."""


class Shipment:
    """One shipper, for as long as its journal is recorded.

    Args:
        options: of the writer; ``ship_to`` says where to.
        command: what is started instead of ``SHIPPER``.
    """

    def __init__(self, options: JournalOptions, command: Sequence[str] = SHIPPER) -> None:
        self._command = command
        self._told = msgspec.json.encode(options, enc_hook=revealed) + b"\n"
        self._leaving = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="journal shipment", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._leaving.is_set():
            try:
                with self._lock:
                    self._process = self._spawn()
                    self._tell(self._process)
                how = f"with {in_words(self._process.wait())}"
                self._hang_up()
            except OSError as error:
                how = f"({error.strerror})"
            if not self._leaving.is_set():
                log.error("journal: the process that ships ended %s; another one in %g s", how, RETRY_S)
                self._leaving.wait(RETRY_S)

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not for it: what is left is shipped then
        )

    def _tell(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended at once: its code is told
            process.stdin.write(self._told)
            process.stdin.flush()

    def close(self) -> None:
        """Let it ship what is left and end; does not wait for that."""
        self._leaving.set()
        self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()
