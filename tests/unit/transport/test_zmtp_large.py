"""Boxes that are sealed and opened beside the loop: those of peers that take no records."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
import zmq

from broker.errors import LinkBroken
from broker.testing.harness import PATIENCE_S, Recorder, send_all, topics
from broker.transport import zeromq
from broker.transport.zeromq import mechanisms
from broker.transport.zeromq.connection import BESIDE_BYTES
from broker.wire.message import event
from tests.unit.transport.raw import PEER, dialling, listener, listening, raw, reply_to
from tests.unit.transport.zmtp import encoded, opened

LARGE = bytes(range(256)) * (5 << 12)  # 5 MiB, and no two of its parts alike
LOOP = threading.get_ident()


@pytest.fixture
def threads(monkeypatch) -> dict[str, list[tuple[int, int]]]:
    """What was sealed and opened: how large, and by which thread."""
    seen: dict[str, list[tuple[int, int]]] = {"seal_in_place": [], "open_behind": []}
    for name, calls in seen.items():
        made = getattr(mechanisms, name)

        def noted(frame, *rest, made=made, calls=calls):
            calls.append((len(frame), threading.get_ident()))
            return made(frame, *rest)

        monkeypatch.setattr(mechanisms, name, noted)
    return seen


def mixed(number: int) -> list:
    """Large and small ones by turns."""
    return [event(f"n.{at}", LARGE if at % 2 else b"small") for at in range(number)]


@asynccontextmanager
async def pair():
    """A link of ours that takes no records, at both ends."""
    async with listener(listening()) as (address, accepting):
        near, heard = await zeromq.transport.dial(address, dialling()), Recorder()
        near.start(heard)
        far, hears = await accepting.link(0)
        yield near, heard, far, hears


async def test_order_and_bytes_are_kept_both_ways_and_the_loop_makes_no_large_box(threads):
    async with pair() as (near, heard, far, hears):
        for sender, recorder in ((near, hears), (far, heard)):
            send_all(sender, mixed(7))
            assert await recorder.count(7) == mixed(7)
    for calls in threads.values():
        large = [thread for size, thread in calls if size > BESIDE_BYTES]
        assert len(large) == 6
        assert LOOP not in large


async def test_a_peer_of_libzmq_pings_meanwhile(threads):
    """Answers to pings are boxes with numbers, too: one that is made meanwhile must not overtake."""
    async with listener(listening()) as (address, accepting):
        with zmq.Context() as context, raw(zmq.DEALER, context, PEER) as child:
            child.set(zmq.HEARTBEAT_IVL, 5)
            child.set(zmq.HEARTBEAT_TIMEOUT, 2000)
            child.connect(address)
            child.send_multipart(event("hello").parts())
            link, recorder = await accepting.link(0)
            await recorder.count(1)
            for each in mixed(8):
                send_all(link, [each])
                assert await reply_to(child) == each.parts()
                child.send_multipart(each.parts())
            assert (await recorder.count(9))[1:] == mixed(8)
            assert link.ended is None


async def test_what_is_sealed_at_the_close_follows_it():
    async with pair() as (near, _heard, _far, hears):
        send_all(near, mixed(5))
        near.close()
        assert await hears.count(5) == mixed(5)


async def test_nothing_is_heard_while_reading_is_paused():
    async with pair() as (near, _heard, far, hears):
        send_all(near, mixed(2))
        await hears.count(1)
        far.pause()
        heard = len(hears.messages)
        async with asyncio.timeout(PATIENCE_S):
            while far._opening is not None:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert len(hears.messages) == heard
        far.resume()
        assert await hears.count(2) == mixed(2)
        send_all(near, [event("more")])
        assert topics(await hears.count(3))[2:] == ["more"]


async def test_a_box_that_does_not_open_ends_the_link_and_what_came_before_is_heard(monkeypatch):
    made = mechanisms.seal_in_place

    def spoiled(frame, at, nonce, key):
        made(frame, at, nonce, key)
        if len(frame) > BESIDE_BYTES:
            frame[-1] ^= 1

    async with pair() as (near, _heard, _far, hears):
        monkeypatch.setattr(mechanisms, "seal_in_place", spoiled)
        send_all(near, mixed(3))
        end = await hears.end()
        assert isinstance(end, LinkBroken)
        assert "does not open" in str(end)
        assert topics(hears.messages) == ["n.0"]


async def test_a_box_that_cannot_be_opened_for_want_of_memory_ends_its_link(monkeypatch):
    """And is not tried again and again."""
    calls, made = [], mechanisms.open_behind

    def short(frame, *rest):
        if len(frame) > BESIDE_BYTES:
            calls.append(len(frame))
            raise MemoryError
        return made(frame, *rest)

    async with pair() as (near, _heard, _far, hears):
        monkeypatch.setattr(mechanisms, "open_behind", short)
        send_all(near, mixed(2))
        assert "cannot read: MemoryError" in str(await hears.end())
        assert len(calls) == 1


def test_what_a_thread_opened_is_let_go_of_with_the_rest():
    client, server = opened("curve")
    server.opens_beside = True
    client.limit(1 << 20)
    server.limit(1 << 20)
    server.feed(encoded(client, [bytes(BESIDE_BYTES + 1)]))
    assert server.waits
    server.open_large()
    server.forget()
    assert server._opened is None
    assert not server.pending_bytes
