"""The link to a gateway: a stream link whose codec is RFC 6455, with a conversation beside the messages."""

from __future__ import annotations

import errno
import socket
from typing import Final

from broker.awake import Deadline
from broker.errors import LinkBroken, LinkError, ProtocolError, Untranslatable
from broker.identity import PeerInfo
from broker.transport.codec import Codec
from broker.transport.link import Options
from broker.transport.stream import StreamLink
from broker.transport.websocket.codec import WebSocketCodec
from broker.transport.websocket.control import Conversation
from broker.wire import message as wire
from broker.wire.message import Message
from broker.wire.payload import encode_text

SILENCE: Final = 3.0
"""A gateway that pings every ``ping_s`` and was not heard for this many times as long is gone."""


class WebSocketLink(StreamLink):
    """One connection that a gateway has welcomed.

    Args:
        codec: ``web``, or what seals it.

    Attributes:
        talk: the control objects of this link: ``talk.welcome``, ``talk.lost`` ...
    """

    __slots__ = ("_heard", "_watch", "_web", "talk")

    talk: Conversation

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
        self.talk = web.talk
        self.talk.send = self.say

    def say(self, text: bytes) -> None:
        """Send a control object, in front of what is queued."""
        self._web.say(text)
        self._pay()

    def send(self, message: Message) -> None:
        """Queue ``message``; see ``Link.send``. One above the gateway's limit is refused here, not by a close."""
        limit = self.talk.message_bytes
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
        self.talk.end()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        super().finish(error)
