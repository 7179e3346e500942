"""The dialing side of ZMTP on the loop: one attempt at one address."""

from __future__ import annotations

import asyncio
import errno
import socket
import uuid

from broker.errors import LinkBroken, LinkEnded, LinkRefused
from broker.identity import PeerInfo
from broker.secret import masked
from broker.transport import curve
from broker.transport.dialing import attempt, converse
from broker.transport.link import Link, Options
from broker.transport.zeromq.address import Endpoint, unproven
from broker.transport.zeromq.limits import CONNECT_MS, HANDSHAKE_MS
from broker.transport.zmtp import sockets
from broker.transport.zmtp.connection import Connection, State
from broker.transport.zmtp.frames import Mismatch
from broker.transport.zmtp.link import ZmtpLink
from broker.transport.zmtp.listening import pair_of
from broker.transport.zmtp.mechanisms import CurveClient, Mechanism, Null, Refused


async def open_link(endpoint: Endpoint, uri: str, options: Options) -> Link:
    """A link to a resolved ``endpoint``.

    Raises:
        LinkError: see ``open_connection``.
        ConfigError: the certificate cannot be used.
    """
    identity: bytes = options.extra.get("identity") or str(uuid.uuid4()).encode()
    told = curve.client_of(options.extra.get("curve"))
    sock, connection = await open_connection(endpoint, masked(uri), told, identity)
    peer = PeerInfo(uri, key=told.server_key if told is not None else None, local=endpoint.scheme == "ipc")
    return ZmtpLink(sock, peer, options, connection, identity)


async def open_connection(
    endpoint: Endpoint, uri: str, told: curve.CurveClient | None, identity: bytes
) -> tuple[socket.socket, Connection]:
    """Connect to a resolved ``endpoint``, as a DEALER, and shake hands. ``uri`` is what errors call it.

    Raises:
        LinkRefused: the peer does not let us in, is nobody whom we trust, or speaks otherwise.
        LinkBroken: nobody there, or no answer in time.
        LinkEnded: it hung up in the middle, as who has another key does.
    """
    connection = Connection(_mechanism(told, {b"Socket-Type": b"DEALER", b"Identity": identity}))
    sock = await _connect(endpoint, uri, proven=unproven(endpoint, told) is None)
    async with attempt(uri, HANDSHAKE_MS / 1000, "handshake") as opened:  # who listens may be frozen
        opened.enter_context(sock)
        await shake_hands(sock, connection, uri)
    return sock, connection


def _mechanism(told: curve.CurveClient | None, properties: dict[bytes, bytes]) -> Mechanism:
    if told is None:
        return Null(properties, as_server=False)
    return CurveClient(properties, pair_of(told.certificate), curve.raw_key(told.server_key))


async def _connect(endpoint: Endpoint, uri: str, *, proven: bool) -> socket.socket:
    try:
        async with asyncio.timeout(CONNECT_MS / 1000):
            return await sockets.connect(endpoint, proven=proven)
    except TimeoutError as error:
        raise LinkBroken(f"{uri}: connection refused or unreachable", errno.ECONNREFUSED) from error
    except OSError as error:
        text = f"{uri}: connection refused or unreachable ({error.strerror or error})"
        raise LinkBroken(text, errno.ECONNREFUSED) from error


async def shake_hands(sock: socket.socket, connection: Connection, uri: str) -> None:
    """Open ``connection``, the side that dials.

    Raises:
        LinkRefused: the peer does not let us in, or speaks otherwise.
        LinkEnded: it hung up in the middle, as who has another key does.
    """
    try:
        await converse(
            sock,
            connection.take_owed,
            connection.feed,
            lambda: connection.failure or connection.state is State.OPEN,
        )
    except OSError as error:
        raise LinkEnded(f"{uri} hung up during the handshake", errno.ECONNRESET) from error
    failure = connection.failure
    if isinstance(failure, Refused):
        why = "our key or user is not on its list, or may not have a connection now"
        raise LinkRefused(f"{uri} refused us: ZAP {failure.reason}, {why}", errno.EPERM)
    if isinstance(failure, Mismatch):
        raise LinkRefused(f"{uri}: one side speaks CURVE and the other plaintext ({failure})", errno.EPROTO)
    if failure is not None:
        raise LinkRefused(f"{uri} breaks the ZMTP handshake ({failure})", errno.EPROTO)
