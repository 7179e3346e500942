"""The link of a stream socket, at a socket pair whose kernel takes as much as the test lets it."""

import asyncio
import errno
import socket
import tracemalloc
from collections import deque

import pytest

from broker.errors import LinkBroken, LinkClosed, LinkEnded
from broker.identity import PeerInfo
from broker.testing.harness import PATIENCE_S, Recorder, send_all, topics
from broker.transport.byte_stream import READ_BYTES, Leaving
from broker.transport.codec import FluxCodec
from broker.transport.link import Options
from broker.transport.outbox import OutboxLimits
from broker.transport.stream import StreamLink
from broker.transport.zeromq.codec import ZmtpCodec
from broker.wire.framing import Splitter
from broker.wire.message import event, request, response
from tests.unit.transport.zmtp import opened

MIB = 1 << 20


class Scripted:
    """A socket that says of each ``send`` how much it takes: a number, or an error; of those beyond, everything."""

    def __init__(self, sock, *script):
        self.sock, self.script, self.sent = sock, list(script), bytearray()

    def send(self, data):
        step = self.script.pop(0) if self.script else len(data)
        if isinstance(step, OSError):
            raise step
        taken = self.sock.send(bytes(data)[:step]) if step else 0
        self.sent += bytes(data)[:taken]
        if not step:
            raise BlockingIOError
        return taken

    def __getattr__(self, name):
        return getattr(self.sock, name)


def made(codec=None, limits=None):
    """A link, the other end of its socket, and what the link hears."""
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    link = StreamLink(
        near, PeerInfo("peer"), Options(limits=limits or OutboxLimits()), codec or FluxCodec(64 * MIB)
    )
    return link, far, Recorder()


