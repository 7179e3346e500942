"""An NFP broker of a few lines for the service's tests: it notes what is submitted and answers what the test says."""

import asyncio

import msgspec

from broker.client import Limits
from broker.client.bridge import offer
from broker.identity import USERID_UNKNOWN
from broker.nfp.access import Access
from broker.nfp.contract import JobEvent, NotStored
from broker.nfp.frames import Packet
from broker.nfp.jobs.config import TaskStats
from broker.nfp.jobs.views import JobView, PartView
from broker.nfp.management.event_bus import EventBus
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.service import FluxService
from broker.nfp.targets import ALL
from tests.unit.client.peer import talk
from tests.unit.nfp.found import Found


def job_view(uuid, *parts, holder="uid:7", client="", state="open", target=ALL, userid=7):
    rows = tuple(PartView(name, name, 1, how, 200 if how == "final" else 0, 0) for name, how in parts)
    return JobView(uuid, "lab", "go", target, holder, userid, client, state, 1.0, 2.0, (), rows)


class FakePeer:
    def __init__(self, broker, principal, name, on_packet, features):
        self.principal, self.name, self.features = principal, name, features
        self.alive = True
        self.on_lost = None
        self.on_packet = on_packet
        self.broker = broker

    def submit(self, packet):
        assert self.alive
        self.broker.submitted.append((self, packet))
        self.broker.fresh.set()

    def close(self):
        self.alive = False


class FakeBroker:
    def __init__(self):
        self.dispatcher = self
        self.clock = self
        self.tasks = TaskStats()
        self.event_bus = EventBus("epoch-1")
        self.access = Access()
        self.searches = asyncio.Semaphore(4)
        self.submitted = []
        self.peers = []
        self.known = {}
        self.unreadable = {}
        self.fresh = asyncio.Event()

    def now(self):
        return 100.0

    def may_read(self, principal, holder):
        return self.access.may_read(principal, holder)

    def local_peer(self, principal, name, on_packet, features=frozenset()):
        peer = FakePeer(self, principal, name, on_packet, features)
        self.peers.append(peer)
        return peer

    async def next(self):
        """The next packet that was submitted, and by whom."""
        async with asyncio.timeout(5):
            while not self.submitted:
                self.fresh.clear()
                await self.fresh.wait()
        return self.submitted.pop(0)

    def workers(self, now):
        return []

    def services(self):
        return []

    def search(self, which, may_see, limit, now, tell):
        return Found(list(self.known.values()), which, may_see, limit, tell, slices=2)

    def find(self, uuid, now):
        """One that is ``unreadable`` cannot be read."""
        if uuid in self.unreadable:
            raise NotStored(self.unreadable[uuid])
        return self.known.get(uuid)


def respond(peer, packet, status, body, command=Command.RESPONSE):
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    told = Packet(
        Sender.BROKER, command, dialect=Dialect.NORFAB, service=packet.service, uuid=packet.uuid,
        status=status, body=data,
    )  # fmt: skip
    peer.on_packet(told)


def happening(kind, uuid, *, userid=USERID_UNKNOWN, body=b"", worker="w1"):
    return JobEvent(kind, uuid, "lab", "go", "uid:7", userid, worker, 1, 200, body)


def with_face(script):
    """Run ``script(peer, broker)``: the handlers on a link whose far end is ``peer``."""

    async def served(h, peer):
        broker = FakeBroker()
        face = FluxService(broker, "local://nowhere", announce=False)
        face.bridge.handle = h
        service = h.service("nfp")
        offer(service, face.table())
        async with service:
            await script(peer, broker)
        face.bridge.handle = None
        await face.stop()
        assert not any(peer.alive for peer in broker.peers)

    talk(served, Limits())
