"""One ROUTER of the broker in a running loop, with a scripted ingress behind it and raw ZeroMQ peers in front."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import zmq

from broker.endpoints import parse
from broker.nfp.principal import Principal
from broker.nfp.records import WorkerSeen
from broker.nfp.server.names import BrokerKeys
from broker.nfp.server.router import NfpRouter
from broker.nfp.server.turn import QueueLimits, Turn
from broker.settings.nfp import NfpSection
from broker.transport import curve
from broker.transport.curve import Certificate

PATIENCE_S = 40.0
LIMITS = QueueLimits(1 << 20, 1000)
SERVER = curve.generate()
KEY, OTHER = curve.generate(), curve.generate()


class ScriptedIngress:
    """Lets everybody in but ``strangers``, and writes down what happens."""

    def __init__(self) -> None:
        self.strangers: set[str] = set()
        self.foreign: set[tuple[bytes, str]] = set()
        self.came: list[tuple[str, list[bytes]]] = []
        self.ended: list[str] = []
        self.relieved: list[str] = []
        self.arrivals: list[str] = []
        self.peers: list = []
        self.on_message: Callable = lambda peer, frames: None

    def known(self, key: str) -> bool:
        self.arrivals.append(key)
        return key not in self.strangers

    def authenticate(self, identity: bytes, key: str, address: str) -> Principal | None:
        return None if (identity, key) in self.foreign else Principal(f"key:{key}", key=key)

    def handle(self, peer, frames, now) -> None:
        if peer not in self.peers:
            self.peers.append(peer)
        self.came.append((peer.name, frames))
        self.on_message(peer, frames)

    def gone(self, peer, now) -> None:
        self.ended.append(peer.name)

    def has_room(self, peer) -> None:
        self.relieved.append(peer.name)

    def messages(self, name: str) -> list[bytes]:
        return [bytes(frames[-1]) for who, frames in self.came if who == name]


class Stage:
    """A broker of one router and its ingress; ``broken`` is the store's."""

    recording = None
    dropped = called_back = 0

    def __init__(self, uri: str, certificate: Certificate | None, limits: QueueLimits, beat_ms: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.ingress = ScriptedIngress()
        self.broken = ""
        self.turn = Turn(
            self.loop,
            commit=lambda *, waited: None,
            tick=lambda now: float("inf"),
            gate_is_stuck=lambda: bool(self.broken),
        )
        self.clock = self.turn.clock
        self.settings = NfpSection(keepalive_ms=beat_ms, multiplier=6, message_bytes_max=1 << 20)
        self.keys = BrokerKeys(certificate, None)
        self.limits = limits
        self.expected: dict[str, WorkerSeen] = {}
        self.router = NfpRouter(self, parse(uri))
        self.context = zmq.Context()
        self.secret = certificate is not None

    def tell_room(self, peer) -> None:
        asyncio.get_running_loop().call_soon(self.ingress.has_room, peer)

    def dealer(self, identity: bytes, key: Certificate = KEY, **options: int) -> zmq.Socket:
        sock = self.context.socket(zmq.DEALER)
        sock.set(zmq.LINGER, 0)
        if identity:
            sock.set(zmq.ROUTING_ID, identity)
        for option, value in options.items():
            sock.set(getattr(zmq, option), value)
        if self.secret:
            sock.set(zmq.CURVE_SERVERKEY, SERVER.public_key.encode())
            sock.set(zmq.CURVE_PUBLICKEY, key.public_key.encode())
            sock.set(zmq.CURVE_SECRETKEY, key.secret_key.encode())
        sock.connect(self.router.address)
        return sock


@contextlib.asynccontextmanager
async def stage(
    *, plain: bool = False, limits: QueueLimits = LIMITS, beat_ms: int = 2500, uri: str = ""
) -> AsyncIterator[Stage]:
    made = Stage(uri or "tcp://127.0.0.1:*", None if plain else SERVER, limits, beat_ms)
    try:
        yield made
    finally:
        made.turn.close()
        await made.router.close()
        made.context.destroy(0)


async def until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(patience_s):
        while not condition():
            await asyncio.sleep(0.005)


async def received(sock: zmq.Socket) -> list[bytes]:
    """The next message at a raw socket."""
    await until(lambda: sock.poll(0))
    return sock.recv_multipart()
