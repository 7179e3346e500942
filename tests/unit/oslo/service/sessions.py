"""A way into the pipelines that notes what it is given and answers what the test says."""

import asyncio
import threading
from collections import deque

import msgspec

from broker.client import Limits
from broker.client.bridge import offer
from broker.oslo.contract import Address, Settings
from broker.oslo.service import FluxBridge, FluxBridgeConfig
from tests.unit.client.peer import talk


def config(ipc_dir="/nowhere", **more):
    return FluxBridgeConfig(Settings(ipc_dir=str(ipc_dir)), **more)


class FakeItem:
    def __init__(self, body, exchange="openstack", topic="notifications.info"):
        self.body = body if isinstance(body, bytes) else msgspec.json.encode(body)
        self.address = Address(exchange, topic)


class FakeIntake:
    """``items.put`` brings one, in whatever thread calls it."""

    def __init__(self, read):
        self.items = self
        self.closed = self.stopping = False
        self._waiting = deque()
        self._told = None
        self._read = read

    def put(self, item):
        self._waiting.append(item)
        if self._told is not None:
            self._told()

    def notify(self, told):
        self._told = told
        told()
        self._read.set()

    def get(self, timeout_s):
        assert timeout_s == 0.0
        return self._waiting.popleft() if self._waiting else None

    def close(self):
        self.closed = True


class FakePort:
    """``reply`` answers calls: bytes, a failure, or None for not yet; ``hold`` keeps casts in their threads.
    ``listens`` is set once what comes is read.
    """

    def __init__(self, reply=b'{"result":"pong"}'):
        self.reply = reply
        self.calls = []
        self.done = []
        self.sent = []
        self.failure = None
        self.hold = None
        self.intakes = []
        self.listened = []
        self.listens = threading.Event()
        self.closed = False

    def start_call(self, address, body, done, *, timeout_s, monitor_s=None, mandatory=False):
        self.calls.append((address, msgspec.json.decode(body), timeout_s, mandatory))
        if self.reply is None:
            self.done.append(done)
        else:
            thread = threading.Thread(target=done, args=(self.reply,))
            thread.start()
            thread.join()

    def _send(self, *what):
        if self.hold is not None:
            assert self.hold.wait(10)
        if self.failure is not None:
            raise self.failure
        self.sent.append(what)

    def cast(self, address, body, *, mandatory=False, retry=None):
        assert retry == 0
        self._send("cast", address, msgspec.json.decode(body), mandatory)

    def fanout(self, address, body, *, retry=None):
        assert retry == 0
        self._send("fanout", address, msgspec.json.decode(body))

    def listen_notifications(self, topics, pool):
        self.listened.append((tuple(topics), pool))
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.intakes.append(FakeIntake(self.listens))
        return self.intakes[-1]

    def close(self):
        self.closed = True


def with_service(script, session=None, **rules):
    """Run ``script(peer, port)``: the handlers of a bridge on a link whose far end is ``peer``."""
    session = session or FakePort()

    async def served(h, peer):
        bridge = FluxBridge(config(**rules), "", open_session=lambda _settings: session)
        await bridge.open()
        service = h.service("oslo")
        offer(service, bridge.table())
        async with service:
            await script(peer, session)
            await until(lambda: not bridge.counts()["casts"])
        await bridge.stop()

    talk(served, Limits())


async def until(done):
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.005)
