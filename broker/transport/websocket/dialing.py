"""From an address to a link that a gateway has welcomed: a stream link whose codec is RFC 6455, with a conversation
beside the messages.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import ssl
from typing import Final

from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.typing import Origin, Subprotocol
from websockets.uri import parse_uri

from broker.awake import Deadline
from broker.endpoints import check_secrecy
from broker.errors import LinkBroken, LinkError, ProtocolError, Untranslatable
from broker.identity import PeerInfo
from broker.transport.codec import Codec
from broker.transport.dialing import attempt, converse, open_first, resolve
from broker.transport.link import Options
from broker.transport.stream import StreamLink
from broker.transport.tls import shake_hands
from broker.transport.tls.layer import Session, TlsCodec
from broker.transport.websocket.address import Target, fresh, parse, token_of
from broker.transport.websocket.codec import JOIN_BYTES, WebSocketCodec
from broker.transport.websocket.control import Conversation
from broker.wire import message as wire
from broker.wire.message import Message
from broker.wire.payload import encode_text

SILENCE: Final = 3.0
"""A gateway that pings every ``ping_s`` and was not heard for this many times as long is gone."""
SUBPROTOCOL: Final = "flux.v1"
DEFLATE: Final = ClientPerMessageDeflateFactory(
    server_no_context_takeover=True, client_no_context_takeover=True
)


class WebSocketLink(StreamLink):
    """One connection that a gateway has welcomed.

    Args:
        codec: ``web``, or what seals it.

    Attributes:
        replay: the control objects of this link: ``replay.welcome``, ``replay.lost`` ...
    """

    __slots__ = ("_heard", "_watch", "_web", "replay")

    replay: Conversation

    def __init__(
        self,
        sock: socket.socket,
        peer: PeerInfo,
        options: Options,
        codec: Codec,
        web: WebSocketCodec,
    ) -> None:
        super().__init__(sock, peer, options, codec)
        self._web = web
        self._heard = False
        self._watch: Deadline | None = None
        self.replay = web.talk
        self.replay.send = self.say

    def say(self, text: bytes) -> None:
        """Send a control object, in front of what is queued."""
        self._web.say(text)
        self._pay()

    def send(self, message: Message) -> None:
        """Queue ``message``; see ``Link.send``. One above the gateway's limit is refused here, not by a close."""
        limit = self.replay.message_bytes
        if 0 < limit < message.size + 8:
            text = f"{message.size + 8} bytes in one message, {self.peer.address} takes {limit}"
            if message.type == wire.RESPONSE:
                self.untranslatable += 1
                self.send(wire.response(message, encode_text(text), errnum=errno.EMSGSIZE))
            else:
                self.refuse(message, Untranslatable(text, errno.EMSGSIZE))
        else:
            super().send(message)

    def _deliver(self, data: bytes) -> None:
        """See ``StreamLink``; the gateway's objects, too, in the order of the messages."""
        self._heard = True
        super()._deliver(data)
        while self._web.early and self._reading and self.ended is None:
            super()._deliver(b"")
        self._early = self._web.early

    # -- the end -------------------------------------------------------------------------------

    def watch(self, ping_s: float) -> None:
        """Break the link when nothing, not even a ping, comes for three times ``ping_s``; 0 never does. Nor does time
        in which we were stopped ourselves: then it begins anew.
        """
        if ping_s > 0 and self.ended is None:
            self._heard = False
            patience_s = ping_s * SILENCE
            due = self._loop.time() + patience_s
            self._watch = Deadline(self._loop, due, patience_s, lambda: self._silence(ping_s))

    def _silence(self, ping_s: float) -> None:
        if self._heard or not self._reading:
            self.watch(ping_s)
        else:
            text = f"{self.peer.address}: nothing heard for {ping_s * SILENCE:g} s"
            self.abort(LinkBroken(text, errno.ETIMEDOUT))

    def _hung_up(self, text: str, number: int | None = None) -> LinkError:
        return self._web.end_of(None)

    def _refuse(self, failure: ProtocolError | LinkError) -> None:
        """See ``StreamLink``. A gateway that sent no message is told so; nothing else is."""
        error = self._web.end_of(failure)
        if isinstance(failure, LinkError):
            self.abort(error)
        else:
            self.outbox.discard()
            self._leave(error, str(failure))

    def finish(self, error: LinkError) -> None:
        """See ``Link.finish``."""
        self.replay.end()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        super().finish(error)


_quiet = logging.getLogger("headgate.websocket")
_quiet.setLevel(logging.WARNING)  # at debug level the library writes headers, and the token, to the log


async def dial(uri: str, options: Options) -> WebSocketLink:
    """Connect, upgrade, authenticate; see ``WebSocketTransport.dial``."""
    target = parse(uri, options.extra.get("overflow"))
    place = target.place
    # by its text, before it is looked up: the answer of a name server must not decide who sees our token
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
