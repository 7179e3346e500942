"""The listeners of a client whose proxy is the test: what they say to it, without a socket."""

from types import SimpleNamespace

from broker.oslo.client import listeners
from broker.oslo.client.inbox import ClientInbox
from broker.oslo.client.links import TrustedFolder
from broker.oslo.client.routing import RoutingTable
from broker.oslo.frames import Kind, decode, encode, new_id
from broker.oslo.names import Pipeline
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.counters import Counters
from broker.oslo.reactor.socket import Outcome
from broker.oslo.records import Record
from tests.unit.oslo.client.nodes import settings_at

LISTENER = "l" * 24


class Control:
    """A link to the proxy that remembers what was sent."""

    def __init__(self, pipeline, said):
        self.pipeline, self.said = pipeline, said
        self.waiting = 0

    def register(self, _listener, _opening):
        pass

    def unregister(self, _listener):
        return False

    def send(self, frames):
        self.said.append((self.pipeline, decode(frames[0]), *frames[1:]))
        return Outcome.SENT

    def close(self, _linger_ms=0):
        pass


class Subscriptions:
    """Those of fan-outs."""

    def __init__(self, *_):
        pass

    def subscribe(self, _data, _confirmed):
        pass

    def unsubscribe(self, _data):
        return True

    def close(self):
        pass


def listeners_of(reactor):
    """Those of a client that has no sockets."""
    settings, counters = settings_at("/nowhere"), Counters(reactor)
    routes = RoutingTable(reactor, settings, TrustedFolder("/nowhere", counters.say), lambda _nodes: None)
    return listeners.Listeners(
        SimpleNamespace(reactor=reactor, settings=settings, routes=routes, counters=counters)
    )


class Desk:
    """One rpc-server with room for ``room`` messages; ``said``: pipeline, envelope and frames of what went out."""

    def __init__(self, monkeypatch, room):
        self.said = []
        monkeypatch.setattr(
            listeners, "ControlLink", lambda _client, pipeline, _: Control(pipeline, self.said)
        )
        monkeypatch.setattr(listeners, "FanoutSubscriptions", Subscriptions)
        self.reactor = Reactor()
        self.reactor.open()
        self.listeners = listeners_of(self.reactor)
        records = [Record("e", "t", "s", LISTENER)]
        self.inbox = ClientInbox(
            lambda call, *args: bool(call(*args)) or True,
            self.listeners,
            LISTENER,
            records,
            None,
            (room, 1 << 20),
            rpc=True,
            body_max=9,
        )
        self.listeners.begin(self.inbox)

    def close(self):
        self.listeners.close(0)
        self.reactor.close()

    def come(self, kind=Kind.CALL, flags=0, number=None, body=b""):
        number = new_id() if number is None else number
        head = encode(kind, "e", "t", listeners=(LISTENER,), id=number, flags=flags)
        self.listeners.on_message(Pipeline.CALL, decode(head), [head, b"route", body])
        return number

    def refusals(self):
        return [
            (said[1].id, said[1].reason)
            for said in self.said
            if said[0] is Pipeline.CALL and said[1].kind == Kind.REFUSED
        ]

    def credit(self):
        """Of calls, given back."""
        return sum(said[1].word for said in self.said if said[1].kind == Kind.CREDIT)
