"""A broker of NFP to test against, in this process or as one of its own, and raw peers that speak frames by hand.

with nfp_broker(rundir, curve=False) as live:             # in a thread with a loop of its own
    with live.dealer("w1") as worker, live.req() as client:
        worker.send(*READY)
        client.send(b"NFPC01", b"\x04", b"svc", b"any", b"u1", b"{}")

with nfp_process(rundir, store=True) as live:              # to be killed and started again
    live.kill(); live.start()
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import zmq

from broker.journal.options import JournalOptions
from broker.nfp import frames
from broker.nfp.frames import Packet
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.server.broker import NfpBroker
from broker.nfp.targets import parse
from broker.settings.nfp import NfpSection
from broker.transport import curve
from broker.transport.curve import Certificate
from tests.live.ports import free_endpoint
from tests.live.starter import NFP_BROKER, Started, started

PATIENCE_S = 40.0
QUIET_S = 0.1
"""How long a silence is watched for before it counts as one."""
Answer = TypeVar("Answer")


def workers_of(broker):
    """Views of the workers of a broker in this process."""
    return broker.dispatcher.workers(broker.clock.now())


def clients_of(broker):
    """Views of its clients."""
    return broker.dispatcher.clients(broker.clock.now())


def section(rundir: Path, **settings: Any) -> NfpSection:
    """Settings of a broker with a free port, whose files are in ``rundir``."""
    usual: dict[str, Any] = {"endpoint": "tcp://127.0.0.1:*", "base_dir": str(rundir / "nfp")}
    return msgspec.convert({**usual, **settings}, NfpSection)


class Live:
    """Where a broker can be reached; makes raw peers."""

    endpoint: str
    worker_endpoint: str
    server_key: str
    base_dir: Path
    curve: bool

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.certificates: dict[str, Certificate] = {}

    def certificate(self, name: str) -> Certificate:
        """The key pair that the peer ``name`` always has."""
        return self.certificates.setdefault(name, curve.generate())

    def owner(self) -> Certificate:
        """The key that the broker made for its owner."""
        return curve.load(self.base_dir / "owner.key_secret")

    def dealer(
        self, name: str | bytes, *, key: Certificate | None = None, workers: bool = False, **options: int
    ) -> RawPeer:
        """A DEALER; ``workers``: at the second ROUTER."""
        identity = name if isinstance(name, bytes) else name.encode()
        return self._peer(zmq.DEALER, identity, key or self.certificate(str(name)), workers, options)

    def req(self, name: str = "", *, key: Certificate | None = None) -> RawPeer:
        """A strict REQ client, usually without identity of its own."""
        return self._peer(zmq.REQ, name.encode(), key or self.certificate(name or "anonymous"), False, {})

    def _peer(
        self, kind: int, identity: bytes, key: Certificate, workers: bool, options: dict[str, int]
    ) -> RawPeer:
        sock = self.context.socket(kind)
        sock.set(zmq.LINGER, 0)
        if identity:
            sock.set(zmq.ROUTING_ID, identity)
        for option, value in options.items():
            sock.set(getattr(zmq, option), value)
        if self.curve:
            sock.set(zmq.CURVE_SERVERKEY, self.server_key.encode())
            sock.set(zmq.CURVE_PUBLICKEY, key.public_key.encode())
            sock.set(zmq.CURVE_SECRETKEY, (key.secret_key or "").encode())
        sock.connect(self.worker_endpoint if workers else self.endpoint)
        return RawPeer(sock, kind == zmq.REQ)


class RawPeer:
    """Frames by hand. Frame 0 is put in front of what a DEALER sends; a REQ does so itself."""

    def __init__(self, sock: zmq.Socket[bytes], req: bool) -> None:
        self.sock = sock
        self._req = req

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close(0)

    def send(self, *parts: bytes) -> None:
        self.sock.send_multipart(parts if self._req else (b"", *parts))

    def send_exactly(self, parts: list[bytes]) -> None:
        self.sock.send_multipart(parts)

    def say(self, packet: Packet) -> None:
        self.send(*[bytes(frame) for frame in frames.encode(packet)[1:]])

    def recv(self, patience_s: float = PATIENCE_S) -> list[bytes]:
        """The next message with frame 0."""
        assert self.sock.poll(round(patience_s * 1000)), f"nothing came within {patience_s} s"
        parts = self.sock.recv_multipart()
        return [b"", *parts] if self._req else parts

    def hear(self, patience_s: float = PATIENCE_S) -> Packet:
        """The next message, decoded; KEEPALIVE is passed over."""
        until = time.monotonic() + patience_s
        while True:
            packet = frames.decode(self.recv(max(0.0, until - time.monotonic())))
            if packet.command is not Command.KEEPALIVE:
                return packet

    def until(self, wanted: Callable[[Packet], bool], patience_s: float = PATIENCE_S) -> Packet:
        """The next message that is wanted; those before are passed over."""
        until = time.monotonic() + patience_s
        while True:
            packet = self.hear(max(0.0, until - time.monotonic()))
            if wanted(packet):
                return packet

    def silent(self, for_s: float = QUIET_S) -> bool:
        """True when nothing but KEEPALIVE comes."""
        until = time.monotonic() + for_s
        while self.sock.poll(max(0, round((until - time.monotonic()) * 1000))):
            parts = self.recv()
            if frames.decode(parts).command is not Command.KEEPALIVE:
                return False
        return True


# -- packets by hand ------------------------------------------------------------------------------


def request(
    command: Command,
    uuid: str,
    service: str = "svc",
    target: str = "any",
    body: bytes = b'{"task":"ping"}',
    dialect: Dialect = Dialect.NORFAB,
) -> Packet:
    """What a client sends."""
    return Packet(
        Sender.CLIENT, command, dialect=dialect, service=service, target=parse(target), uuid=uuid, body=body
    )


def ready(service: str = "svc", dialect: Dialect = Dialect.NORFAB) -> Packet:
    return Packet(Sender.WORKER, Command.READY, dialect=dialect, service=service)


def keepalive(service: str = "svc", dialect: Dialect = Dialect.NORFAB) -> Packet:
    return Packet(Sender.WORKER, Command.KEEPALIVE, dialect=dialect, service=service)


def reply(
    post: Packet,
    status: int = 200,
    body: bytes = b"{}",
    command: Command = Command.RESPONSE,
    service: str = "svc",
) -> Packet:
    """What a worker sends about ``post``, in the form it was written in."""
    return Packet(
        Sender.WORKER,
        command,
        dialect=post.dialect,
        service="" if post.client is not None else service,
        client=post.client,
        uuid=post.uuid,
        status=status,
        body=body,
    )


# -- a broker in this process ---------------------------------------------------------------------


async def files_served(broker: NfpBroker) -> None:
    """Wait until its file service is registered, as the command does, but however busy the machine is."""
    async with asyncio.timeout(PATIENCE_S):
        while not all(worker.connected for worker in broker.files_worker._workers):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)  # READY of the last one is acted on in the next turn


class LiveBroker(Live):
    """An ``NfpBroker`` in a thread of its own."""

    def __init__(self, settings: NfpSection, journal: JournalOptions | None = None) -> None:
        super().__init__()
        self.settings = settings
        self.journal = journal
        self.base_dir = Path(settings.base_dir)
        self.curve = settings.curve
        self.broker: NfpBroker
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nfp broker")
        self._thread.start()
        try:
            self.run(self._start())
        except BaseException:
            self._end()
            raise
        self.endpoint = self.broker.routers[0].address
        self.worker_endpoint = self.broker.routers[-1].address
        self.server_key = self.broker.server_key

    async def _start(self) -> None:
        self.broker = NfpBroker(self.settings, journal=self.journal)
        await self.broker.start()
        await files_served(self.broker)

    def run(self, coroutine: Any) -> Any:
        """Await something in the broker's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    def call(self, function: Callable[[], Answer]) -> Answer:
        """Call something in the broker's loop."""

        async def called() -> Answer:
            return function()

        return self.run(called())

    def eventually(self, condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        """Wait until ``condition``, asked in the broker's loop, is true."""
        until = time.monotonic() + patience_s
        while not (found := self.call(condition)):
            assert time.monotonic() < until, f"not within {patience_s} s"
            time.sleep(0.01)
        return found

    def stop(self) -> None:
        """In order, as SIGTERM would."""
        try:
            self.run(self.broker.stop())
        finally:
            self._end()

    def _end(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self.context.destroy(0)


@contextlib.contextmanager
def nfp_broker(
    rundir: Path, *, journal: JournalOptions | None = None, **settings: Any
) -> Iterator[LiveBroker]:
    """A broker in a thread of this process; ``settings`` as in ``[nfp]``."""
    live = LiveBroker(section(rundir, **settings), journal)
    try:
        yield live
    finally:
        live.stop()


@contextlib.asynccontextmanager
async def running(settings: NfpSection) -> AsyncIterator[NfpBroker]:
    """A broker in this loop, for the libraries of workers and clients."""
    broker = NfpBroker(settings)
    await broker.start()
    try:
        await files_served(broker)
        yield broker
    finally:
        await broker.stop()


# -- a broker as a process ------------------------------------------------------------------------

PROGRAM = """
import sys
import msgspec
from broker.nfp.server.process import run
from broker.settings.nfp import NfpSection

def ready(broker):
    print("ready", *broker.endpoints, flush=True)

sys.exit(run(msgspec.json.decode(sys.argv[1], type=NfpSection), ready=ready))
"""
START_S = 20.0


class NfpProcess(Live):
    """A broker as a process of its own; ``log`` is the file its lines go to."""

    def __init__(self, settings: NfpSection, *, prefix: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.settings = settings
        self.base_dir = Path(settings.base_dir)
        self.curve = settings.curve
        self.server_key = ""
        self.prefix = prefix
        self.log = self.base_dir.with_suffix(".log")
        self.process: subprocess.Popen[bytes] | Started | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start, or start again at the same address, and wait until it listens."""
        text = msgspec.json.encode(self.settings).decode()
        argv = [*self.prefix, sys.executable, "-c", PROGRAM, text]
        with self.log.open("ab") as log:
            self.process = started(argv, loads=NFP_BROKER, stdout=subprocess.PIPE, stderr=log)
        self.wait_ready()

    def wait_ready(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        waiting = select.poll()  # select() knows descriptors up to 1023
        waiting.register(self.process.stdout, select.POLLIN)
        came = waiting.poll(START_S * 1000)
        words = self.process.stdout.readline().decode().split() if came else []
        assert words[:1] == ["ready"], self.lines()[-5:]
        self.endpoint, self.worker_endpoint = words[1], words[-1]
        if self.curve:
            self.server_key = curve.load_public(self.base_dir / "broker.key").public_key
        self.settings = msgspec.structs.replace(self.settings, endpoint=self.endpoint)
        if self.settings.worker_endpoint is not None:
            self.settings = msgspec.structs.replace(self.settings, worker_endpoint=self.worker_endpoint)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
        try:
            return self.process.wait(START_S)
        finally:
            self.kill()

    def rss_kib(self) -> int:
        with open(f"/proc/{self.pid}/status") as status:
            return int(next(line for line in status if line.startswith("VmRSS:")).split()[1])

    def cpu_s(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def nfp_process(rundir: Path, *, prefix: tuple[str, ...] = (), **settings: Any) -> Iterator[NfpProcess]:
    """A broker as a process, listening; stopped at the end, which must go well; its port stays its own."""
    live = NfpProcess(section(rundir, **{"endpoint": free_endpoint(), **settings}), prefix=prefix)
    try:
        live.start()
        yield live
        if live.process is not None and live.process.poll() is None:
            assert live.stop() == 0, live.lines()[-5:]
    finally:
        if live.process is not None:
            live.kill()
        live.context.destroy(0)
