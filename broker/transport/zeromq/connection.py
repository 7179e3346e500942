"""One connection of a libzmq socket, by its descriptor: is it still the same, cut it, how long it has been silent.

libzmq names connections by descriptors, which the system gives to the next one after a close. So whoever wants to do
something to a connection later keeps the inode of its socket along with the descriptor.
"""

from __future__ import annotations

import logging
import os
import socket
from struct import Struct
from typing import Final

from broker.errors import LinkRefused
from broker.transport.zeromq.address import Endpoint, untrusted
from broker.trust import peer_objection

log = logging.getLogger("headgate")
_SILENCE: Final = Struct("=52xII")
"""``struct tcp_info`` up to ``tcpi_last_ack_recv``: milliseconds since the peer's last byte and since its last
acknowledgement (linux/tcp.h)."""
_TAKEN: Final = Struct("=120xQ")
"""The same up to ``tcpi_bytes_acked``: what the other machine has taken since the beginning."""


def inode(fd: int) -> int:
    """The number of the socket behind ``fd``; 0 when it is closed."""
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return 0


def refuse_listener(fd: int, endpoint: Endpoint | None) -> LinkRefused | None:
    """Why whoever listens at ``endpoint`` (of ``unproven``), to which ``fd`` of libzmq has connected, is not spoken to.

    libzmq looks at nobody: what it connects to may have come into the folder since that was looked at. None where
    nothing speaks against it, or it has gone already.
    """
    if endpoint is None:
        return None
    try:
        with socket.socket(fileno=os.dup(fd)) as same:
            text = peer_objection(same, endpoint.host) if same.family == socket.AF_UNIX else ""
    except OSError:
        return None
    return untrusted(endpoint, text) if text else None


def shut_down(fd: int, number: int) -> bool:
    """Shut down the connection ``fd`` of libzmq, if it is still the socket ``number``; libzmq then sees its end.

    Returns:
        Whether it was.
    """
    try:
        with socket.socket(fileno=os.dup(fd)) as same:
            if inode(same.fileno()) == number:
                same.shutdown(socket.SHUT_RDWR)
                return True
    except OSError as error:
        log.debug("connection of descriptor %d is already gone: %s", fd, error)
    return False


def silent_s(fd: int, number: int) -> float:
    """How long ago a sign of life came from the other end of a TCP connection: a byte, or an acknowledgement.

    Keep-alive is acknowledged too, so the machine of an idle peer is never silent for much longer than its interval;
    whether a process reads there, this does not tell. 0.0 for a connection that is not TCP, where the kernel tells at
    once when the other side is gone, and for one that is no longer the socket ``number``.
    """
    facts = _tcp_info(fd, number, _SILENCE)
    return min(facts) / 1000 if facts else 0.0


def taken_bytes(fd: int, number: int) -> int:
    """What the machine at the other end of a TCP connection has taken of it so far, as it acknowledged; 0 as above.

    Its kernel takes a few MiB for a process that does not read, and then no more.
    """
    facts = _tcp_info(fd, number, _TAKEN)
    return facts[0] if facts else 0


def _tcp_info(fd: int, number: int, form: Struct) -> tuple[int, ...]:
    """Of ``struct tcp_info`` what ``form`` says; nothing of what is not TCP, or not the socket ``number`` any more."""
    try:
        with socket.socket(fileno=os.dup(fd)) as same:
            if inode(same.fileno()) != number or same.family == socket.AF_UNIX:
                return ()
            info = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, form.size)
    except OSError:
        return ()
    return form.unpack(info) if len(info) == form.size else ()
