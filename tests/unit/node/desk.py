"""A whole broker in this process: its services, and clients on in-process or UNIX links."""

import asyncio
import os
import uuid
from collections import deque

from broker.errors import LinkClosed, LinkEnded
from broker.identity import Credentials, PeerInfo, Role
from broker.ingress.admission import Access
from broker.ingress.stamping import StampPolicy
from broker.node.broker import Broker
from broker.node.client_admission import ClientAdmission
from broker.routing.port import CHILD, CLIENT, PARENT, Port
from broker.routing.topology import Topology
from broker.transport.budget import Budget
from broker.transport.link import Link, Options
from broker.transport.outbox import OutboxLimits
from broker.transport.unix import transport as unix
from broker.wire.message import EVENT, REQUEST, RESPONSE, Message, event, request, response

OWNER = Credentials(os.getuid(), int(Role.OWNER))
GUEST = Credentials(4242, int(Role.USER))


def run(script):
    """Run one scenario; a broker that hangs fails the test."""

    async def bounded():
        async with asyncio.timeout(15):
            await script

    asyncio.run(bounded())


async def ticks(count=5):
    """Let what is scheduled happen."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


class PaperLink(Link):
    """A link without a peer: keeps what is flushed, and parks when told that the peer does not read."""

    __slots__ = ("flushed", "flushes", "full", "log", "reading", "resumes")

    def __init__(self, options, name="paper"):
        super().__init__(PeerInfo(name), options)
        self.flushed: list[Message] = []
        self.flushes = 0
        self.full = False
        self.reading = False
        self.resumes = 0
        self.log: list = []

    def send(self, message):
        if self.ended is not None:
            self.outbox.discarded += 1
        elif self.full or self.outbox.queue is not None:
            self.outbox.enqueue(message, message.size, message.type)
        else:
            if not self.outbox.unflushed:
                self.flusher.touch(self)
            self.outbox.unflushed.append(message)

    def flush(self):
        self.flushes += 1
        fresh, self.outbox.unflushed = self.outbox.unflushed, []
        self.flushed += fresh
        self.log.append(len(fresh))

    def drain(self, count=1 << 30):
        """The peer reads again."""
        while self.outbox.queue and count:
            self.flushed.append(self.outbox.dequeue())
            count -= 1
        self.outbox.progress += 1
        if not self.outbox.queue:
            self.full = False
        self.outbox.drained()

    def pause(self):
        self.reading = False

    def resume(self):
        self.reading = True
        self.resumes += 1

    def close(self, reason=""):
        self.finish(LinkClosed(reason))

    def abort(self, error):
        self.finish(error)


class Peer:
    """The program behind one link of a ``Desk``."""

    def __init__(
        self, desk, cred=OWNER, services=(), kind=CLIENT, limits=None, name="peer", windowed=False, rank=None
    ):
        options = Options(flusher=desk.broker.flusher, budget=desk.budget, limits=limits or desk.limits)
        self.desk, self.link = desk, PaperLink(options, name)
        policy = StampPolicy(cred, pass_through=cred.owner, local=True)
        if kind != CLIENT:
            policy = StampPolicy.tree(desk.broker.own.cred.userid)
        if rank is None:
            rank = {CHILD: 1, PARENT: 0}.get(kind, -1)
        self.port = Port(
            kind, str(uuid.uuid4()), self.link.send, cred, name=name, policy=policy, link=self.link, rank=rank
        )
        self.port.windowed = windowed
        desk.broker.attach(self.port)
        for service in services:
            self.provide(service)

    def provide(self, name):
        assert self.desk.broker.router.services.add(name.encode(), self.port) == 0
        self.desk.broker.router.invalidate()
        self.desk.broker.pressure.became_provider(self.port)

    def subscribe(self, prefix=""):
        self.desk.broker.router.events.subscribe(self.port, prefix.encode())

    def say(self, *messages):
        """One read of the broker's finds all of these."""
        self.link.receiver.received(self.link, list(messages))

    def end(self):
        self.link.finish(LinkEnded("gone"))

    def of(self, kind):
        return [m for m in self.link.flushed if m.type == kind]

    requests = property(lambda self: self.of(REQUEST))
    responses = property(lambda self: self.of(RESPONSE))
    events = property(lambda self: self.of(EVENT))

    @property
    def errnums(self):
        return [m.errnum for m in self.responses]


class Desk:
    """A broker with recorded built-in services: ``probe.*`` answers at once, ``mute.*`` never."""

    def __init__(self, limits=None, budget=None, size=1, rank=0, **more):
        self.limits = limits or OutboxLimits()
        self.budget = budget or Budget()
        self.broker = Broker(rank, Topology(size), str(uuid.uuid4()), str(uuid.uuid4()), OWNER.userid, **more)
        self.delivered: deque = deque()
        self.on_deliver = lambda message: None
        self.broker.deliver = self._deliver
        for name in (b"probe", b"mute", b"event", b"service"):
            self.broker.router.services.add(name, self.broker.own)

    def _deliver(self, message):
        self.delivered.append(message)
        self.on_deliver(message)
        topic = message.topic or ""
        router = self.broker.router
        if topic == "event.subscribe":
            router.events.subscribe(router.port_of(message), message.payload or b"")
        if topic == "event.publish":
            router.events.publish(event("news", message.payload))
        if not topic.startswith("mute"):
            self.broker.respond(response(message))

    def peer(self, *args, **more):
        return Peer(self, *args, **more)


def ask(topic, tag=1, payload=None, **more):
    return request(topic, payload, matchtag=tag, **more)


class Door:
    """A desk behind a real UNIX socket, whose clients are real sockets."""

    def __init__(self, desk, path, access=None, **limits):
        self.desk, self.uri = desk, f"local://{path}"
        self.path = str(path)
        access = access or Access(os.getuid())
        self.client_admission = ClientAdmission(
            desk.broker,
            access,
            limits.get("guest", 1 << 20),
            limits.get("owner", 16 << 20),
            user_bytes=limits.get("user", 0),
        )
        self.options = Options(
            flusher=desk.broker.flusher,
            budget=desk.budget,
            limits=desk.limits,
            admit=self.client_admission.admit,
            max_bytes=self.client_admission.max_bytes,
        )
        self.listener = None
        self.fars: list[Far] = []

    async def __aenter__(self):
        self.listener = await unix.listen(self.uri, self.client_admission.accept, self.options)
        return self

    async def __aexit__(self, *_error):
        await self.listener.stop()
        for port in list(self.desk.broker.router.ports):
            if port.link is not None:
                port.link.close()
        for far in self.fars:
            far.link.close()
        await ticks()

    async def dial(self):
        self.fars.append(Far(await unix.dial(self.uri, Options())))
        return self.fars[-1]

    @property
    def clients(self):
        return [port for port in self.desk.broker.router.ports if port.link is not None]


class Far:
    """A client program on a real socket."""

    def __init__(self, link):
        self.link, self.inbox, self.ended = link, [], None
        link.start(self)

    def received(self, _link, messages):
        self.inbox += messages

    def link_ended(self, _link, error):
        self.ended = error

    def link_choked(self, _link, choked):
        pass

    def say(self, *messages):
        for message in messages:
            self.link.send(message)
        self.link.flush()

    def of(self, kind):
        return [m for m in self.inbox if m.type == kind]
