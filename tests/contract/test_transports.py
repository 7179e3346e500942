"""The contract of ``broker/transport/link.py``, checked on every transport."""

import asyncio
import contextlib
import errno
import gc
from pathlib import Path

import pytest

from broker.identity import ClientKey, Credentials, PeerKey
from broker.testing import CHECKS
from broker.testing.endings import check_half_open_peer
from broker.testing.harness import Accepting, Harness
from broker.transport import curve, inproc, tls, unix, zeromq
from broker.transport.link import Link
from broker.transport.tls import client_context
from tests.contract.websockets import WebSocketPair
from tests.live.certificates import tls_files

pytestmark = pytest.mark.interpreter

SERVER, CLIENT = curve.generate(), curve.generate()
KEYS = {CLIENT.public_key: PeerKey(1)}


def curve_listen(**more):
    return {"extra": {"curve": curve.CurveServer(SERVER)} | more, "keys": KEYS}


def curve_dial(**more):
    return {"extra": {"curve": curve.CurveClient(CLIENT, SERVER.public_key)} | more}


def batching(near: Link, far: Link) -> None:
    near.enable_batch()
    far.enable_batch()


async def knock_tcp(address: str) -> asyncio.StreamWriter:
    host, _, port = address.partition("://")[2].rpartition(":")
    return (await asyncio.open_connection(host, int(port)))[1]


async def knock_unix(address: str) -> asyncio.StreamWriter:
    return (await asyncio.open_unix_connection(address.partition("://")[2]))[1]


def only_eperm(_number: int) -> int:
    return errno.EPERM


def curved(name: str, **extra: object) -> Harness:
    """TCP with CURVE; with batches where ``extra`` says so."""
    return Harness(
        name,
        zeromq.transport,
        "tcp://127.0.0.1:0",
        curve_listen(**extra),
        curve_dial(**extra),
        refusal=only_eperm,
        prepare=batching if extra else lambda _near, _far: None,
        stranger=knock_tcp,
    )


def harnesses(rundir: Path) -> list[Harness]:
    """What ``CHECKS`` runs on; ZeroMQ can tell a refused dialer that it is refused, but not why."""
    files = tls_files()
    return [
        Harness("inproc", inproc.transport, "inproc://contract-%d"),
        Harness("unix", unix.transport, f"local://{rundir}/s%d", stranger=knock_unix),
        curved("zmtp-curve"),
        curved("zmtp-curve-batch", batch=True),
        Harness("zmtp-ipc", zeromq.transport, f"ipc://{rundir}/m%d", refusal=only_eperm, stranger=knock_unix),
        Harness(
            "tls",
            tls.transport,
            "tls://127.0.0.1:*",
            listen={"settings": files.settings("node"), "keys": {"ada": ClientKey(Credentials(1000, 2))}},
            dial={"settings": files.settings("ada")},
            stranger=knock_tcp,
        ),
        Harness(
            "websocket",
            WebSocketPair(),
            "ws://127.0.0.1:0",
            dial={"extra": {"token": "for-a-test"}},
            stranger=knock_tcp,
        ),
        Harness(
            "websocket-tls",
            WebSocketPair(files.settings("node")),
            "wss://127.0.0.1:0",
            dial={"extra": {"token": "for-a-test", "ssl": client_context(files.settings("ada"))}},
        ),
    ]


NAMES = [harness.name for harness in harnesses(Path("/"))]
OPEN_TO_STRANGERS = [harness.name for harness in harnesses(Path("/")) if harness.stranger is not None]


@pytest.fixture
def harness(request: pytest.FixtureRequest, rundir: Path) -> Harness:
    return next(each for each in harnesses(rundir) if each.name == request.param)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("harness", NAMES, indirect=True)
def test_contract(harness, check):
    asyncio.run(check(harness))


@pytest.mark.parametrize("harness", OPEN_TO_STRANGERS, indirect=True)
def test_half_open_peer(harness):
    asyncio.run(check_half_open_peer(harness))


@pytest.mark.parametrize("harness", OPEN_TO_STRANGERS, indirect=True)
def test_strangers_leave_nothing_to_the_collector_of_garbage(harness):
    """Nor what they send: a storm of them would else be kept until it comes, which is seldom."""

    async def check() -> None:
        listener = await harness.transport.listen(harness.new_address(), Accepting(), harness.listening())
        gc.collect()
        gc.freeze()  # what the test process has else takes seconds to look through
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for number in range(3):
                said = bytes(100) if number else b"\xff" + bytes(8) + b"\x7f\x02" + bytes(53)
                writer = await harness.stranger(listener.contact_address)
                writer.write(said)
                if number == 2:
                    writer.write_eof()
                with contextlib.suppress(OSError):
                    await asyncio.wait_for(writer._reader.read(), 0.5)
                writer.close()
            await asyncio.sleep(0.1)
            gc.collect()
            left = {
                type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("broker")
            }
            assert left == set()
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.unfreeze()
            await listener.stop()

    asyncio.run(check())
