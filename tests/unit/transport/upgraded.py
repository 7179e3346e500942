"""An upgraded connection to a gateway without sockets: our codec, and the other side of the library."""

from websockets.client import ClientProtocol
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from broker.transport.websocket.codec import WebSocketCodec
from broker.transport.websocket.control import Conversation


class Upgraded:
    """Both ends of one."""

    def __init__(self):
        self.talk = Conversation("ws://there", None, None)
        self.talk.welcome = {"session": "1"}
        self.talk.on_object = lambda obj: self.heard.append(obj)
        self.heard = []
        protocol = ClientProtocol(parse_uri("ws://there/"), subprotocols=["flux.v1"], max_size=8 << 20)
        protocol.send_request(protocol.connect())
        self.codec = WebSocketCodec(protocol, self.talk, "ws://there", 8 << 20)
        self.talk.send = self.codec.say
        self.server = ServerProtocol(subprotocols=["flux.v1"], max_size=8 << 20)
        self.server.receive_data(self.codec.encode(()))
        self.server.send_response(self.server.accept(self.server.events_received()[0]))
        self.take(self.said())

    def said(self):
        return b"".join(self.server.data_to_send())

    def take(self, data):
        """What our side makes of ``data``: messages and objects in one order."""
        self.heard = []
        self.heard += self.codec.feed(data)
        while self.codec.early and self.codec.failure is None:
            self.heard += self.codec.feed(b"")
        return self.heard

    def frames(self, data):
        """What the gateway reads."""
        self.server.receive_data(data)
        return [(frame.opcode, frame.fin, bytes(frame.data)) for frame in self.server.events_received()]
