"""Relays: who is let through, what a cut holds back, what goes on after the heal."""

import asyncio
import contextlib
import os
import resource
import socket

import pytest

from gateway.cluster.relays import Relays, addresses, binds, crossing
from gateway.cluster.shape import Shape

SHAPE = Shape("t", 3)
SHORT_S = 0.2
"""Long enough for what would come to have come."""


OPEN = []
"""Streams of the present test."""


class Parent:
    """Rank 0: what it accepts, in order."""

    def __init__(self, sockets):
        self.accepted = asyncio.Queue()
        self._path = sockets / "rank-0"

    async def __aenter__(self):
        self._server = await asyncio.start_unix_server(self._took, self._path)
        return self

    async def __aexit__(self, *_):
        self._server.close()

    def _took(self, reader, writer):
        OPEN.append(writer)
        self.accepted.put_nowait((reader, writer))


@contextlib.asynccontextmanager
async def world(sockets, rank=1):
    """Relays that take this process for ``rank``, and rank 0 behind them."""
    relays = Relays(SHAPE, sockets, lambda pid: rank if pid == os.getpid() else None)
    await relays.open()
    try:
        async with Parent(sockets) as parent:
            yield relays, parent
    finally:
        await relays.close()


async def dial(sockets):
    reader, writer = await asyncio.open_unix_connection(sockets / "tree-0")
    OPEN.append(writer)
    return reader, writer


async def silent(coroutine):
    """Whether nothing comes of it."""
    task = asyncio.get_running_loop().create_task(coroutine)
    await asyncio.wait([task], timeout=SHORT_S)
    quiet = not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return quiet


def run(test):
    async def bounded():
        try:
            async with asyncio.timeout(20):
                await test
        finally:
            for writer in OPEN:
                writer.transport.abort()
            await asyncio.gather(*(writer.wait_closed() for writer in OPEN), return_exceptions=True)
            OPEN.clear()

    asyncio.run(bounded())


def test_addresses_are_the_relays_and_binds_behind_them(rundir):
    assert addresses(SHAPE, rundir)[0] == f"ipc://{rundir}/tree-0"
    assert binds(SHAPE, rundir)[2] == f"ipc://{rundir}/rank-2"


def test_bytes_pass_both_ways_and_the_end_does_too(rundir):
    async def test():
        async with world(rundir) as (_, parent):
            reader, writer = await dial(rundir)
            up, down = await parent.accepted.get()
            data = os.urandom(1 << 20)
            writer.write(data)
            assert await up.readexactly(len(data)) == data
            down.write(data)
            assert await reader.readexactly(len(data)) == data
            down.close()
            assert await reader.read() == b""
            writer.close()

    run(test())


def test_a_cut_holds_everything_back_and_the_heal_lets_it_go_on(rundir):
    async def test():
        async with world(rundir) as (relays, parent):
            reader, writer = await dial(rundir)
            up, down = await parent.accepted.get()
            writer.write(b"before")
            assert await up.readexactly(6) == b"before"
            relays.cut(frozenset({1}))
            writer.write(b"up")
            down.write(b"down")
            assert await silent(up.read(1))
            assert await silent(reader.read(1))
            relays.cut(frozenset())
            assert await up.readexactly(2) == b"up"
            assert await reader.readexactly(4) == b"down"
            writer.close()
            down.close()

    run(test())


def test_not_even_the_end_of_a_connection_passes_a_cut(rundir):
    async def test():
        async with world(rundir) as (relays, parent):
            reader, writer = await dial(rundir)
            _, down = await parent.accepted.get()
            relays.cut(frozenset({0}))
            down.close()
            assert await silent(reader.read(1))
            relays.cut(frozenset())
            assert await reader.read() == b""
            writer.close()

    run(test())


def test_a_connection_made_during_a_cut_hangs_and_then_arrives(rundir):
    async def test():
        async with world(rundir) as (relays, parent):
            relays.cut(frozenset({1}))
            _, writer = await dial(rundir)
            writer.write(b"hello")
            assert await silent(parent.accepted.get())
            relays.cut(frozenset())
            up, _ = await parent.accepted.get()
            assert await up.readexactly(5) == b"hello"
            writer.close()

    run(test())


def test_a_cut_elsewhere_is_none_here(rundir):
    async def test():
        async with world(rundir) as (relays, parent):
            relays.cut(frozenset({2}))
            _, writer = await dial(rundir)
            writer.write(b"hello")
            up, _ = await parent.accepted.get()
            assert await up.readexactly(5) == b"hello"
            relays.cut(frozenset({0, 1}))  # both on one side
            writer.write(b"again")
            assert await up.readexactly(5) == b"again"
            writer.close()

    run(test())


