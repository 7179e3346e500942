"""Small trees inside the test's process, over any transport, with the least services a test needs."""

import asyncio
import itertools
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from broker.identity import Credentials, PeerInfo, PeerKey, Role
from broker.ingress.stamping import StampPolicy
from broker.node.broker import Broker
from broker.node.overlay.overlay import Hooks, Overlay, OverlayConfig
from broker.routing.port import CLIENT, Port
from broker.routing.topology import Topology
from broker.transport import curve, inproc
from broker.transport.link import Options
from broker.wire.message import NODEID_ANY, Message, event, request, response
from tests.live.ports import free_endpoint

OWNER = os.getuid()
OWNER_CRED = Credentials(OWNER, int(Role.OWNER))
QUICK = OverlayConfig(backoff_s=0.01, backoff_max_s=0.05, hello_timeout_s=2.0, goodbye_timeout_s=1.0)
_numbers = itertools.count(1)


ANOTHER = os.environ.get("HEADGATE_TEST_TREE", "")
"""A module of another transport that trees here are made with: its functions ``place()`` gives an address nobody uses
yet, ``configured(config)`` an ``OverlayConfig`` with its options. Default: in-process links."""


def place(kind="inproc"):
    """An address nobody uses yet."""
    return f"{kind}://overlay-test-{os.getpid()}-{next(_numbers)}"


def tree_place():
    """The same for a whole tree."""
    return import_module(ANOTHER).place() if ANOTHER else place()


def configured(config):
    """``config`` with what the transport of ``tree_place`` needs."""
    return import_module(ANOTHER).configured(config) if ANOTHER else config


def tcp_place():
    """A loopback address with a port that nobody else is given."""
    return free_endpoint()


def shared_certificate(config, certificate=None):
    """``config`` with one certificate for all ranks, as deployed Flux has it."""
    certificate = certificate or curve.generate()
    keys = {certificate.public_key: PeerKey()}
    return replace(
        config,
        listen=Options(extra={"curve": curve.CurveServer(certificate)}, keys=keys),
        dial=Options(extra={"curve": curve.CurveClient(certificate, certificate.public_key)}),
    )


class Clock:
    """Monotonic seconds that pass when the test says so, with a look of an overlay at each step."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    async def live(self, overlay, seconds, step=2.5):
        """``seconds`` in which the loop of ``overlay`` runs as it should."""
        for _ in range(round(seconds / step)):
            self.now += step
            overlay.pulse()
            for _ in range(5):
                await asyncio.sleep(0)


async def until(condition: Callable[[], object], seconds: float = 40.0):
    """Wait for a condition; fail rather than hang."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


class Rank:
    """One broker of a test tree: records what it was told, answers ``NAME.ping`` with its rank."""

    def __init__(self, rank, topology, config, service="probe", clock=time.monotonic):
        self.broker = Broker(rank, topology, str(uuid.uuid4()), str(uuid.uuid4()), OWNER)
        self.told: list[tuple] = []
        self.refusals: list[tuple] = []
        self.requests: list[Message] = []
        self.events: list[Message] = []
        self.rank = rank
        self.broker.deliver = self._deliver
        self.broker.observe = self.events.append
        self.broker.router.services.add(service.encode(), self.broker.own)
        self.broker.router.events.subscribe(self.broker.own, b"")
        options = {"flusher": self.broker.flusher}
        config = replace(
            config, listen=replace(config.listen, **options), dial=replace(config.dial, **options)
        )
        self.overlay = Overlay(self.broker, config, self._hooks(), clock)

    def _hooks(self):
        return Hooks(
            joined=lambda: self.told.append(("joined",)),
            parent_lost=lambda reason: self.told.append(("parent_lost", reason)),
            must_exit=lambda reason: self.told.append(("must_exit", reason)),
            child_changed=lambda *what: self.told.append(("child", *what)),
            status_changed=lambda status: self.told.append(("status", status)),
            refused=lambda *what: self.refusals.append(what),
        )

    def _deliver(self, message):
        self.requests.append(message)
        word = (message.topic or "").rpartition(".")[2]
        if word == "ping":
            self.broker.respond(response(message, str(self.rank).encode(), userid=OWNER, rolemask=1))

    async def call(self, nodeid, topic="probe.ping", flags=0, seconds=10.0) -> Message:
        """Call as the broker itself; the response, errors included."""
        done = asyncio.get_running_loop().create_future()
        self.broker.calls.call(topic, None, done.set_result, nodeid=nodeid, flags=flags)
        async with asyncio.timeout(seconds):
            return await done

    def publish(self, topic, cred=(OWNER, int(Role.OWNER)), flags=0):
        """Publish as a client of this broker would; from rank 0 it is numbered and comes down."""
        userid, rolemask = cred
        message = event(topic, b"x", userid=userid, rolemask=rolemask, flags=flags)
        self.broker.post(lambda item: self.broker.router.events.receive(self.broker.own, item), message)

    def client(self, cred=OWNER_CRED):
        """A client attached here: its link, with received messages in ``link.inbox``."""
        mine, theirs = inproc.pair(
            PeerInfo("broker"), PeerInfo("client"), Options(), Options(flusher=self.broker.flusher)
        )
        policy = StampPolicy(Credentials(cred.userid, cred.rolemask), pass_through=cred.owner, local=True)
        self.broker.attach(Port(CLIENT, str(uuid.uuid4()), theirs.send, cred, policy=policy, link=theirs))
        return Client(mine)


class Client:
    """The far end of a client link."""

    def __init__(self, link):
        self.link = link
        self.inbox: list[Message] = []
        self.ended = None
        link.start(self)

    def received(self, link, messages):
        self.inbox += messages

    def link_ended(self, link, error):
        self.ended = error

    def link_choked(self, link, choked):
        pass

    async def call(self, topic="probe.ping", nodeid=NODEID_ANY, tag=1, flags=0, **more) -> Message:
        self.link.send(request(topic, nodeid=nodeid, matchtag=tag, flags=flags, **more))
        self.link.flush()
        await until(lambda: any(m.matchtag == tag and m.type == 2 for m in self.inbox))
        return next(m for m in self.inbox if m.matchtag == tag and m.type == 2)


class Tree:
    """A whole instance: ``size`` ranks of ``kary:fanout`` in this process."""

    def __init__(self, size, fanout=2, config=QUICK, address=tree_place):
        self.topology = Topology(size, fanout)
        self.addresses = [address() for _ in range(size)]
        self.config = configured(config) if address is tree_place else config
        self.ranks = [self.make(rank) for rank in range(size)]

    def config_of(self, rank, **changes) -> OverlayConfig:
        parent = self.topology.parent(rank)
        return replace(
            self.config,
            listen_uri=self.addresses[rank],
            parent_uri=self.addresses[parent] if rank else None,
            **changes,
        )

    def make(self, rank, **changes) -> Rank:
        return Rank(rank, self.topology, self.config_of(rank, **changes))

    async def __aenter__(self):
        async with asyncio.timeout(20):
            await asyncio.gather(*(rank.overlay.start() for rank in self.ranks))
        return self

    async def __aexit__(self, *_error):
        for rank in reversed(self.ranks):
            await rank.overlay.stop()
