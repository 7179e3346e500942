"""The far end of a Handle's link, driven by a test: no broker, only what the test says.

`talk(script)` runs `script(handle, peer)` on a fresh loop with both ends joined in process.
"""

import asyncio
from collections import deque

from broker.client import Handle, Limits
from broker.identity import PeerInfo
from broker.transport.inproc import pair
from broker.transport.link import Options
from broker.wire import message as wire
from broker.wire.payload import any_text, encode_json

OWNER = 5
GUEST = 6


class Peer:
    """What arrived stands in `seen`; `auto` topics are answered at once with an empty success."""

    def __init__(self, link, auto=("event.subscribe", "event.unsubscribe", "service.add", "service.remove")):
        self.link = link
        self.auto = set(auto)
        self.seen = deque()
        self.log = []
        self.ended = None
        self._fresh = asyncio.Event()
        link.start(self)

    def received(self, link, messages):
        for message in messages:
            self.log.append((wire.TYPE_NAMES[message.type], message.topic))
            if message.type == wire.REQUEST and message.topic in self.auto:
                link.send(wire.response(message))
            else:
                self.seen.append(message)
        self._fresh.set()

    def link_ended(self, link, error):
        self.ended = error

    def link_choked(self, link, choked):
        raise AssertionError("the tests send little")

    async def next(self):
        """The next message that was not answered by itself."""
        while not self.seen:
            self._fresh.clear()
            async with asyncio.timeout(5):
                await self._fresh.wait()
        return self.seen.popleft()

    def answer(self, message, payload=None, errnum=0, streaming=None):
        answer = wire.response(message, payload, errnum=errnum)
        if streaming is False:
            answer.set_flags(answer.flags & ~wire.STREAMING)
        self.link.send(answer)

    def event(self, topic, payload=None, sequence=1, flags=0):
        self.link.send(wire.event(topic, payload, sequence=sequence, flags=flags, userid=7, rolemask=OWNER))

    def call(
        self, topic, payload=None, *, tag=1, sender=(b"hop", b"client"), flags=0, rolemask=OWNER, userid=7
    ):
        """A request as a provider sees it: routes below the broker's, credentials stamped."""
        message = wire.request(
            topic, encode_json(payload) if isinstance(payload, dict) else payload,
            matchtag=tag, flags=flags, userid=userid, rolemask=rolemask,
        )  # fmt: skip
        for route in reversed(sender):
            message.push_route(route)
        self.link.send(message)
        return message

    def close(self):
        self.link.close("the broker leaves")


def talk(script, limits=None, options=None, **peer_options):
    async def main():
        loop = asyncio.get_running_loop()
        complaints = []
        loop.set_exception_handler(lambda _loop, context: complaints.append(context))
        names = PeerInfo("inproc://broker"), PeerInfo("inproc://client")
        near, far = pair(*names, options or Options(), Options())
        peer = Peer(far, **peer_options)
        async with asyncio.timeout(20), Handle(near, limits or Limits()) as handle:
            await script(handle, peer)
        assert not complaints, complaints
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not others, f"tasks left behind: {others}"

    asyncio.run(main())


async def settle(rounds=20):
    """Let everything that is ready on the loop happen."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def soon(coroutine):
    """A task that the test awaits."""
    return asyncio.get_running_loop().create_task(coroutine)


async def asked(peer, topic, payload=None, **options):
    """Call and return (errnum, text) of the one response."""
    peer.call(topic, payload, **options)
    answer = await peer.next()
    return answer.errnum, any_text(answer.payload)
