"""The options of the wing's sockets, with reasons. Sizes in bytes or messages, times in milliseconds unless said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import zmq

from broker.oslo.node import SEND_MSGS
from broker.transport.curve import Certificate, CurveClient, CurveServer, client_of, generate, server_of

RECEIVE_MSGS: Final = 512
PUBLISH_MSGS: Final = 10_000
"""SNDHWM of sockets that publish to local servers: a burst has to fit, since publishing drops what does not."""
HANDSHAKE_MS: Final = 10_000
RECONNECT_MS: Final = 20
RECONNECT_MAX_MS: Final = 1_000
CONNECT_MS: Final = 5_000
MESSAGE_BYTES_MAX: Final = 64 << 20
CURVE_BYTES: Final = 64
"""What CURVE adds to a frame, 33 bytes and some more: the limit on the wire is meant for what it carries."""
BUNDLE_BYTES: Final = 72 << 10
"""What a DEALER is sent with a body in the same frame (``bundle``): an envelope with ``CHOSEN_MAX`` names, 65 KiB, a
route, the lengths. The limit is meant for the body."""
_DEAD_MS_MAX: Final = 2**31 - 1
"""What TCP_MAXRT takes."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """TCP keep-alive ("Heartbeats"): a dead connection is noticed after ``idle_s + count * interval_s``.

    A value of -1 leaves that one to the system, for what libzmq does by itself its default is taken; ``on`` False
    switches all of it off.
    """

    on: bool = True
    idle_s: int = 5
    count: int = 3
    interval_s: int = 2

    @property
    def dead_ms(self) -> int:
        """After so many milliseconds without a sign of life a peer is given up."""
        idle_s, count, interval_s = (
            given if given > 0 else default
            for given, default in ((self.idle_s, 5), (self.count, 3), (self.interval_s, 2))
        )
        return min(1000 * (idle_s + count * interval_s), _DEAD_MS_MAX)


@dataclass(frozen=True, slots=True)
class Tuning:
    """What all sockets of one process have in common."""

    keepalive: KeepAlive = KeepAlive()
    max_bytes: int = MESSAGE_BYTES_MAX
    curve: CurveServer | CurveClient | None = None


def curve_to_directory(certificate: Certificate | None, key: str) -> CurveClient | None:
    """What a directory over TCP is spoken to with; None: plaintext, only where neither is given.

    Args:
        certificate: our own; None: a key pair for the occasion, that the directory does not know.
        key: of the directory (Z85); "" our own, since all nodes share a certificate.
    """
    if certificate is None:
        return CurveClient(generate(), key) if key else None
    return CurveClient(certificate, key or certificate.public_key)


def tune_tcp(sock: zmq.Socket[bytes], tuning: Tuning, *, send_msgs: int = SEND_MSGS) -> None:
    """Set a TCP socket up before it is bound or connected: keep-alive, limits, CURVE if ``tuning`` has it.

    TCP keep-alive notices a machine that is gone; TCP_MAXRT ends a connection whose data is not confirmed for as long,
    which keep-alive alone does not see. A process that is frozen misses the beats of its lease at the directory. ZMTP's
    heartbeats stay off: up to libzmq 4.3.5 at least, their timers abort the whole process when the connection of a peer
    that was read up to RCVHWM breaks, or stays silent, before we read on (its issues 4364, 3937, 4767).
    """
    alive = tuning.keepalive
    sock.set(zmq.TCP_KEEPALIVE, 1 if alive.on else 0)
    if alive.on:
        sock.set(zmq.TCP_KEEPALIVE_IDLE, alive.idle_s)
        sock.set(zmq.TCP_KEEPALIVE_CNT, alive.count)
        sock.set(zmq.TCP_KEEPALIVE_INTVL, alive.interval_s)
        sock.set(zmq.TCP_MAXRT, alive.dead_ms)
    sock.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    sock.set(zmq.CONNECT_TIMEOUT, CONNECT_MS)
    sealed = 0 if tuning.curve is None else CURVE_BYTES
    tune_local(sock, tuning.max_bytes + sealed, send_msgs=send_msgs)
    if isinstance(tuning.curve, CurveServer):
        serve_curve(sock, tuning.curve)
    else:
        join_curve(sock, tuning.curve)


def tune_local(
    sock: zmq.Socket[bytes],
    max_bytes: int = MESSAGE_BYTES_MAX,
    *,
    send_msgs: int = SEND_MSGS,
    receive_msgs: int = RECEIVE_MSGS,
) -> None:
    """Set up what TCP and IPC sockets share; an IPC socket needs no more."""
    sock.set(zmq.SNDHWM, send_msgs)
    sock.set(zmq.RCVHWM, receive_msgs)
    sock.set(zmq.MAXMSGSIZE, max_bytes + (BUNDLE_BYTES if sock.type == zmq.DEALER else 0))
    sock.set(zmq.RECONNECT_IVL, RECONNECT_MS)
    sock.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    sock.set(zmq.LINGER, 0)
    if sock.type in (zmq.SUB, zmq.XSUB):
        sock.set(zmq.SNDHWM, 0)  # what they send are subscriptions; libzmq drops those that find no room
    if sock.type in (zmq.DEALER, zmq.PUSH):
        # messages for a node that is away wait in the outbox, where they can be taken back
        sock.set(zmq.IMMEDIATE, 1)
    if sock.type == zmq.ROUTER:
        sock.set(zmq.ROUTER_MANDATORY, 1)


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
