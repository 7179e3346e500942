"""A pipe: parts over one open connection, for who keeps what waits in an outbox of its own."""

import asyncio
import socket
import sys
import threading
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from broker.errors import LinkBroken, LinkEnded
from broker.testing.harness import PATIENCE_S
from broker.transport.byte_stream import all_left
from broker.transport.zeromq.pipe import READ_BYTES, SHARE_BYTES, WRITE_BYTES, Pipe, Turns
from tests.unit.transport.zmtp import CAP, PAIRS, shake_hands


class Owner:
    """Writes down what it is told."""

    def __init__(self):
        self.came, self.rooms, self.ends = [], 0, []
        self.batches = []
        self.on_message = lambda parts: None

    def received(self, messages):
        self.batches.append(len(messages))
        for parts in messages:
            self.came.append([bytes(part) for part in parts])
            self.on_message(parts)

    def room(self):
        self.rooms += 1

    def ended(self, error):
        self.ends.append(error)


@asynccontextmanager
async def pair(kind="curve", family=socket.AF_UNIX, turns=None):
    """Two pipes that face each other, each with its owner."""
    ends = shake_hands(*PAIRS[kind]())
    if family == socket.AF_UNIX:
        socks = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socks = [socket.create_connection(server.getsockname()), server.accept()[0]]
    pipes = []
    for sock, connection in zip(socks, ends, strict=True):
        sock.setblocking(False)
        connection.limit(4 * CAP, CAP)
        pipes.append(Pipe(sock, connection, "tcp://peer", owner := Owner(), turns))
        pipes[-1].told = owner  # a pipe that has ended has none
        pipes[-1].resume()
    try:
        yield pipes
    finally:
        for pipe in pipes:
            pipe.abort()


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


def send(pipe, *parts):
    assert pipe.add(parts)
    pipe.flush()


@pytest.mark.parametrize("kind", PAIRS)
async def test_messages_go_both_ways_in_order(kind):
    async with pair(kind) as (one, other):
        for number in range(100):
            assert one.add((b"", b"%d" % number))
        one.flush()
        send(other, bytes(CAP))
        await until(lambda: len(other.told.came) == 100 and one.told.came)
        assert other.told.came == [[b"", b"%d" % number] for number in range(100)]
        assert one.told.came == [[bytes(CAP)]]
        assert one.taken > 0
        assert other.reads >= 1


async def test_one_read_is_a_part_of_what_a_greedy_peer_sends():
    async with pair("null") as (one, other):
        for _ in range(1000):
            assert one.add((bytes(100),))
        one.flush()
        await until(lambda: len(other.told.came) == 1000)
        assert max(other.told.batches) <= READ_BYTES // 100


async def test_those_who_send_without_end_take_turns_and_who_sends_little_does_not_wait():
    turns = Turns(asyncio.get_running_loop())
    async with AsyncExitStack() as stack:
        greedy = [await stack.enter_async_context(pair("null", turns=turns)) for _ in range(20)]
        one, small = await stack.enter_async_context(pair("null", turns=turns))
        for sender, _ in greedy:
            for _ in range(1000):
                assert sender.add((bytes(100),))
            sender.flush()
        await until(lambda: all(other.told.came for _, other in greedy))

        def read():
            return [len(other.told.came) for _, other in greedy]

        before, heard = sum(read()), []
        small.told.on_message = lambda parts: heard.append(read())  # then, and not when we look
        send(one, b"please")
        await until(lambda: heard)
        (counts,) = heard
        assert sum(counts) - before < 10 * 20
        assert max(counts) - min(counts) <= 2 * SHARE_BYTES // 100
        await until(lambda: all(len(other.told.came) == 1000 for _, other in greedy))
        greedy[0][0].close()
        await until(lambda: greedy[0][1].told.ends)


async def test_who_is_paused_in_its_turn_is_not_read():
    turns = Turns(asyncio.get_running_loop())
    async with pair("null", turns=turns) as (one, other):
        other.told.on_message = lambda parts: other.pause()
        for _ in range(1000):
            assert one.add((bytes(100),))
        one.flush()
        await until(lambda: other.told.came)
        await asyncio.sleep(0.02)
        assert len(other.told.batches) == 1
        other.told.on_message = lambda parts: None
        other.resume()
        await until(lambda: len(other.told.came) == 1000)


async def test_who_does_not_read_leaves_no_room_and_room_is_told():
    async with pair() as (one, other):
        other.pause()
        count = 0
        while one.add((bytes(50_000),)):
            count += 1
        assert not one.free
        assert one.told.rooms == 0
        one.flush()
        other.resume()
        await until(lambda: len(other.told.came) == count and one.told.rooms)
        assert one.free


