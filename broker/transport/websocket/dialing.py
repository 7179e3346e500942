"""From an address to a link that a gateway has welcomed."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import ssl
from typing import TYPE_CHECKING, Final

from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.typing import Origin, Subprotocol
from websockets.uri import parse_uri

from broker.endpoints import check_secrecy
from broker.errors import LinkBroken
from broker.identity import PeerInfo
from broker.transport.dialing import attempt, converse, open_first, resolve
from broker.transport.tls import shake_hands
from broker.transport.tls.layer import Session, TlsCodec
from broker.transport.websocket.address import Target, fresh, parse, token_of
from broker.transport.websocket.codec import JOIN_BYTES, WebSocketCodec
from broker.transport.websocket.control import Conversation
from broker.transport.websocket.link import WebSocketLink

if TYPE_CHECKING:
    from broker.transport.codec import Codec
    from broker.transport.link import Options

SUBPROTOCOL: Final = "flux.v1"
DEFLATE: Final = ClientPerMessageDeflateFactory(
    server_no_context_takeover=True, client_no_context_takeover=True
)

_quiet = logging.getLogger("headgate.websocket")
_quiet.setLevel(logging.WARNING)  # at debug level the library writes headers, and the token, to the log


async def dial(uri: str, options: Options) -> WebSocketLink:
    """Connect, upgrade, authenticate; see ``WebSocketTransport.dial``."""
    target = parse(uri, options.extra.get("overflow"))
    place = target.place
    # by its text, before it is looked up: whoever answers for a name must not decide who sees our token
    check_secrecy([place], place.scheme == "wss", options.insecure, target.shown, "use wss://")
    token = token_of(options.extra)

    async def welcome(sock: socket.socket) -> WebSocketLink:
        peer = PeerInfo(target.uri.partition("?")[0])
        talk = Conversation(peer.address, token, options.extra.get("resume"))
        protocol = _requested(target, options, fresh(token), options.max_bytes(peer))
        web = WebSocketCodec(protocol, talk, peer.address, options.max_bytes(peer))
        talk.send = web.say
        try:
            codec = await _sealed(sock, web, target, options.extra.get("ssl"))
            await _welcome(sock, codec, web)
        except BaseException:
            talk.end()
            raise
        link = WebSocketLink(sock, peer, options, codec, web)
        link.watch(talk.ping_s)
        return link

    async with attempt(target.shown, options.connect_timeout_s, "welcome"):
        return await open_first(await resolve(place), welcome)


def _requested(target: Target, options: Options, token: str | None, max_bytes: int) -> ClientProtocol:
    """A protocol that has written its request."""
    extra = options.extra
    protocol = ClientProtocol(
        parse_uri(target.uri),
        origin=Origin(extra["origin"]) if extra.get("origin") else None,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        extensions=[DEFLATE] if extra.get("deflate") else None,
        max_size=max_bytes + JOIN_BYTES,
        logger=_quiet,
    )
    request = protocol.connect()
    for name, value in (extra.get("headers") or {}).items():
        request.headers[name] = value
    if token is not None:
        request.headers["Authorization"] = f"Bearer {token}"
    protocol.send_request(request)
    return protocol


async def _sealed(
    sock: socket.socket, web: WebSocketCodec, target: Target, context: ssl.SSLContext | None
) -> Codec:
    """``web``, within TLS where that is asked for."""
    if target.place.scheme == "ws":
        return web
    session = Session(context or ssl.create_default_context(), target.place.host)
    try:
        await shake_hands(sock, session)
    except ssl.SSLError as error:
        raise LinkBroken(f"{target.shown}: TLS: {error}", errno.EPROTO) from error
    return TlsCodec(session, web)


async def _welcome(sock: socket.socket, codec: Codec, web: WebSocketCodec) -> None:
    """Upgrade, and listen until the gateway has let us in.

    Raises:
        LinkError: it did not. OSError: the connection broke.
    """
    talk = web.talk

    def take(data: bytes) -> None:
        messages = codec.feed(data)
        while web.early and not talk.welcomed and codec.failure is None:
            messages += codec.feed(b"")
        web.held = messages

    with contextlib.suppress(ConnectionResetError):
        await converse(sock, lambda: codec.encode(()), take, lambda: codec.failure or talk.welcomed)
    if talk.welcomed and codec.failure is None:
        return
    web.feed_end()
    raise web.end_of(web.failure or codec.failure)
