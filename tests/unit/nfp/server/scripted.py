"""Peers, a journal and a dispatcher that write down what they are given."""

from broker.nfp.names import Dialect
from broker.nfp.principal import Principal, Standing


class RecordingPeer:
    """See ``contract.Peer``."""

    def __init__(self, name="c1", standing=Standing.USER, key="K"):
        self.name = name
        self.identity = name.encode()
        self.principal = Principal(f"key:{key}", standing, key=key)
        self.dialect = Dialect.NORFAB
        self.features = frozenset()
        self.alive = True
        self.unsent = ()
        self.lockstep = False
        self.tolerance = None
        self.greeted = False
        self.worker = False
        self.address = "nowhere"
        self.sent = []
        self.cuts = []

    def send(self, packet, after=0):
        self.sent.append(packet)
        return True

    def has_spare_room(self):
        return True

    def cut(self, why):
        self.alive = False
        self.cuts.append(why)


class RecordingJournal:
    """See ``contract.Journal``."""

    def __init__(self):
        self.position = 0
        self.broken = ""
        self.ops = []

    def put(self, op):
        self.ops.append(op)


class RecordingDispatch:
    """See ``jobs.Dispatcher``: (what was called, the peer's name, what with)."""

    def __init__(self):
        self.calls = []
        self.failure = None

    def _note(self, what, peer, about):
        if self.failure is not None:
            raise self.failure
        self.calls.append((what, peer.name, about))

    def client(self, peer, packet, now):
        self._note("client", peer, packet)

    def worker(self, peer, packet, now):
        self._note("worker", peer, packet)

    def worker_opened(self, peer, offer, now):
        self._note("worker_opened", peer, offer)
        return peer.name != "told to go"

    def client_seen(self, peer, now):
        self._note("client_seen", peer, None)

    def has_room(self, peer, now):
        self._note("has_room", peer, None)

    def peer_gone(self, peer, now):
        self._note("peer_gone", peer, None)

    def relay_mmi(self, peer, packet, now):
        self._note("relay_mmi", peer, packet)

    def disconnect_workers(self, names, reason, now):
        self.calls.append(("disconnect_workers", names, reason))
        return []

    @property
    def names(self):
        return [call[0] for call in self.calls]
