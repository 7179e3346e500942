"""A Redis server of our own (Debian's ``redis-server``), in memory, on a free port of loopback."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.oslo import until
from tests.live.ports import free_port


@contextlib.contextmanager
def redis_server(folder: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """(process, port); without one the test is skipped, which CI does not accept."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server: deploy/test-setup.sh installs it on Debian")
    port = port or free_port()
    words = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(
        [*words, "--dir", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(7) == b"+PONG\r\n"
        return False

    try:
        until(answers, what="Redis")
        yield process, port
    finally:
        process.kill()
        process.wait()