async def test_who_has_ended_holds_no_bytes():
    """Found with peers that left in the middle of a message: their links are cycles, and garbage for minutes."""
    half = event("big", bytes(MIB)).framed()[: MIB // 2]
    for codec in (FluxCodec(64 * MIB), ZmtpCodec(opened("null")[0], Options(), 64 * MIB)):
        link, far, heard = made(codec)
        link.start(heard)
        far.send(
            half[: 64 << 10] if isinstance(codec, FluxCodec) else b"\2" + MIB.to_bytes(8, "big") + bytes(5000)
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        link._rest = b"sealed"
        held = codec._splitter if isinstance(codec, FluxCodec) else codec._connection
        assert held.pending_bytes > 4000
        link.abort(LinkClosed("test"))
        assert held.pending_bytes == 0
        assert not link._rest
        far.close()


async def read_all(far):
    """Everything until the end."""
    loop, data = asyncio.get_running_loop(), bytearray()
    async with asyncio.timeout(PATIENCE_S):
        while piece := await loop.sock_recv(far, MIB):
            data += piece
    far.close()
    return bytes(data)


def split(data):
    splitter = Splitter(64 * MIB)
    out = splitter.feed(data)
    assert splitter.failure is None
    assert not splitter.pending_bytes
    return out


@pytest.mark.parametrize("sealed", [False, True])
async def test_everything_arrives_once_and_in_order_however_little_the_kernel_takes(sealed):
    """What was made once, and sealed, is sent before anything else, also behind the close."""
    client, server = opened("curve")
    client_codec = ZmtpCodec(client, Options(extra={"batch": True}), 64 * MIB)
    server_codec = ZmtpCodec(server, Options(extra={"batch": True}), 64 * MIB)
    client_codec.enable_batch()
    link, far, hears = made(client_codec if sealed else None)
    link._sock = Scripted(link._sock, 10, 0, 1, 0, 100_000, 0, 0, 7, 262_000)
    link.start(hears)
    sent = [event("large", bytes(MIB)), *(event(f"n.{number}", bytes(number)) for number in range(400))]
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read_all(far), name="reading")
        for at in range(0, len(sent), 50):
            send_all(link, sent[at : at + 50])
            await asyncio.sleep(0)
        link._sock.script = [0, 50_000, 0, 3, 0]
        link.close()
    data = reading.result()
    assert (server_codec.feed(data) if sealed else split(data)) == sent
    assert server_codec.failure is None
    assert link.outbox.discarded == 0


async def test_a_connection_that_leaves_keeps_what_was_made_and_not_taken():
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    forms = deque(bytes([number]) * 1000 for number in range(50))
    loop = asyncio.get_running_loop()
    Leaving(
        loop,
        Scripted(near, 1000, 0, 1000, 0, 3, 0),
        b"rest",
        forms,
        lambda left: left.popleft() if left else b"",
    )
    data = await read_all(far)
    assert data == b"rest" + b"".join(bytes([number]) * 1000 for number in range(50))


async def test_what_is_made_already_is_not_dropped_by_the_policy():
    """Events for which there is no room are dropped, but not those whose bytes are made: others would go instead."""
    link, far, hears = made(
        limits=OutboxLimits(event_bytes=64 << 10, cap_bytes=64 << 10, event_policy="drop")
    )
    link._sock = Scripted(link._sock, 5000, 0)
    link.start(hears)
    events = [event(f"e.{number}", bytes(4000)) for number in range(60)]
    answer = response(request("r"), b"answer")
    send_all(link, events)
    assert link.outbox.dropped_events == 0, "they are all made at once"
    send_all(link, [answer] * 40)
    link.close()
    heard = split(await read_all(far))
    assert topics(heard[:60]) == topics(events)
    assert heard[60:] == [answer] * 40


async def test_a_write_that_fails_ends_the_link_and_nothing_else():
    for pausing in (False, True):
        link, far, hears = made()
        link._sock = Scripted(link._sock, 10_000, 0, OSError(errno.ETIMEDOUT, "Connection timed out"))
        link.start(hears)
        if pausing:
            link.pause()
        send_all(link, [event("e", bytes(100_000))])
        await asyncio.sleep(0)
        link._drain() if link.ended is None else None
        assert isinstance(await hears.end(), LinkBroken)
        assert link.outbox.queue is None
        far.close()


async def test_a_peer_that_shut_down_reading_alone_is_not_heard_for_ever():
    """It could write on and on, past every pause: what it sent before counts, nothing behind it."""
    link, far, hears = made()
    link.start(hears)
    far.send(event("before").framed())
    far.shutdown(socket.SHUT_RD)
    send_all(link, [event("to.whom")])
    link.pause()
    with pytest.raises(OSError, match="Broken pipe"):
        for _ in range(1000):
            far.send(event("more").framed())
    assert isinstance(await hears.end(), LinkEnded)
    assert topics(hears.messages) == ["before"]
    far.close()


async def test_nothing_is_held_of_what_has_left():
    """A link that had to wait once, and is idle since, kept the last large message that it sent."""
    link, far, hears = made()
    link.start(hears)
    tracemalloc.start()
    try:
        send_all(link, [event("large", bytes(8 * MIB))])
        size = 0
        async with asyncio.timeout(PATIENCE_S):
            while link.outbox.queue is not None or size < 8 * MIB:
                size += len(await asyncio.get_running_loop().sock_recv(far, MIB))
        assert tracemalloc.get_traced_memory()[0] < 2 * MIB
    finally:
        tracemalloc.stop()
    link.close()
    far.close()


async def test_a_receiver_that_fails_costs_its_link(caplog):
    class Failing(Recorder):
        def received(self, link, messages):
            raise RuntimeError("broken receiver")

    link, far, _hears = made()
    hears = Failing()
    link.start(hears)
    far.send(event("e").framed())
    assert "broke their receiver" in str(await hears.end())
    assert "broken receiver" in caplog.text
    far.close()


async def test_a_receiver_may_close_the_link_from_within(monkeypatch):
    class Closing(Recorder):
        def received(self, link, messages):
            super().received(link, messages)
            link.close()

        def link_choked(self, link, choked):
            link.close()

    for what in ("received", "choked"):
        link, far, _hears = made(limits=OutboxLimits(high_bytes=1000))
        link._sock = Scripted(link._sock, 100, 0, 0)
        hears = Closing()
        link.start(hears)
        if what == "received":
            far.send(event("e").framed())
        else:
            send_all(link, [event("large", bytes(5000))])
        assert isinstance(await hears.end(), LinkClosed)
        far.close()


async def test_a_read_takes_no_more_than_it_is_told():
    link, far, hears = made()
    link.flusher.read_bytes = 100
    link.start(hears)
    far.send(b"".join(event(f"n.{number}").framed() for number in range(100)))
    await hears.count(1)
    assert len(hears.messages) <= 5
    link.flusher.read_bytes = 0
    assert len(await hears.count(100)) == 100
    assert READ_BYTES > 100
    link.close()
    far.close()
