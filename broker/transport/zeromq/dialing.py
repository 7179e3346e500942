"""Dialling: names, addresses, keys and attempts.

Whoever dialled decides about joining again when a link has ended. While nobody answers, ``dial`` tries again by itself,
waiting a random time up to a bound that doubles (full jitter), so that the children of a parent that restarts do not
all come at once.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from typing import Final

from broker.backoff import Backoff
from broker.errors import LinkBroken, LinkEnded, LinkError, LinkRefused
from broker.transport.curve import CurveClient
from broker.transport.link import Link, Options
from broker.transport.zeromq.address import Endpoint, check_secrecy, check_trust, parse, resolve
from broker.transport.zmtp.dialing import open_link
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
    curve = options.extra.get("curve")
    if not isinstance(curve, CurveClient) or curve.next_key is None:
        return [options]
    other = replace(curve, server_key=curve.next_key)
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
        except LinkBroken as error:
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
