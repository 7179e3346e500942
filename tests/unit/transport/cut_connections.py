"""Many connections that took half a message, ended by both sides at once: ``python -m … listener|dialer ROUNDS``."""

import asyncio
import sys
import tempfile

import zmq

from broker.errors import LinkClosed
from broker.transport import zeromq
from broker.transport.link import Link, Options
from broker.wire.message import control, request

CONNECTIONS = 20
MESSAGES = 40
PART_BYTES = 16 << 10
"""More than a connection's kernel buffers take, and the messages are of several parts: the last is taken by half."""


class Ignore:
    def received(self, link, messages):
        pass

    def link_ended(self, link, error):
        pass

    def link_choked(self, link, choked):
        pass


async def fill(links: list[Link]) -> None:
    for link in links:
        for _ in range(MESSAGES):
            link.send(request("t", bytes(PART_BYTES)))
        link.flush()
    await asyncio.sleep(0.03)  # libzmq's thread sends what the kernel takes


def deaf(context: zmq.Context, kind: int) -> zmq.Socket[bytes]:
    sock = context.socket(kind)
    sock.set(zmq.RCVHWM, 1)
    sock.set(zmq.LINGER, 0)
    return sock


async def listener(address: str, context: zmq.Context) -> None:
    """A listener stops right after it ended its links."""
    links: list[Link] = []
    everybody = asyncio.Event()

    def accept(link: Link) -> None:
        link.start(Ignore())
        links.append(link)
        if len(links) == CONNECTIONS:
            everybody.set()

    listening = await zeromq.transport.listen(address % 0, accept, Options())
    peers = [deaf(context, zmq.DEALER) for _ in range(CONNECTIONS)]
    for peer in peers:
        peer.connect(address % 0)
        peer.send_multipart(control(0).parts())
    await everybody.wait()
    await fill(links)
    for link in links:
        link.abort(LinkClosed("over"))
    await listening.stop()


async def dialer(address: str, context: zmq.Context) -> None:
    """Dialers end their links while the other side closes."""
    peers, links = [], []
    for number in range(CONNECTIONS):
        peer = deaf(context, zmq.ROUTER)
        peer.bind(address % number)
        link = await zeromq.transport.dial(address % number, Options())
        link.start(Ignore())
        peers.append(peer)
        links.append(link)
    await fill(links)
    for peer, link in zip(peers, links, strict=True):
        peer.close(0)
        link.abort(LinkClosed("over"))


if __name__ == "__main__":
    for _ in range(int(sys.argv[2])):
        with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
            asyncio.run({"listener": listener, "dialer": dialer}[sys.argv[1]](f"ipc://{folder}/%d", context))
