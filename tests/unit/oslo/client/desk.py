"""The listeners of a client whose proxy is the test: what they say to it."""

from types import SimpleNamespace

from broker.oslo.client.inbox import ClientInbox
from broker.oslo.client.links import TrustedFolder
from broker.oslo.client.listeners import Listeners
from broker.oslo.client.routing import RoutingTable
from broker.oslo.frames import Kind, decode, encode, new_id
from broker.oslo.names import Pipeline
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.counters import Counters
from broker.oslo.records import Record
from tests.unit.oslo.client.nodes import settings_at

LISTENER = "l" * 24


def listeners_of(reactor):
    """Those of a client whose node has no proxy: what is said to it waits for it."""
    settings, counters = settings_at("/nowhere"), Counters(reactor)
    folder = TrustedFolder("/nowhere", lambda *_: None)
    routes = RoutingTable(reactor, settings, folder, lambda _nodes: None)
    return Listeners(
        SimpleNamespace(reactor=reactor, settings=settings, routes=routes, counters=counters, folder=folder)
    )


class Desk:
    """One rpc-server with room for ``room`` messages."""

    def __init__(self, room):
        self.reactor = Reactor()
        self.reactor.open()
        self.listeners = listeners_of(self.reactor)
        self._said = []
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

    @property
    def said(self):
        """Pipeline and envelope of what went out, but for OPEN."""
        for pipeline, link in self.listeners._controls.items():
            told = [decode(frames[0]) for frames in link.take_back()]
            self._said += [(pipeline, envelope) for envelope in told if envelope.kind != Kind.OPEN]
        return self._said

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
