"""Rank 1 of a tree, with its parent played by the test."""

import asyncio
import time
from dataclasses import replace

from broker.node.overlay import hello
from broker.node.overlay.control import Status
from broker.node.overlay.hello import HeadgateHello
from broker.routing.topology import Topology
from broker.transport import registry
from broker.transport.link import Options
from broker.wire.message import (
    CONTROL,
    request,
    response,
)
from tests.unit.node.overlay.trees import OWNER, QUICK, Client, Rank, place, until

PARENT = "ef3b72fa-e999-463f-b9d9-bf6763b37319"


class Story:
    """Rank 1 of four (rank 3 is below it), and the parent's end of each connection it makes."""

    def __init__(self, size=4, clock=time.monotonic, ours=None, **config):
        self.uri = place()
        self.links: list[Client] = []
        listen = place()
        config = replace(QUICK, parent_uri=self.uri, listen_uri=listen, **config)
        self.child = Rank(1, Topology(size), config, clock=clock)
        self.admits = True
        self.ours = ours or HeadgateHello()
        self.uuid = PARENT

    async def listen(self):
        self.listener = await registry.listen(
            self.uri, lambda link: self.links.append(PlayedParent(link, self)), Options()
        )

    async def start(self):
        await self.listen()
        async with asyncio.timeout(10):
            await self.child.overlay.start()

    async def start_between(self):
        """Start, our hello not answered, while rank 3 says hello to us; returns the start and rank 3's link."""
        self.admits = False
        await self.listen()
        starting = asyncio.get_running_loop().create_task(self.child.overlay.start())
        await until(lambda: self.links and self.links[0].inbox)
        link = await registry.dial(self.child.overlay.contact_uri, Options())
        link.send(hello.encode(hello.Hello(3, 0x5800, "3" * 36, Status.FULL)))
        link.flush()
        return starting, link

    def admit(self):
        """Answer the hello that was not answered."""
        self.link.say(hello.admit(self.link.inbox[0], PARENT, HeadgateHello()))

    @property
    def link(self):
        return self.links[-1]

    def controls(self, kind):
        return [m for m in self.link.inbox if m.type == CONTROL and m.aux1 == kind]


class PlayedParent(Client):
    def __init__(self, link, story):
        self.story = story
        super().__init__(link)

    def received(self, link, messages):
        super().received(link, messages)
        for message in messages:
            if hello.is_hello(message) and self.story.admits:
                self.say(hello.admit(message, self.story.uuid, self.story.ours))
            elif message.topic == "overlay.goodbye":
                self.say(response(message))

    def say(self, message):
        self.link.send(message)
        self.link.flush()

    def ask_down(self, topic, tag=1, flags=0):
        """A request of a client above us to rank 1, as a deployed parent sends it."""
        message = request(topic, nodeid=1, matchtag=tag, flags=flags, userid=OWNER, rolemask=1 | 4)
        message.push_route(b"c" * 36)
        message.push_route(PARENT.encode())
        self.say(message)


def run(tell, **config):
    async def main():
        story = Story(**config)
        await story.start()
        await tell(story)
        await story.child.overlay.stop()
        await story.listener.stop()

    asyncio.run(main())
