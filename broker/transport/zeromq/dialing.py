"""Dialling: names, addresses, keys and attempts; one attempt at one address.

The caller decides about joining again when a link has ended. While nobody answers, ``dial`` tries again by itself,
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
from broker.endpoints import Endpoint, check_secrecy, parse
from broker.errors import LinkBroken, LinkEnded, LinkError, LinkRefused
from broker.identity import PeerInfo
from broker.secret import masked
from broker.transport import curve
from broker.transport.dialing import HANDSHAKE_S, attempt, converse, open_first, resolve
from broker.transport.link import Link, Options
from broker.transport.zeromq.connection import Connection, State
from broker.transport.zeromq.frames import Mismatch
from broker.transport.zeromq.link import ZmtpLink
from broker.transport.zeromq.listening import SCHEMES, pair_of
from broker.transport.zeromq.mechanisms import CurveClient, Mechanism, Null, Refused
from broker.wire.dialects import dialect

BACKOFF_S: Final = 0.05
"""Bound of the first wait between two attempts; doubles up to ``BACKOFF_MAX_S``."""
BACKOFF_MAX_S: Final = 1.0
"""A peer, or its name, that is there a moment later is noticed within this time."""
_HANGUPS: Final = 3
"""A peer that so often in a row hangs up in the middle of the handshake refuses us: it does not know its own key as
ours says, or it speaks something else. Once may be a restart."""


async def dial(uri: str, options: Options) -> Link:
    """See ``ZeromqTransport.dial``."""
    target = parse(uri, *SCHEMES)
    dialect(options.dialect, options.strict_rfc3)  # says so now if there is none
    backoff, hangups = Backoff(BACKOFF_S, BACKOFF_MAX_S), 0
    keys = _keys(options)
    last: LinkError = LinkBroken(f"{masked(uri)}: no answer", errno.ETIMEDOUT)
    try:
        async with asyncio.timeout(options.connect_timeout_s or None):
            while True:
                try:
                    return await _attempt(target, uri, keys[hangups % len(keys)])
                except LinkEnded as error:
                    last = error
                    hangups += 1
                except LinkBroken as error:
                    if error.errno != errno.EAGAIN and not options.waits_for_peer:
                        raise
                    last, hangups = error, 0
                if hangups == _HANGUPS * len(keys):
                    raise LinkRefused(
                        f"{last}: its key is not the one we expect, "
                        "only one side speaks CURVE, or it does not speak ZeroMQ"
                    ) from last
                options.failing(last)
                await asyncio.sleep(backoff.after())
    except TimeoutError:
        text = f"nobody answered within {options.connect_timeout_s:g} s: {last}"
        raise LinkBroken(text, last.errno) from last


def _keys(options: Options) -> list[Options]:
    """``options`` for each key the listener may have: one with another key hangs up in the middle of the handshake."""
    told = options.extra.get("curve")
    if not isinstance(told, curve.CurveClient) or told.next_key is None:
        return [options]
    other = replace(told, server_key=told.next_key)
    return [options, replace(options, extra={**options.extra, "curve": other})]


async def _attempt(target: Endpoint, uri: str, options: Options) -> Link:
    """One attempt at every address that the name has now.

    Raises:
        LinkError: see ``open_connection``.
        ConfigError: the certificate cannot be used, or plaintext off loopback.
    """
    identity: bytes = options.extra.get("identity") or str(uuid.uuid4()).encode()
    told = curve.client_of(options.extra.get("curve"))
    sock, connection = await open_connection(target, masked(uri), told, identity, options.insecure)
    peer = PeerInfo(uri, key=told.server_key if told is not None else None, local=target.is_unix)
    return ZmtpLink(sock, peer, options, connection, identity)


async def open_connection(
    target: Endpoint,
    uri: str,
    told: curve.CurveClient | None,
    identity: bytes,
    insecure: bool,
    limit_s: float = HANDSHAKE_S,
) -> tuple[socket.socket, Connection]:
    """Connect to the first address of ``target`` that answers, as a DEALER, and shake hands.

    Args:
        target: where to; its name is looked up.
        uri: what errors call it.
        told: our key and the peer's; None: plaintext.
        identity: our name.
        insecure: plaintext off loopback is allowed.
        limit_s: what one handshake may take.

    Raises:
        LinkRefused: the peer does not let us in, is nobody whom we trust, or speaks otherwise.
        LinkBroken: nobody there, or no answer in time.
        LinkEnded: it hung up in the middle, as who has another key does.
        ConfigError: plaintext off loopback.
    """
    places = await resolve(target)
    check_secrecy(places, told is not None, insecure)

    async def shake(sock: socket.socket) -> tuple[socket.socket, Connection]:
        properties = {b"Socket-Type": b"DEALER", b"Identity": identity}
        mechanism: Mechanism = (
            Null(properties, as_server=False)
            if told is None
            else CurveClient(properties, pair_of(told.certificate), curve.raw_key(told.server_key))
        )
        connection = Connection(mechanism)
        async with attempt(uri, limit_s, "handshake"):  # the listener may be frozen
            await shake_hands(sock, connection, uri)
        return sock, connection

    async with attempt(uri, 0, "answer"):
        return await open_first(places, shake, proven=told is not None)


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
    # "3xx" of ZAP: temporary, it may be otherwise in a moment (RFC 27)
    if isinstance(failure, Refused) and failure.reason.startswith("3"):
        raise LinkBroken(f"{uri} has no place for us at present (ZAP {failure.reason})", errno.EAGAIN)
    if isinstance(failure, Refused):
        why = "our key or user is not on its list, or may not have a connection now"
        raise LinkRefused(f"{uri} refused us: ZAP {failure.reason}, {why}", errno.EPERM)
    if isinstance(failure, Mismatch):
        raise LinkRefused(f"{uri}: one side speaks CURVE and the other plaintext ({failure})", errno.EPROTO)
    if failure is not None:
        raise LinkRefused(f"{uri} breaks the ZMTP handshake ({failure})", errno.EPROTO)
