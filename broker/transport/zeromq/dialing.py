"""Dialling: names, addresses, keys and attempts; one attempt at one address.

Whoever dialled decides about joining again when a link has ended. While nobody answers, ``dial`` tries again by itself,
waiting a random time up to a bound that doubles (full jitter), so that the children of a parent that restarts do not
all come at once.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import uuid
from dataclasses import replace
from typing import Final

from broker.backoff import Backoff
from broker.errors import LinkBroken, LinkEnded, LinkError, LinkRefused
from broker.identity import PeerInfo
from broker.secret import masked
from broker.transport import curve
from broker.transport.dialing import attempt, converse
from broker.transport.link import Link, Options
from broker.transport.zeromq import sockets
from broker.transport.zeromq.address import Endpoint, check_secrecy, check_trust, parse, resolve, unproven
from broker.transport.zeromq.connection import Connection, State
from broker.transport.zeromq.frames import Mismatch
from broker.transport.zeromq.limits import CONNECT_MS, HANDSHAKE_MS
from broker.transport.zeromq.link import ZmtpLink
from broker.transport.zeromq.listening import pair_of
from broker.transport.zeromq.mechanisms import CurveClient, Mechanism, Null, Refused
from broker.wire.dialects import dialect

BACKOFF_S: Final = 0.05
"""Bound of the first wait between two attempts; doubles up to ``BACKOFF_MAX_S``."""
BACKOFF_MAX_S: Final = 1.0
"""A peer, or its name, that is there a moment later is noticed within this time."""
ADDRESS_S: Final = 5.0
"""Where a name has several addresses, one that does not answer keeps us from the next one no longer."""
_HANGUPS: Final = 3
"""A peer that so often in a row hangs up in the middle of the handshake refuses us: it does not know its own key as
ours says, or it speaks something else. Once may be a restart."""


async def dial(uri: str, options: Options) -> Link:
    """See ``ZeromqTransport.dial``."""
    target = parse(uri)
    dialect(options.dialect, options.strict_rfc3)  # says so now if there is none
    loop = asyncio.get_running_loop()
    patience = options.connect_timeout_s or float("inf")
    deadline = loop.time() + patience
    backoff, hangups = Backoff(BACKOFF_S, BACKOFF_MAX_S), 0
    keys = _keys(options)
    while True:
        try:
            return await _attempt(target, uri, keys[hangups % len(keys)], deadline)
        except LinkEnded as error:
            last: LinkError = error
            hangups += 1
        except LinkBroken as error:
            if error.errno == errno.ECONNREFUSED and not options.waits_for_peer:
                raise
            last, hangups = error, 0
        if hangups == _HANGUPS * len(keys):
            raise LinkRefused(
                f"{last}: its key is not the one we expect, "
                "only one side speaks CURVE, or it does not speak ZeroMQ"
            ) from last
        options.failing(last)
        pause = backoff.after()
        if loop.time() + pause >= deadline:
            raise LinkBroken(f"nobody answered within {patience:g} s: {last}", last.errno) from last
        await asyncio.sleep(pause)


def _keys(options: Options) -> list[Options]:
    """``options`` for each key the listener may have: who has another one hangs up in the middle of the handshake."""
    told = options.extra.get("curve")
    if not isinstance(told, curve.CurveClient) or told.next_key is None:
        return [options]
    other = replace(told, server_key=told.next_key)
    return [options, replace(options, extra={**options.extra, "curve": other})]


async def _attempt(target: Endpoint, uri: str, options: Options, deadline: float) -> Link:
    """Try every address the name has now, in order.

    Raises:
        LinkRefused, LinkBroken, LinkEnded: what became of the last one.
    """
    try:
        async with _until(deadline):
            endpoints = await resolve(target)
    except TimeoutError as error:
        raise LinkBroken(f"{uri}: no answer of a name server in time", errno.ETIMEDOUT) from error
    check_secrecy(endpoints, options.extra.get("curve"), options.insecure)
    check_trust(endpoints, options.extra.get("curve"))
    failure: LinkError = LinkBroken(f"{uri}: the name has no address")
    now = asyncio.get_running_loop().time
    for index, endpoint in enumerate(endpoints):
        last = index == len(endpoints) - 1
        try:
            return await _open(endpoint, uri, options, deadline if last else min(deadline, now() + ADDRESS_S))
        except (LinkBroken, LinkEnded) as error:
            failure = error
    raise failure


def _until(deadline: float) -> asyncio.Timeout:
    return asyncio.timeout_at(None if deadline == float("inf") else deadline)


async def _open(endpoint: Endpoint, uri: str, options: Options, deadline: float) -> Link:
    try:
        async with _until(deadline):
            return await open_link(endpoint, uri, options)
    except TimeoutError as error:
        raise LinkBroken(f"{uri}: no handshake in time", errno.ETIMEDOUT) from error


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
    if isinstance(failure, Refused) and failure.reason.startswith(
        "3"
    ):  # of ZAP: it may be otherwise in a moment
        raise LinkBroken(f"{uri} has no place for us at present (ZAP {failure.reason})", errno.EAGAIN)
    if isinstance(failure, Refused):
        why = "our key or user is not on its list, or may not have a connection now"
        raise LinkRefused(f"{uri} refused us: ZAP {failure.reason}, {why}", errno.EPERM)
    if isinstance(failure, Mismatch):
        raise LinkRefused(f"{uri}: one side speaks CURVE and the other plaintext ({failure})", errno.EPROTO)
    if failure is not None:
        raise LinkRefused(f"{uri} breaks the ZMTP handshake ({failure})", errno.EPROTO)
