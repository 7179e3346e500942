"""The listening side of stream sockets; that of UNIX sockets greets each peer with a byte, 0 or the errno of a refusal.

Nobody is left without an answer. When the process is out of descriptors, one that was kept for this is closed, and the
next peer is told so; guests are told before that, while there are some left for the owner (``DescriptorReserve``).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from abc import abstractmethod
from collections.abc import Callable
from typing import Final

from broker.identity import PeerInfo
from broker.obstacles import obstacle
from broker.sockets import peer_credentials
from broker.transport.link import Accept, Link, Listener, Options

log = logging.getLogger("headgate")

ACCEPTS: Final = 32
"""Connections accepted in one turn, each of which takes a tenth of a millisecond."""
ACCEPT_RETRY_S: Final = 0.25
"""Pause after EMFILE and the like: accepting again at once would spin."""
TOLD_S: Final = 60.0
"""A want of descriptors is told once in so long."""

MakeLink = Callable[[socket.socket, PeerInfo, Options], Link]


class SpareDescriptor:
    """One descriptor that is open for nothing, to be closed when another is needed and none is left."""

    def __init__(self) -> None:
        self._fd = -1
        self.renew()

    def lend(self) -> bool:
        """Free it; False when it is lent already."""
        if self._fd < 0:
            return False
        os.close(self._fd)
        self._fd = -1
        return True

    def renew(self) -> None:
        """Have it back, if there is one."""
        if self._fd < 0:
            with contextlib.suppress(OSError):
                self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def exhausted(error: OSError) -> bool:
    """Whether ``error`` says that no descriptor is left, to this process or to the system."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class StreamListener(Listener):
    """Accepts connections of one listening socket; a transport says in ``greet`` what follows.

    Args:
        sock: listens, and does not block; owned by this.
        address: where, for those who are to connect. path: the file of a UNIX socket, which is removed at the end.

    Attributes:
        turned_away: what those are told for whom no descriptor is left, before they are hung up on; b"": there is no
            word for it, and they wait until there is one.

    Raises:
        ConfigError: somebody has removed the file.
    """

    turned_away = b""

    def __init__(self, sock: socket.socket, address: str, options: Options, path: str = "") -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._path = path
        try:
            self._inode = os.stat(path).st_ino if path else 0
        except OSError as error:
            sock.close()
            raise obstacle(f"cannot listen at {address}: {error.strerror}", error) from error
        self._options = options
        self._spare = SpareDescriptor()
        self._told_s = -TOLD_S
        self._retry: asyncio.TimerHandle | None = None
        self.address = self.contact_address = address
        self._loop.add_reader(sock.fileno(), self._acceptable)

    @abstractmethod
    def greet(self, sock: socket.socket) -> None:
        """A connection has come, which is yours from here on; it does not block."""

    async def stop(self) -> None:
        """Accept no more and remove the socket file, if it is still this listener's."""
        if self._sock.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._spare.lend()
        if self._path:
            with contextlib.suppress(OSError):
                # another broker may have bound the path meanwhile: its socket is not ours to remove
                if os.stat(self._path).st_ino == self._inode:
                    os.unlink(self._path)

    def _acceptable(self) -> None:
        crowded = False
        for _ in range(ACCEPTS):
            try:
                sock, _address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                crowded = True
                if not (exhausted(error) and self._turn_away(error)):
                    break
            else:
                sock.setblocking(False)
                self.greet(sock)
                if self._retry is not None:  # it has had enough for now
                    break
        if crowded:
            self._rest()

    def _rest(self, pause_s: float = ACCEPT_RETRY_S) -> None:
        """Out of descriptors or memory, or too busy: accept again later instead of spinning."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._retry = self._loop.call_later(pause_s, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._spare.renew()
        self._loop.add_reader(self._sock.fileno(), self._acceptable)

    def _turn_away(self, error: OSError) -> bool:
        """Tell the next peer that waits why nobody is let in; False when that cannot be, or nobody waits."""
        self._tell(error.strerror or "")
        if not self.turned_away or not self._spare.lend():
            return False
        try:
            sock, _address = self._sock.accept()
            with sock:
                sock.setblocking(False)
                sock.send(self.turned_away)
        except OSError:  # nobody waits, or the peer that did has gone
            return False
        else:
            return True
        finally:
            self._spare.renew()

    def _tell(self, text: str) -> None:
        now = self._loop.time()
        if now - self._told_s >= TOLD_S:
            self._told_s = now
            log.error(
                "%s: %s: connections are turned away until some descriptors are free", self.address, text
            )

    def _kept_from(self, peer: PeerInfo, fd: int) -> int:
        """EMFILE when ``fd`` is one of the last, and not for ``peer``; 0 when it may have it."""
        if not self._options.refuses_reserve(peer, fd):
            return 0
        self._tell("what descriptors are left is the owner's (limits.reserved_descriptors)")
        return errno.EMFILE


class UnixListener(StreamListener):
    """Accepts connections on one socket file, and greets each with a byte."""

    turned_away = bytes((errno.EMFILE,))

    def __init__(
        self, sock: socket.socket, path: str, accept: Accept, options: Options, make: MakeLink
    ) -> None:
        super().__init__(sock, f"local://{path}", options, path)
        self._accept = accept
        self._make = make

    def greet(self, sock: socket.socket) -> None:
        """See ``StreamListener``."""
        pid, uid, gid = peer_credentials(sock)
        peer = PeerInfo(f"{self.address}#{sock.fileno()}", uid=uid, gid=gid, pid=pid, local=True)
        denied = self._options.admit(peer) or self._kept_from(peer, sock.fileno())
        try:
            sock.send(bytes((denied & 0xFF,)))
        except OSError:
            denied = errno.EPIPE
        if denied:
            sock.close()
            return
        self._accept(self._make(sock, peer, self._options))