@pytest.mark.parametrize("rank", [None, 0])
def test_who_is_no_child_is_turned_away(rundir, rank):
    async def test():
        async with world(rundir, rank=rank) as (_, parent):
            reader, writer = await dial(rundir)
            assert await reader.read() == b""
            assert parent.accepted.empty()
            writer.close()

    run(test())


def test_a_connection_waits_for_a_parent_that_is_away(rundir):
    """Ended at once, it would look like a peer with a wrong key."""

    async def test():
        relays = Relays(SHAPE, rundir, lambda _pid: 1)
        await relays.open()
        try:
            reader, writer = await dial(rundir)
            writer.write(b"hello")
            assert await silent(reader.read())
            async with Parent(rundir) as parent:
                up, _ = await parent.accepted.get()
                assert await up.readexactly(5) == b"hello"
        finally:
            await relays.close()

    run(test())


def test_a_reader_that_stalls_holds_the_writer_back(rundir):
    async def test():
        async with world(rundir) as (_, parent):
            _, writer = await dial(rundir)
            await parent.accepted.get()
            sock = writer.get_extra_info("socket")
            written = 0
            while written < 64 << 20:
                writer.write(bytes(1 << 20))
                written += 1 << 20
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SHORT_S):
                        await writer.drain()
                        continue
                break
            assert written < 64 << 20
            assert sock.fileno() >= 0

    run(test())


def test_attempts_that_were_given_up_during_a_cut_are_not_kept(rundir, monkeypatch):
    monkeypatch.setattr("gateway.cluster.relays.REST_S", 0.05)

    async def test():
        async with world(rundir) as (relays, parent):
            relays.cut(frozenset({1}))
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(5):
                with socket.socket(socket.AF_UNIX) as child:
                    child.setblocking(False)
                    await asyncio.get_running_loop().sock_connect(child, str(rundir / "tree-0"))
                    await asyncio.sleep(0.02)
            async with asyncio.timeout(5):
                while len(os.listdir("/proc/self/fd")) > before:
                    await asyncio.sleep(0.02)
            _, writer = await dial(rundir)
            writer.write(b"hello")
            relays.cut(frozenset())
            up, _ = await parent.accepted.get()
            assert await up.readexactly(5) == b"hello"
            assert parent.accepted.empty()

    run(test())


def test_a_relay_goes_on_once_there_are_descriptors_again(rundir, monkeypatch):
    monkeypatch.setattr("gateway.cluster.relays.REST_S", 0.05)

    async def test():
        async with world(rundir) as (_, parent):
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            with socket.socket(socket.AF_UNIX) as child:
                child.setblocking(False)
                resource.setrlimit(resource.RLIMIT_NOFILE, (child.fileno() + 1, hard))
                try:
                    await asyncio.get_running_loop().sock_connect(child, str(rundir / "tree-0"))
                    await asyncio.sleep(SHORT_S)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                await asyncio.get_running_loop().sock_sendall(child, b"hello")
                up, _ = await parent.accepted.get()
                assert await up.readexactly(5) == b"hello"

    run(test())


def test_nothing_is_left(rundir):
    async def test():
        relays = Relays(SHAPE, rundir, lambda _pid: 1)
        before = len(os.listdir("/proc/self/fd"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(rundir / "rank-0"))
            listener.listen()
            await relays.open()
            with socket.socket(socket.AF_UNIX) as child:
                child.setblocking(False)
                await asyncio.get_running_loop().sock_connect(child, str(rundir / "tree-0"))
                listener.setblocking(False)
                (await asyncio.get_running_loop().sock_accept(listener))[0].close()
                assert len(os.listdir("/proc/self/fd")) > before
                await relays.close()
        assert len(os.listdir("/proc/self/fd")) == before
        assert [task.get_name() for task in asyncio.all_tasks() if "rank" in task.get_name()] == []

    run(test())
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(ConnectionRefusedError):
        sock.connect(str(rundir / "tree-0"))


def test_a_partition_cuts_the_links_that_lead_across():
    shape = Shape("t", 7)
    assert crossing(shape, frozenset()) == frozenset()
    assert crossing(shape, frozenset({0})) == {1, 2}
    assert crossing(shape, frozenset({1, 3, 4})) == {1}
    assert crossing(shape, frozenset({3, 5})) == {3, 5}
    assert crossing(shape, frozenset(shape.ranks())) == frozenset()
