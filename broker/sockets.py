"""What the kernel is told of sockets, and tells: who is at the other end of a UNIX socket, who listens on a port."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from struct import Struct
from typing import Final

_UCRED: Final = Struct("3i")
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


Address = tuple[str, int] | tuple[str, int, int, int]
"""Of TCP, as the kernel is told."""


def tcp_address(host: str, port: int) -> tuple[socket.AddressFamily, Address]:
    """The family of a host in numbers, and its address there; behind "%" stands the interface of a link-local one.

    Raises:
        OSError: there is no such interface.
    """
    host, _, scope = host.partition("%")
    if ":" not in host:
        return socket.AF_INET, (host, port)
    index = int(scope) if scope.isdigit() else socket.if_nametoindex(scope) if scope else 0
    return socket.AF_INET6, (host, port, 0, index)


def unix_address(path: str) -> str:
    """What the kernel is told: a path, or the name of an abstract socket, which begins with "@" in addresses."""
    return "\0" + path[1:] if path.startswith("@") else path
