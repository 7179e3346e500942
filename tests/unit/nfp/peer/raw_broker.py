"""A broker by hand: one ROUTER, every message seen and sent by the test itself."""

from __future__ import annotations

import asyncio
import itertools
import json

import zmq

from broker.nfp.frames import Packet, decode, encode
from broker.nfp.names import Command, Sender
from broker.transport.curve import Certificate

PATIENCE_S = 40.0


class RawBroker:
    """Binds at construction; ``with RawBroker() as broker``.

    ``opens`` answers every OPEN as our broker does; without it OPEN is dropped, as deployed NorFab does.
    """

    def __init__(
        self, *, opens: bool = False, endpoint: str = "", curve: Certificate | None = None, epoch: str = "e1"
    ):
        self.context = zmq.Context()
        self.sock = self.context.socket(zmq.ROUTER)
        self.sock.set(zmq.LINGER, 0)
        self.sock.set(zmq.ROUTER_HANDOVER, 1)
        self.sock.set(zmq.ROUTER_MANDATORY, 1)
        if curve is not None:
            self.sock.set(zmq.CURVE_SERVER, 1)
            self.sock.set(zmq.CURVE_SECRETKEY, curve.secret_key.encode())
        if endpoint:
            self.sock.bind(endpoint)
        else:
            self.sock.bind("tcp://127.0.0.1:*")
        self.endpoint = self.sock.get(zmq.LAST_ENDPOINT).decode().rstrip("\0")
        self.opens = opens
        self.offers: list[dict] = []
        self.epoch = epoch
        self.numbers = itertools.count(1)
        self.features = ["recorded", "delete", "jobs"]
        self.keepalive_ms = 2500
        self.multiplier = 6

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Kill it."""
        self.context.destroy(linger=0)

    def restarted(self, **other) -> RawBroker:
        """Another broker at the same place."""
        return RawBroker(opens=self.opens, endpoint=self.endpoint, **other)

    def send(self, name: str, packet: Packet):
        """Send ``packet`` to ``name``."""
        self.sock.send_multipart([name.encode(), *encode(packet)])

    def say(self, name: str, command: Command, **fields):
        """Send a packet of the broker."""
        self.send(name, Packet(Sender.BROKER, command, **fields))

    def answer_open(self, name: str):
        """The broker's OPEN."""
        body = {
            "broker": "headgate",
            "version": "0",
            "keepalive_ms": self.keepalive_ms,
            "multiplier": self.multiplier,
            "features": self.features,
            "epoch": self.epoch,
        }
        self.say(name, Command.OPEN, body=json.dumps(body).encode())

    async def frames(self, timeout_s: float = PATIENCE_S) -> list[bytes]:
        """The next message, identity first."""
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return self.sock.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    await asyncio.sleep(0.002)

    async def take(self, *skip: Command, timeout_s: float = PATIENCE_S) -> tuple[str, Packet]:
        """The next packet that is none of ``skip``; OPEN is answered or dropped and not returned."""
        while True:
            name, *frames = await self.frames(timeout_s)
            packet = decode(frames)
            if packet.command is Command.OPEN:
                self.offers.append(json.loads(packet.data))
                if self.opens:
                    self.answer_open(name.decode())
            elif packet.command not in skip:
                return name.decode(), packet

    async def take_open(self) -> tuple[str, dict]:
        """The next packet, which must be OPEN; it is not answered."""
        name, *frames = await self.frames()
        packet = decode(frames)
        assert packet.command is Command.OPEN, packet
        return name.decode(), json.loads(packet.data)

    async def take_only(self, command: Command, *skip: Command) -> Packet:
        """The next packet that is none of ``skip``, which must be ``command``."""
        _name, packet = await self.take(*skip)
        assert packet.command is command, packet
        return packet


async def until(condition, timeout_s: float = PATIENCE_S):
    """Wait for ``condition()`` and return what it says."""
    async with asyncio.timeout(timeout_s):
        while not (value := condition()):
            await asyncio.sleep(0.002)
        return value
