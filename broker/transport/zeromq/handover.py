"""Replaces a listener's CURVE keys: a new socket takes over its address, existing connections stay with the old one.

libzmq copies the keys of a socket when it binds, and ends every connection of what is unbound. So new keys need a
second ROUTER at the same address, and the first lives on, with nobody new coming to it, until its last peer leaves.

::

    tcp://   SO_REUSEPORT lets a second socket listen beside the first, and a program at the group of the two sends each
             new connection to the second (Linux 4.5; needs no privilege). The option is set when that happens and not
             before: a broker that is started twice by mistake still finds its address in use.
    ipc://   the second socket is bound beside the path and renamed onto it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from array import array
from struct import Struct
from typing import Final, Protocol

from broker.errors import ConfigError
from broker.transport.zeromq.connection import inode

BACKLOG: Final = 100
"""What libzmq uses."""
_ATTACH_REUSEPORT_CBPF: Final = 51
"""SO_ATTACH_REUSEPORT_CBPF of asm-generic/socket.h; Python does not name it."""
_INSTRUCTION: Final = Struct("=HBBI")
"""``struct sock_filter``: code, jt, jf, k."""
_RETURN_K: Final = 0x06
_PROGRAM: Final = Struct("@HP")
"""``struct sock_fprog``: how many instructions, and where."""


class SharedAddress(Protocol):
    """The sockets that listen at one address; the newest gets what comes."""

    def open(self) -> int | None:
        """A socket that listens there, for libzmq to use; None where libzmq is to make it itself.

        Raises:
            ConfigError: the address cannot be used, or not a second time.
        """

    def take(self, fd: int) -> None:
        """``fd``, which libzmq listens at now, gets every new connection.

        Raises:
            ConfigError: the kernel has no such thing: the former one still gets some, or all.
        """

    def leave(self, fd: int) -> None:
        """``fd`` is closed."""

    def clear(self) -> None:
        """Nobody listens any more: remove what is left of it."""


class ReusedPort:
    """A TCP port. The kernel numbers the sockets of a group; the last takes the number of one that is closed.

    They are kept with their inodes: the descriptor of a closed one may be another's before ``leave`` tells of it.
    """

    def __init__(self) -> None:
        self._group: list[tuple[int, int]] = []
        self._newest = (-1, 0)

    def open(self) -> int | None:
        """See ``SharedAddress.open``: the first socket is libzmq's own affair."""
        if not self._group:
            return None
        try:
            with self._same() as former:
                former.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                self._forget_closed()
                return _beside(former)
        except OSError as error:
            raise ConfigError(f"cannot listen a second time: {error.strerror}", error.errno) from error

    def take(self, fd: int) -> None:
        """See ``SharedAddress.take``."""
        former, self._newest = self._newest, (fd, inode(fd))
        self._group.append(self._newest)
        if len(self._group) == 1:
            return
        try:
            self._steer()
        except OSError as error:
            self._group.remove(self._newest)
            self._newest = former
            raise ConfigError(
                f"cannot send connections to a second socket: {error.strerror}", error.errno
            ) from error

    def leave(self, fd: int) -> None:
        """See ``SharedAddress.leave``."""
        if self._forget_closed(fd) and self._newest in self._group:
            with contextlib.suppress(OSError):  # where the number has no socket the kernel chooses
                self._steer()

    def _forget_closed(self, fd: int | None = None) -> bool:
        """Do as the kernel did with its numbers, for those that had ``fd`` or for all; whether there was one to do."""
        closed = [each for each in self._group if fd in (None, each[0]) and inode(each[0]) != each[1]]
        for each in closed:
            index, last = self._group.index(each), self._group.pop()
            if last != each:
                self._group[index] = last
        return bool(closed)

    def clear(self) -> None:
        """See ``SharedAddress.clear``: of a port nothing is left."""
        self._group.clear()

    def _same(self) -> socket.socket:
        """The newest socket once more, to be closed by the caller.

        Raises:
            OSError: it is closed.
        """
        fd, number = self._newest
        if inode(fd) != number:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return socket.socket(fileno=os.dup(fd))

    def _steer(self) -> None:
        """Every new connection goes to the newest.

        Raises:
            OSError: the kernel does not know how.
        """
        number = self._group.index(self._newest)
        instruction = array("B", _INSTRUCTION.pack(_RETURN_K, 0, 0, number))
        with self._same() as newest:
            program = _PROGRAM.pack(1, instruction.buffer_info()[0])
            newest.setsockopt(socket.SOL_SOCKET, _ATTACH_REUSEPORT_CBPF, program)


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
