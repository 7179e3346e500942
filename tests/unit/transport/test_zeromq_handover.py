"""A listener that gets new keys: who comes meets the new ones, who is there stays, and nothing is left behind."""

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.errors import ConfigError, LinkClosed, LinkRefused
from broker.testing.harness import Accepting, Recorder, numbered, send_all, topics
from broker.transport import curve, zeromq
from broker.transport.link import Link, Listener
from broker.wire.message import control
from tests.tables import for_each
from tests.unit.transport.raw import PEER, SERVER, dialling, listening

NEW, NEWER = curve.generate(), curve.generate()


@dataclass
class Stage:
    """A listener that changes its keys; ``current`` is the one to use."""

    current: Listener
    accepting: Accepting

    def renew(self, certificate: curve.Certificate) -> None:
        self.current = self.current.renew({"curve": curve.CurveServer(certificate)})

    async def dial(self, server: curve.Certificate, other: curve.Certificate | None = None) -> Link:
        key = curve.CurveClient(PEER, server.public_key, other.public_key if other is not None else None)
        return await zeromq.transport.dial(self.current.contact_address, dialling(curve=key))

    async def pair(self, server: curve.Certificate) -> tuple[Link, Recorder, Link, Recorder]:
        """A link and its far end, both recorded."""
        known = len(self.accepting.links)
        near, heard = await self.dial(server), Recorder()
        near.start(heard)
        send_all(near, [control(0)])
        far, hears = await self.accepting.link(known)
        await hears.count(1)
        return near, heard, far, hears


@contextlib.asynccontextmanager
async def stage(uri: str, **extra) -> AsyncIterator[Stage]:
    accepting = Accepting()
    made = Stage(await zeromq.transport.listen(uri, accepting, listening(**extra)), accepting)
    try:
        yield made
    finally:
        for link, _recorder in accepting.links:
            link.abort(LinkClosed("test over"))
        await made.current.stop()


@pytest.fixture(params=["127.0.0.1", "[::1]", "*", "0.0.0.0", "ipc"])
def uri(request, rundir: Path) -> str:
    if request.param == "ipc":
        return f"ipc://{rundir}/door"
    if request.param == "[::1]" and not has_ipv6():
        pytest.skip("optional: no IPv6 here")
    return f"tcp://{request.param}:0"


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def listeners_at(address: str) -> int:
    """How many sockets of this process listen at a TCP port."""
    port = int(address.rpartition(":")[2])
    count = 0
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(entry)).st_mode):
                continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry))) as sock:
            listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            count += bool(listens) and sock.family != socket.AF_UNIX and sock.getsockname()[1] == port
    return count


def is_there(path: str) -> bool:
    return Path(path).exists()


def test_who_comes_meets_the_new_key_and_who_is_there_stays(uri):
    async def check():
        async with stage(uri) as door:
            near, heard, far, hears = await door.pair(SERVER)
            former, address = door.current, door.current.contact_address
            send_all(near, numbered(50))
            door.renew(NEW)
            send_all(near, numbered(50))
            assert (former.address, address) == (door.current.address, door.current.contact_address)
            for _ in range(8):  # with two listeners and chance, one of them would go wrong
                other, _heard, end, _hears = await door.pair(NEW)
                assert end.peer.rank == 3
                other.close()
            with pytest.raises(LinkRefused, match="key is not the one"):
                await door.dial(SERVER)
            send_all(near, numbered(50))
            send_all(far, numbered(50))
            assert topics((await hears.count(151))[1:]) == [f"n.{n}" for n in range(50)] * 3
            assert len(await heard.count(50)) == 50
            assert not heard.ends
            assert not hears.ends

    asyncio.run(check())


def test_a_dialler_in_the_handshake_at_that_moment_gets_in(uri):
    async def check():
        async with stage(uri) as door:
            async with asyncio.TaskGroup() as group:
                dials = [group.create_task(door.dial(SERVER, NEW)) for _ in range(10)]
                for certificate in (NEW, SERVER, NEW):
                    await asyncio.sleep(0.002)
                    door.renew(certificate)
            for number, dialled in enumerate(dials):
                link = dialled.result()
                link.start(Recorder())
                send_all(link, [control(0)])
                assert (await door.accepting.link(number))[0].peer.rank == 3
                link.close()

    asyncio.run(check())


@for_each("keys", [(NEW, SERVER), (SERVER, NEW)], ids=["second", "first"])
def test_a_dialler_that_knows_two_keys_finds_the_right_one(keys):
    async def check():
        async with stage("tcp://127.0.0.1:0") as door:
            link = await door.dial(*keys)
            assert link.peer.key == SERVER.public_key
            link.close()

    asyncio.run(check())


@pytest.mark.patient
def test_a_dialler_gives_up_when_neither_key_is_right():
    async def check():
        async with stage("tcp://127.0.0.1:0") as door:
            with pytest.raises(LinkRefused, match="key is not the one"):
                await door.dial(NEW, NEWER)

    asyncio.run(check())


def test_a_second_broker_by_mistake_still_finds_the_port_in_use():
    async def check():
        async with stage("tcp://127.0.0.1:0") as door:
            for _ in range(2):
                with pytest.raises(ConfigError, match="in use"):
                    await zeromq.transport.listen(door.current.address, Accepting(), listening())
                door.renew(NEW)

    asyncio.run(check())
