"""A service manager made of one datagram socket: what a process says to it, in order."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

PATIENCE_S = 40.0


class Manager:
    """Binds ``$NOTIFY_SOCKET``; use it as a context manager.

    Attributes:
        environ: what a process that it starts finds in its environment.
        heard: each datagram so far, as its lines.
    """

    def __init__(self, path: Path, watchdog_s: float | None = None) -> None:
        self.heard: list[list[str]] = []
        self.environ = {**os.environ, "NOTIFY_SOCKET": str(path)}
        if watchdog_s is not None:
            self.environ["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(str(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._sock.close()

    def hear(self, timeout: float) -> list[str] | None:
        """The next datagram; None when none comes."""
        self._sock.settimeout(max(timeout, 0.001))
        try:
            lines = self._sock.recv(65536).decode().splitlines()
        except TimeoutError:
            return None
        self.heard.append(lines)
        return lines

    def listen(self, seconds: float) -> list[list[str]]:
        """Everything that comes within ``seconds``."""
        began, until = len(self.heard), time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.hear(left)
        return self.heard[began:]

    def flush(self) -> None:
        """Take in what has come so far."""
        while self.hear(0) is not None:
            pass

    def wait(self, wanted: Callable[[list[str]], bool], timeout: float = PATIENCE_S) -> list[str]:
        """The next datagram that is ``wanted``."""
        until = time.monotonic() + timeout
        while (lines := self.hear(until - time.monotonic())) is not None:
            if wanted(lines):
                return lines
        raise AssertionError(f"nothing of that kind within {timeout} s; heard {self.heard[-5:]}")

    def wait_line(self, line: str, timeout: float = PATIENCE_S) -> list[str]:
        """The next datagram with this line."""
        return self.wait(lambda lines: line in lines, timeout)

    def wait_beats(self, count: int) -> None:
        """The next beats for the watchdog."""
        for _ in range(count):
            self.wait_line("WATCHDOG=1")

    @property
    def statuses(self) -> list[str]:
        """What was said after STATUS=, so far."""
        return [line[7:] for lines in self.heard for line in lines if line.startswith("STATUS=")]


@contextmanager
def manager(folder: Path, watchdog_s: float | None = None) -> Iterator[Manager]:
    """A manager whose socket is ``folder/notify``."""
    with Manager(folder / "notify", watchdog_s) as listening:
        yield listening
