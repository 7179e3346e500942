"""Links inside one process: what is handed over as it is, and what as a copy."""

import asyncio

import pytest

from broker.identity import PeerInfo, Role
from broker.transport.inproc import pair
from broker.transport.link import Link, Options
from broker.wire import message as wire


class Kept:
    """Keeps what comes."""

    def __init__(self):
        self.messages = []

    def received(self, _link: Link, messages):
        self.messages += messages


@pytest.mark.parametrize("kind", ["event", "request", "response"])
@pytest.mark.parametrize("by", ["dialled", "listened"])
async def test_only_what_a_listener_publishes_is_shared(kind, by):
    """What the other side patches is not the sender's: a broker stamps what a client published."""
    request = wire.request("a.b", b"{}\0")
    message = {"event": wire.event("a.b", b"{}\0"), "request": request, "response": wire.response(request)}[
        kind
    ]
    dialled, listened = pair(PeerInfo("broker"), PeerInfo("client"), Options(), Options())
    sends, takes = (dialled, listened) if by == "dialled" else (listened, dialled)
    kept = Kept()
    takes.start(kept)
    sends.send(message)
    sends.flush()
    await asyncio.sleep(0)
    (came,) = kept.messages
    assert came == message
    assert (came is message) == (kind == "event" and by == "listened")


async def test_brokers_of_a_tree_share_no_event():
    """Whoever is below stamps it: what is local here is not local there."""
    options = Options(tree=True)
    dialled, listened = pair(PeerInfo("rank 0"), PeerInfo("rank 1"), options, options)
    below = Kept()
    dialled.start(below)
    message = wire.event("a.b", userid=1, rolemask=Role.OWNER | Role.LOCAL)
    listened.send(message)
    listened.flush()
    frame = message.framed()
    await asyncio.sleep(0)
    (came,) = below.messages
    came.set_credentials(1, Role.OWNER)
    assert (message.rolemask, message.framed()) == (Role.OWNER | Role.LOCAL, frame)
    assert came.framed() != frame
