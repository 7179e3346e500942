"""A stand-in for the upstream that does what a test tells it: leave numbers out, be started again, fall silent."""

import asyncio
import base64
import contextlib
import itertools

from broker.transport.link import Options
from broker.transport.registry import listen
from broker.wire import message as wire
from broker.wire.event_history import FrameHistory
from broker.wire.payload import decode_json, encode_json
from gateway.upstream.upstream import Upstream
from tests.unit.client.tiny_broker import TinyBroker
from tests.unit.gateway.upstream.recorder import Recorder

_names = itertools.count()


class StandIn(TinyBroker):
    """Attributes of an instance, events as told, streams that watch rank 0."""

    page_msgs = 2

    def __init__(self, rank=0, headgate=True):
        super().__init__()
        self.uri = f"inproc://upstream-{next(_names)}"
        self.attrs = {"rank": str(rank), "size": "2", "version": "0.88.0", "broker.uuid": "epoch-1"}
        if headgate:
            self.attrs["headgate.version"] = "1.2.3"
        self.number = 0
        self.history = None
        self.rolemask = 5
        self.silent = ()
        self.root_lost = False
        self.watches = []
        self.seen = []
        self.listener = None
        self.options = Options()

    async def open(self):
        self.listener = await listen(self.uri, self.accept, self.options)

    async def close(self):
        if self.listener is not None:
            await self.listener.stop()
            self.listener = None
        for link in list(self.links.values()):
            link.close("the stand-in stops")
        await asyncio.sleep(0)

    def requested(self, link, message):
        if message.type == wire.CONTROL:
            return
        self.seen.append(message.topic)
        if message.topic in self.silent:
            return
        if self.root_lost and message.nodeid == 0:
            self.back(wire.response(message, errnum=113))
        elif message.topic.endswith(".disconnect"):
            return
        else:
            super().requested(link, message)

    def publish(self, message):
        self.number += 1
        message.set_aux1(self.number)
        if self.history is not None:
            self.history.add(message.copy(), self.number)
        for name, prefixes in self.prefixes.items():
            if name in self.links and message.topic.startswith(tuple(prefixes)):
                self.links[name].send(message.copy())

    def event(self, topic="t", number=None, **fields):
        """Publish an event, or one that seems to have another number."""
        if number is not None:
            self.number = number - 1
        self.publish(wire.event(topic, **fields))

    def lose_root(self):
        self.root_lost = True
        watches, self.watches = self.watches, []
        for watch in watches:
            self.back(wire.response(watch, errnum=113))

    def new_root(self, epoch="epoch-2"):
        self.root_lost = False
        self.attrs["broker.uuid"] = epoch
        self.number = 0
        if self.history is not None:
            self.keep()

    def keep(self, max_bytes=1 << 20):
        """Keep events from now on, as a rank 0 that has none yet."""
        self.history = FrameHistory(max_bytes, 0.0)
        self.history.begin(self.attrs["broker.uuid"], self.number)

    # -- services ------------------------------------------------------------------------------

    def event_since(self, link, message):
        if self.history is None:
            self.back(wire.response(message, b"", errnum=38))
            return
        asked, history = decode_json(message.payload), self.history
        missing = not history.covers(asked["epoch"], asked["sequence"])
        behind = history.before if missing else asked["sequence"]
        said = {
            "epoch": history.epoch,
            "last": history.last,
            "behind": behind,
            "missing": missing,
            "events": base64.b64encode(b"".join(history.since(behind, self.page_msgs))).decode(),
        }
        self.back(wire.response(message, encode_json(said)))

    def attr_get(self, link, message):
        value = self.attrs.get(decode_json(message.payload)["name"])
        if value is None:
            self.back(wire.response(message, errnum=2))
        else:
            self.back(wire.response(message, encode_json({"value": value, "flags": 0})))

    def broker_ping(self, link, message):
        said = {"seq": 0, "userid": 7, "rolemask": self.rolemask}
        self.back(wire.response(message, encode_json(said)))

    def groups_get(self, link, message):
        self.watches.append(message.copy())
        self.back(wire.response(message, encode_json({"members": "0-1"})))


@contextlib.asynccontextmanager
async def joined(standin=None, *, centre=None, service=None, **options):
    """(stand-in, centre, upstream), joined; all of it is stopped at the end."""
    standin = standin or StandIn()
    centre = centre or Recorder()
    upstream = Upstream(standin.uri, **{"rejoin_max_s": 0.1, **options})
    try:
        await standin.open()
        await upstream.start(centre, service)
        assert await upstream.wait_joined(10), upstream.reason
        yield standin, centre, upstream
    finally:
        await upstream.stop()
        await standin.close()


def run(script):
    """Run ``script()`` to its end, within 20 s."""

    async def main():
        async with asyncio.timeout(20):
            await script()

    asyncio.run(main())
