"""What the kernel tells of sockets, who is at the other end of a UNIX socket and who listens on a TCP port; files of
sockets that nobody listens at any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

_UCRED: Final = Struct("3i")
CONNECT_RETRY_S: Final = 0.01
"""Pause before another try to join a full queue."""
_LISTEN: Final = "0A"
"""TCP_LISTEN in the kernel's tables."""


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Process, user and group that listen, or have connected, at the other end of a UNIX socket (SO_PEERCRED).

    Raises:
        OSError: it has gone.
    """
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid


def tcp_listeners(port: int) -> Iterator[tuple[str, str]]:
    """Address and inode of each socket of this machine that listens on ``port``; none where /proc is not there."""
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(OSError), open(f"/proc/net/{name}", encoding="ascii") as table:
            for words in map(str.split, list(table)[1:]):
                text, _, there = words[1].partition(":")
                if words[3] == _LISTEN and int(there, 16) == port:
                    numbers = (int(text[at : at + 8], 16) for at in range(0, len(text), 8))
                    packed = b"".join(number.to_bytes(4, sys.byteorder) for number in numbers)
                    yield socket.inet_ntop(family, packed), words[9]


async def connect_unix(connect: Callable[[], object]) -> None:
    """Call ``connect``, which connects a UNIX socket, until whoever listens has room: a full queue fails at once.

    Raises:
        OSError: as of ``connect``, but for EAGAIN.
    """
    while True:
        try:
            connect()
        except BlockingIOError:
            await asyncio.sleep(CONNECT_RETRY_S)
        else:
            return


def remove_stale(path: str) -> None:
    """Unlink a socket file that refuses connections; leave anything else for bind to complain about."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except OSError:
        return
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                os.unlink(path)
        except OSError:
            return