async def test_a_large_part_leaves_whole_and_nothing_is_made_behind_it():
    async with pair() as (one, other):
        assert CAP > WRITE_BYTES
        assert one.add((b"", bytes(CAP)))
        assert not one.add((b"behind",))
        one.flush()
        await until(lambda: other.told.came and one.free)
        assert other.told.came == [[b"", bytes(CAP)]]


async def test_nothing_is_held_of_what_has_left():
    async with pair() as (one, other):
        held = bytearray(CAP)
        users = sys.getrefcount(held)
        assert one.add((b"", memoryview(held)))
        one.flush()
        await until(lambda: other.told.came and one.free)
        assert sys.getrefcount(held) == users
        assert len(one._rest) == 0
        assert not isinstance(one._rest, memoryview), "which keeps all that it is a part of"


async def test_a_ping_is_answered_whatever_waits():
    async with pair() as (one, other):
        assert one.add((b"in front",))
        before = one.reads
        one.ping()
        await until(lambda: one.reads > before)
        assert other.told.came == [[b"in front"]]
        assert one.told.came == []


async def test_another_thread_writes_while_the_loop_is_blocked():
    async with pair() as (one, other):
        assert one.add((b"first",))

        def beat():
            with one.lock:
                assert one.add((b"beat",))
                one.write()

        thread = threading.Thread(target=beat)
        thread.start()
        thread.join()
        send(one, b"last")
        await until(lambda: len(other.told.came) == 3)
        assert other.told.came == [[b"first"], [b"beat"], [b"last"]]


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
async def test_what_was_added_follows_a_close_and_then_the_end_is_seen(family):
    async with pair(family=family) as (one, other):
        for number in range(3):
            assert one.add((b"%d" % number, bytes(60_000)))
        one.close()
        one.close()
        assert not one.add((b"too late",))
        await until(lambda: other.told.ends)
        assert [parts[0] for parts in other.told.came] == [b"0", b"1", b"2"]
        assert isinstance(other.told.ends[0], LinkEnded)
        assert one.told.ends == []
        await all_left(PATIENCE_S)


async def test_what_the_peer_sent_before_it_left_is_heard_though_writing_fails():
    async with pair() as (one, other):
        one.pause()
        send(other, b"a last word")
        other.abort()
        one.ping()
        await until(lambda: one.lost is not None)
        assert not one.add((b"nor this",))
        one.resume()
        await until(lambda: one.told.ends)
        assert one.told.came == [[b"a last word"]]
        assert one.told.ends == [one.lost]


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ((bytes(CAP + 100),), "the largest is"),
        ((bytes(CAP),) * 5, "the cap for this peer"),
        ((b"",) * 5000, "parts"),
    ],
    ids=["a part", "a message", "its parts"],
)
async def test_too_much_costs_the_sender_its_connection(parts, why):
    async with pair("null") as (one, other):
        send(one, b"before")
        one.add(parts)
        one.flush()
        await until(lambda: other.told.ends)
        assert other.told.came == [[b"before"]]
        assert isinstance(other.told.ends[0], LinkBroken)
        assert why in str(other.told.ends[0])


async def test_a_message_that_breaks_its_receiver_costs_this_connection_alone(caplog):
    def broken(parts):
        raise ValueError("broken")

    async with pair() as (one, other):
        other.told.on_message = broken
        send(one, b"poison")
        await until(lambda: other.told.ends)
        await until(lambda: one.told.ends)
    assert "broke their receiver" in caplog.text


async def test_a_peer_that_reads_slowly_shows_that_it_lives_though_no_ping_can_leave():
    async with pair() as (one, other):
        other.pause()
        while one.add([bytes(1 << 16)]):
            pass
        one.flush()
        one.ping()
        before = one.life
        assert one.life == before, "nobody reads"
        other.resume()
        await until(lambda: one.life != before)


async def test_who_fails_in_its_turn_costs_nobody_else_theirs(caplog):
    turns = Turns(asyncio.get_running_loop())
    async with pair(turns=turns) as (one, other), pair(turns=turns) as (third, fourth):

        def fails(_error):
            raise MemoryError

        other.told.ended = fails
        for _ in range(40):
            assert one.add([bytes(900)])
        one.flush()
        one._sock.send(b"\xff" * 1200)  # no frame: the connection ends in one of its turns
        for _ in range(40):
            assert third.add([bytes(900)])
        third.flush()
        await until(lambda: len(fourth.told.came) == 40)
    assert "reading failed" in caplog.text
