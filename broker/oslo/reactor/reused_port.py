"""One TCP port, several sockets after each other: new CURVE keys for a listener of libzmq.

libzmq copies the keys of a socket when it binds, and ends every connection of what is unbound. So new keys need a
second socket that listens at the same address, and the first lives on, with nobody new coming to it. SO_REUSEPORT lets
it listen there, and a program at the group of the two sends each new connection to the newest (Linux 4.5; needs no
privilege). The option is set when that happens and not before: what is started twice by mistake still finds its address
in use.
"""

from __future__ import annotations

import os
import socket
from array import array
from struct import Struct
from typing import Final

from broker.errors import ConfigError

BACKLOG: Final = 100
"""What libzmq uses."""
_ATTACH_REUSEPORT_CBPF: Final = 51
"""SO_ATTACH_REUSEPORT_CBPF of asm-generic/socket.h; Python does not name it."""
_INSTRUCTION: Final = Struct("=HBBI")
"""``struct sock_filter``: code, jt, jf, k."""
_RETURN_K: Final = 0x06
_PROGRAM: Final = Struct("@HP")
"""``struct sock_fprog``: how many instructions, and where."""


class ReusedPort:
    """The sockets that listen at one port, none of which is closed before the others; the newest gets what comes."""

    def __init__(self) -> None:
        self._group: list[int] = []

    def open(self) -> int:
        """One more socket that listens there, for libzmq to use.

        Raises:
            ConfigError: the port cannot be used a second time.
        """
        try:
            with _same(self._group[-1]) as former:
                former.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                return _beside(former)
        except OSError as error:
            raise ConfigError(f"cannot listen a second time: {error.strerror}", error.errno) from error

    def take(self, fd: int) -> None:
        """``fd``, which libzmq listens at now, gets every new connection.

        Raises:
            ConfigError: the kernel has no such thing: the former one still gets some, or all.
        """
        self._group.append(fd)
        if len(self._group) == 1:
            return
        instruction = array("B", _INSTRUCTION.pack(_RETURN_K, 0, 0, len(self._group) - 1))
        program = _PROGRAM.pack(1, instruction.buffer_info()[0])
        try:
            with _same(fd) as newest:
                newest.setsockopt(socket.SOL_SOCKET, _ATTACH_REUSEPORT_CBPF, program)
        except OSError as error:
            self._group.pop()
            raise ConfigError(
                f"cannot send connections to a second socket: {error.strerror}", error.errno
            ) from error


def _same(fd: int) -> socket.socket:
    """A socket of libzmq once more, to be closed by the caller.

    Raises:
        OSError: it is closed.
    """
    return socket.socket(fileno=os.dup(fd))


def _beside(former: socket.socket) -> int:
    """A socket that listens at the same address and port as ``former``."""
    with socket.socket(former.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as made:
        if former.family == socket.AF_INET6:
            only = former.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(former.getsockname())
        made.listen(BACKLOG)
        return made.detach()
