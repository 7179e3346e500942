"""The options of every ZeroMQ socket, with reasons. Sizes in bytes or messages, times in milliseconds."""

from __future__ import annotations

from typing import Final

import zmq

from broker.transport.curve import Certificate, client_of, server_of
from broker.transport.zeromq.limits import (
    HANDSHAKE_MS,
    KEEPALIVE_COUNT,
    KEEPALIVE_IDLE_S,
    KEEPALIVE_INTERVAL_S,
    UNCONFIRMED_MS,
)

EVENTS: Final = int(zmq.EVENTS)
POLLIN: Final = int(zmq.POLLIN)
POLLOUT: Final = int(zmq.POLLOUT)
NOBLOCK: Final = int(zmq.NOBLOCK)
MORE_NOBLOCK: Final = int(zmq.SNDMORE | zmq.NOBLOCK)
"""Plain numbers: pyzmq's are enums, whose ``&`` and ``|`` cost as much as a small send."""

SEND_MSGS: Final = 64
"""SNDHWM: ZeroMQ messages libzmq holds for one peer; small, because what waits belongs into the outbox, where it
is counted in bytes. A batch counts as one."""
RECEIVE_MSGS: Final = 256
"""RCVHWM: read ahead for one peer; a peer that sends faster is slowed down by TCP."""
LINGER_MS: Final = 250
"""After a close, how long libzmq may go on sending what was flushed; deployed Flux has 5, too few for a busy peer."""
LINGER_IDLE_MS: Final = 1_000
"""What libzmq had no room for at a close follows as the peer reads: until it reads nothing for so long ..."""
LINGER_MAX_MS: Final = 10_000
"""... or so long after the close."""
NO_RECONNECT_MS: Final = 3_600_000
"""RECONNECT_IVL: longer than a dialer's socket survives its connection. Not -1: libzmq would then throw away what
it had received and not yet handed over."""


def tune(sock: zmq.Socket[bytes], max_bytes: int) -> None:
    """Set what ROUTER and DEALER have in common; ``max_bytes`` caps one part, before libzmq allocates it.

    ZMTP's heartbeats stay off. Up to libzmq 4.3.5 at least, their timers abort the whole process when the connection
    of a peer that was read up to RCVHWM breaks, or stays silent, before we read on (its issues 4364, 3937, 4767).
    """
    sock.set(zmq.SNDHWM, SEND_MSGS)
    sock.set(zmq.RCVHWM, RECEIVE_MSGS)
    sock.set(zmq.MAXMSGSIZE, max_bytes)
    sock.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    probe(sock, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT)
    sock.set(zmq.TCP_MAXRT, UNCONFIRMED_MS)
    sock.set(zmq.LINGER, LINGER_MS)


def probe(sock: zmq.Socket[bytes], idle_s: int, interval_s: int, count: int) -> None:
    """Have TCP ask a peer that sent nothing for ``idle_s`` whether it is there, ``count`` times each ``interval_s``."""
    sock.set(zmq.TCP_KEEPALIVE, 1)
    sock.set(zmq.TCP_KEEPALIVE_IDLE, idle_s)
    sock.set(zmq.TCP_KEEPALIVE_INTVL, interval_s)
    sock.set(zmq.TCP_KEEPALIVE_CNT, count)


def serve_curve(sock: zmq.Socket[bytes], told: object) -> None:
    """Make ``sock`` the server of CURVE handshakes; None leaves it in plaintext.

    Raises:
        ConfigError: as of ``curve.server_of``.
    """
    if (served := server_of(told)) is not None:
        sock.set(zmq.CURVE_SERVER, 1)
        _own_keys(sock, served.certificate)


def join_curve(sock: zmq.Socket[bytes], told: object) -> None:
    """Make ``sock`` a client of CURVE handshakes; None leaves it in plaintext.

    Raises:
        ConfigError: as of ``curve.client_of``.
    """
    if (client := client_of(told)) is not None:
        sock.set(zmq.CURVE_SERVERKEY, client.server_key.encode())
        _own_keys(sock, client.certificate)


def _own_keys(sock: zmq.Socket[bytes], certificate: Certificate) -> None:
    sock.set(zmq.CURVE_PUBLICKEY, certificate.public_key.encode())
    sock.set(zmq.CURVE_SECRETKEY, (certificate.secret_key or "").encode())
