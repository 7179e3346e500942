"""``GET /v1/events?prefix=A&prefix=B``: events as server-sent events (WHATWG HTML, "Server-sent events").

The first thing on a stream is ``welcome``, or ``resumed`` where the client brought ``Last-Event-ID``: both carry the
position in the numbers of rank 0, so that a client that reconnects before any event came misses nothing either.
``recovered`` is true exactly when every event since then that the client may have follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import TYPE_CHECKING, Final

from aiohttp import web

from broker.identity import PeerInfo
from broker.wire import message as wire
from broker.wire.payload import encode_json
from gateway import closes
from gateway.codecs import control
from gateway.web.app_context import ADDRESS, FRONT, PRINCIPAL, AppContext
from gateway.web.errors import STATUS, Refusal, of_response
from gateway.web.headers import STREAMED
from gateway.web.rpc import open_session, options_of, take_rate
from gateway.web.sse import COMMENT, StreamLink, control_text

if TYPE_CHECKING:
    from gateway.principal import Principal
    from gateway.sessions.session import Session

MEDIA_TYPE: Final = "text/event-stream"
RETRY_MS: Final = 1000
"""How long a browser waits before it connects again."""
PREFIXES_A_CALL: Final = 16
"""So many prefixes of a stream cost what a call does."""


async def events(request: web.Request) -> web.StreamResponse:
    """Handle one stream."""
    front = request.app[FRONT]
    principal = request[PRINCIPAL]
    prefixes = list(dict.fromkeys(request.query.getall("prefix", [""])))
    position = _position(request)
    options = options_of(front, _policy(request))
    take_rate(request, calls=1 + len(prefixes) // PREFIXES_A_CALL)
    if position is not None:
        _charge_replay(front, principal)
    link = StreamLink(PeerInfo(request[ADDRESS]), options, lambda: front.hub.history.epoch)
    session = open_session(request, link, "sse")
    try:
        if position is None:
            await _subscribe(link, prefixes)
            link.tell(session.welcome())
        else:
            await _resume(session, position, prefixes)
        response = web.StreamResponse(headers={"Content-Type": MEDIA_TYPE, **STREAMED})
        await response.prepare(request)
        await response.write(f"retry: {RETRY_MS}\n\n".encode())
        await _pump(response, link, front.settings.limits.ping_s)
        return response
    finally:
        link.close("the stream is over")


def _policy(request: web.Request) -> str | None:
    policy = request.query.get("overflow")
    if policy not in (None, "disconnect", "drop"):
        raise Refusal(400, f"overflow: saw {str(policy)[:32]!r}, expected disconnect or drop")
    return policy


def _position(request: web.Request) -> tuple[str, int] | None:
    """Epoch and number of ``Last-Event-ID``; None when there is none, or an empty one as of a client without any."""
    said = request.headers.get("Last-Event-ID")
    if not said:
        return None
    epoch, _, number = said.rpartition(":")
    if not (number.isascii() and number.isdecimal() and len(number) <= 10 and int(number) < 2**32):
        raise Refusal(400, f"Last-Event-ID: saw {said[:64]!r}, expected EPOCH:SEQUENCE")
    return epoch, int(number)


def _charge_replay(front: AppContext, principal: Principal) -> None:
    """Begin a replay at the expense of ``principal``.

    Raises:
        Refusal: 429, the user had as much replayed as allowed.
    """
    wait_s = front.hub.replays.wait_s(principal)
    if wait_s:
        rate = front.settings.limits.replay_msgs_per_s
        text = f"more than {rate:g} events a second replayed (limits.replay_msgs_per_s)"
        raise Refusal(429, text, errno.EAGAIN, retry_s=wait_s)


async def _subscribe(link: StreamLink, prefixes: list[str]) -> None:
    """Subscribe as any client does; returns once all of it is live.

    Raises:
        Refusal: one prefix may not be, or the upstream did not come back in time.
    """
    for number, prefix in enumerate(prefixes, 1):
        message = wire.request("event.subscribe", encode_json({"topic": prefix}), matchtag=number)
        if link.receiver is not None and link.ended is None:
            link.receiver.received(link, [message])
    for answer in await link.answered(len(prefixes)):
        if answer.errnum:
            raise of_response(answer, prefixes[answer.matchtag - 1])


async def _resume(session: Session, position: tuple[str, int], prefixes: list[str]) -> None:
    """Continue behind ``position``; ``resumed`` is told where the live events begin.

    Raises:
        Refusal: the user may not subscribe to one of the prefixes.
    """
    hub = session.hub
    for prefix in prefixes:
        if not hub.access.allows_pattern(session.roles, prefix.encode("utf-8", "surrogateescape")):
            raise Refusal(403, "the user's roles do not allow this subscription", errno.EPERM, topic=prefix)
        if hub.hook is not None:
            said = await hub.hook.ask(
                session.principal, "subscribe", prefix.encode("utf-8", "surrogateescape")
            )
            if not said.allowed:
                raise Refusal(STATUS[said.errnum], said.text, said.errnum, topic=prefix)
    token = session.welcome()["resume"]
    session.control(
        {
            "type": "resume",
            "token": token,
            "epoch": position[0],
            "sequence": position[1],
            "subscriptions": prefixes,
        }
    )


async def _pump(response: web.StreamResponse, link: StreamLink, ping_s: float) -> None:
    """Write what comes until the session ends; a client that goes away cancels this."""
    while True:
        items: list[bytes] | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ping_s):
                items = await link.texts()
        if items is None:
            await response.write(COMMENT)
        elif items:
            await response.write(b"".join(items))
        else:
            break
    code = link.code or closes.SLOW
    with contextlib.suppress(ConnectionError):
        await response.write(control_text(control.error(code, str(link.ended))))
        await response.write_eof()
