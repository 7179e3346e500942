"""Rank 0 of three, whose children are played by the test."""

import asyncio
import time
from dataclasses import replace

from broker.identity import PeerInfo
from broker.node.overlay import hello
from broker.node.overlay.control import Status
from broker.node.overlay.hello import Hello
from broker.routing.topology import Topology
from broker.transport import inproc
from broker.transport.link import Options
from broker.wire.message import Message
from tests.unit.node.overlay.trees import QUICK, Client, Rank, place, until

UUID = "9304037f-f976-439e-aebd-4a5224d6d28c"
OTHER = "7a4a2881-56bc-4dd8-923f-04bd8b6352b4"
HELLO = Hello(1, 0x5800, UUID, Status.FULL)


class Parent(Rank):
    """Rank 0 of three, to which children of the test connect."""

    def __init__(self, clock=time.monotonic, **config):
        config = {"listen_uri": place(), "hostnames": {0: "node0", 1: "node1", 2: "node2"}, **config}
        super().__init__(0, Topology(3), replace(QUICK, **config), clock=clock)

    async def __aenter__(self):
        await self.overlay.start()
        return self

    async def __aexit__(self, *_error):
        await self.overlay.stop()

    def connect(self, **peer) -> Client:
        """A link to the listener, with nothing said yet."""
        mine, theirs = inproc.pair(
            PeerInfo("parent"), PeerInfo("child", **peer), Options(), Options(flusher=self.broker.flusher)
        )
        self.overlay._children.accept(theirs)
        return Client(mine)

    async def join(self, told=HELLO) -> Client:
        child = self.connect()
        answer = await ask(child, hello.encode(told))
        assert answer.errnum == 0
        return child

    def health(self, rank=1):
        return next(entry for entry in self.overlay.child_health() if entry["rank"] == rank)


def say(child, message):
    child.link.send(message)
    child.link.flush()


async def ask(child, message) -> Message:
    """Send; the next message that comes back."""
    before = len(child.inbox)
    say(child, message)
    await until(lambda: len(child.inbox) > before)
    return child.inbox[before]


def run(story, **config):
    async def main():
        async with Parent(**config) as parent:
            await story(parent)

    asyncio.run(main())
