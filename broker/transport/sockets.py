"""Connections of TCP and of UNIX sockets, as every transport has them; none of them blocks."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import ExitStack
from typing import Final, NamedTuple

from broker import trust
from broker.endpoints import Endpoint
from broker.errors import LinkBroken, LinkRefused
from broker.sockets import Address, tcp_address, unix_address

CONNECT_S: Final = 3.0
"""A host that does not answer is given up after so long, and dialled anew by the caller that waits for it: TCP itself
would ask later and later, and a host that comes up meanwhile would wait for it."""
CONNECT_RETRY_S: Final = 0.01
"""Pause before another try to join the full queue of a UNIX socket."""
HANDSHAKE_S: Final = 10.0
"""A connection that did not finish its handshake by then is dropped."""
_KIND: Final = socket.SOCK_STREAM | socket.SOCK_NONBLOCK


class Probing(NamedTuple):
    """How TCP finds out that the other machine is gone. It cannot see a process that is frozen while its kernel goes
    on: each protocol counts silence for itself.
    """

    idle_s: int = 5
    """After so long without a packet of the peer TCP asks whether it is there ..."""
    interval_s: int = 5
    """... and so often while it does not answer ..."""
    probes: int = 3
    """... until so many probes were in vain: a machine that is gone is known after 20 s, whether anything was sent or
    not."""
    unconfirmed_ms: int = 20_000
    """TCP_USER_TIMEOUT: a connection on which what was sent, or a probe, is not acknowledged for so long is lost; as in
    deployed Flux."""


PROBING: Final = Probing()


def tune(sock: socket.socket, probing: Probing = PROBING) -> None:
    """Set the options that every connection of TCP has: no waiting for more to send, and an end when the other machine
    is gone.
    """
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probing.idle_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probing.interval_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probing.probes)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, probing.unconfirmed_ms)


async def connect(place: Endpoint, *, proven: bool = False) -> socket.socket:
    """Connect to ``place``, which is of numbers, or a UNIX socket.

    Args:
        place: where to.
        proven: the peer will prove a key; otherwise a local one must be somebody whom we trust.

    Raises:
        LinkRefused: it is not. LinkBroken: a host that does not answer within ``CONNECT_S``. OSError: nobody there.
    """
    with ExitStack() as opened:
        if place.is_unix:
            sock = opened.enter_context(socket.socket(socket.AF_UNIX, _KIND))
            await _connect_unix(sock, place, proven)
        else:
            family, address = tcp_address(place.host, place.port)
            sock = opened.enter_context(socket.socket(family, _KIND))
            await _connect_tcp(sock, place, address)
            tune(sock)
        opened.pop_all()
    return sock


async def _connect_tcp(sock: socket.socket, place: Endpoint, address: Address) -> None:
    try:
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(sock, address)
    except TimeoutError as error:
        raise LinkBroken(f"{place.text}: no answer within {CONNECT_S:g} s", errno.ETIMEDOUT) from error
    except OSError as error:  # asyncio says what it called with which numbers
        raise OSError(error.errno, os.strerror(error.errno or 0)) from error


async def _connect_unix(sock: socket.socket, place: Endpoint, proven: bool) -> None:
    while True:
        try:
            if proven:
                sock.connect(unix_address(place.host))
            else:
                trust.connect(sock, place.host)
        except trust.Untrusted as error:
            raise LinkRefused(f"{place.text} is not spoken to: {error.strerror}", error.errno) from None
        except BlockingIOError:  # a full queue fails at once
            await asyncio.sleep(CONNECT_RETRY_S)
        else:
            return
