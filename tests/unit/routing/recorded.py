"""A tree of which one rank is recorded, and the records read back."""

from broker.journal import layout
from broker.journal.tap import Tap
from tests.live.chunks import Shelf
from tests.unit.routing.sim import OWNER, Tree


class Recorded:
    """A tree of which one rank is recorded."""

    def __init__(self, size=1, rank=0, capture="both"):
        self.tree = Tree(size)
        self.router = self.tree[rank].router
        self.shelf = Shelf.of(capture)
        self.tap = Tap(self.shelf)
        self.number(*self.router.ports)
        self.router.recording = self.tap

    def number(self, *ports):
        for port in ports:
            port.peer = self.tap.peer(port.name, layout.UNIX, "client")

    def client(self, rank=0, cred=OWNER, services=()):
        client = self.tree.client(rank, cred, services)
        if client.router is self.router:
            self.number(client.port)
        return client

    @property
    def records(self):
        self.tree.settle()
        self.tap.flush()
        return self.shelf.flux

    def seen(self):
        """(direction, peer, via, reason) of all records."""
        return [(r.direction, r.peer, r.via, r.reason) for r in self.records]
