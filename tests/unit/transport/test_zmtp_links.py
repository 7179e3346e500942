"""ZMTP on the loop at real sockets: what is on the wire, slow readers, ends, strangers."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

from broker.errors import ConfigError, LinkBroken, LinkClosed, LinkEnded, LinkRefused
from broker.identity import PeerInfo
from broker.testing.harness import PATIENCE_S, Accepting, Recorder, numbered, send_all, topics
from broker.transport import curve, handshaking, zeromq
from broker.transport.link import DescriptorReserve, Options
from broker.transport.outbox import OutboxLimits
from broker.transport.zeromq.codec import RECORD_BYTES
from broker.transport.zeromq.connection import Connection, State
from broker.transport.zeromq.frames import command, error, greeting
from broker.transport.zeromq.link import ZmtpLink
from broker.transport.zeromq.listening import pair_of
from broker.transport.zeromq.mechanisms import CurveClient
from broker.wire.message import Message, event, request, response
from tests.unit.transport.raw import CLIENT, PEER, SERVER, UUID, dialling, listener, listening, raw, reply_to
from tests.unit.transport.zmtp import PAIRS, encoded, shake_hands


@asynccontextmanager
async def pair(**extra):
    """Both ends of a link of ours: near, what it hears, far, what it hears."""
    async with listener(listening(**extra)) as (address, accepting):
        near, heard = await zeromq.transport.dial(address, dialling(**extra)), Recorder()
        near.start(heard)
        far, hears = await accepting.link(0)
        yield near, heard, far, hears
        near.abort(LinkClosed("test over"))


async def test_records_on_the_wire():
    """A stream of framed messages in pieces of 64 KiB; messages in parts until it was agreed on."""
    with zmq.Context() as context, raw(zmq.ROUTER, context) as parent:
        port = parent.bind_to_random_port("tcp://127.0.0.1")
        link = await zeromq.transport.dial(f"tcp://127.0.0.1:{port}", dialling(batch=True, identity=UUID))
        link.start(Recorder())
        hello = request("hello", b"{}\0")
        send_all(link, [hello])
        assert await reply_to(parent) == [UUID, b"", b"hello", b"{}\0", hello.proto]
        link.enable_batch()
        messages = [*numbered(1500), request("large", b"x" * 1_000_000), *numbered(20, 60_000)]
        stream = b"".join(message.framed() for message in messages)
        send_all(link, messages)
        seen = bytearray()
        while len(seen) < len(stream):
            identity, record = await reply_to(parent)
            assert identity == UUID
            assert len(record) <= RECORD_BYTES
            seen += record
        assert seen == stream
        link.close()


async def test_a_large_message_holds_nobody_for_long():
    """While 24 MiB pass the loop has its turns: there are as many as pieces. In one piece they would be two."""
    async with pair(batch=True) as (near, _heard, far, hears):
        near.enable_batch()
        far.enable_batch()
        turns, loop = 0, asyncio.get_running_loop()

        def turn() -> None:
            nonlocal turns
            turns += 1
            if not hears.messages:
                loop.call_soon(turn)

        loop.call_soon(turn)
        send_all(near, [event("large", bytes(24 << 20))])
        assert (await hears.count(1))[0].size > 24 << 20
        assert turns > 24 * 4


async def test_all_sizes_arrive_whole_and_in_order_both_ways():
    sizes = [0, 1, 200, 255, 256, 65_500, 65_536, 65_600, 262_144, 262_145, 1_000_000, 5_000_000, 3]
    async with pair(batch=True) as (near, heard, far, hears):
        for number, (link, hearing) in enumerate(((near, hears), (far, heard)) * 2):
            if number > 1:
                link.enable_batch()
            sent = [event(f"size.{size}", bytes([size % 251]) * size) for size in sizes]
            before = len(hearing.messages)
            send_all(link, sent)
            assert (await hearing.count(before + len(sent)))[before:] == sent
            assert link.outbox.queue is None
            assert link.outbox.queued_bytes == 0


async def test_a_slow_reader_slows_its_sender_and_nothing_is_lost():
    """What waits is counted while it waits."""
    async with pair(batch=True) as (near, _heard, far, hears):
        near.enable_batch()
        far.pause()
        sent = numbered(4000, 4000)
        for at in range(0, len(sent), 100):
            send_all(near, sent[at : at + 100])
            await asyncio.sleep(0)
        assert near.outbox.queued_bytes > 1 << 20
        assert near.outbox.choked
        far.resume()
        assert topics(await hears.count(len(sent))) == topics(sent)
        async with asyncio.timeout(PATIENCE_S):
            while near.outbox.queue is not None:
                await asyncio.sleep(0.01)
        assert not near.outbox.choked


@pytest.mark.parametrize("batch", [False, True])
async def test_a_large_sealed_rest_is_sent_behind_the_close(batch):
    async with pair(batch=True) as (near, heard, far, hears):
        if batch:
            near.enable_batch()
        far.pause()
        sent = [event("large", b"x" * (12 << 20)), *numbered(300)]
        send_all(near, sent)
        near.close()
        assert near.outbox.discarded == 0
        await asyncio.sleep(0.05)
        far.resume()
        assert isinstance(await hears.end(), LinkEnded)
        assert hears.messages == sent
        assert isinstance(await heard.end(), LinkClosed)


async def test_who_takes_nothing_behind_the_close_is_given_up(monkeypatch):
    monkeypatch.setattr("broker.transport.byte_stream.IDLE_S", 0.25)
    async with pair(batch=True) as (near, _heard, far, _hears):
        far.pause()
        send_all(near, [event("large", b"x" * (30 << 20))])
        sock = near._sock
        near.close()
        assert sock.fileno() >= 0
        async with asyncio.timeout(PATIENCE_S):
            while sock.fileno() >= 0:
                await asyncio.sleep(0.01)


async def test_what_was_sent_before_the_peer_left_is_heard_though_writing_fails():
    """A program says its last words and leaves; whoever writes to it meanwhile hears them all the same."""
    async with pair(batch=True) as (near, _heard, far, hears):
        near.enable_batch()
        far.pause()
        sent = numbered(500, 200)
        send_all(near, sent)
        near.abort(LinkClosed("gone"))
        await asyncio.sleep(0.05)
        for _ in range(20):
            send_all(far, [event("too.late", bytes(50_000))])
            await asyncio.sleep(0)
        assert isinstance(await hears.end(), LinkEnded)
        assert topics(hears.messages) == topics(sent)


async def test_two_connections_may_have_one_identity():
    """Each is a link of its own: with what it has proved, and what is sent to it."""
    async with listener(listening()) as (address, accepting):
        with (
            zmq.Context() as context,
            raw(zmq.DEALER, context, PEER) as owner,
            raw(zmq.DEALER, context, CLIENT) as thief,
        ):
            for number, (sock, topic) in enumerate(((owner, "mine"), (thief, "also.mine"))):
                sock.connect(address)
                sock.send_multipart(event(topic).parts())
                _link, recorder = await accepting.link(number)
                assert topics(await recorder.count(1)) == [topic]
            (first, _), (second, _) = accepting.links
            assert first.identity == second.identity == UUID
            assert first.peer.rank == 3
            assert second.peer.user is not None
            assert second.peer.rank is None
            send_all(first, [event("for.the.owner")])
            assert await reply_to(owner) == event("for.the.owner").parts()


async def test_a_peer_of_libzmq_may_ping():
    """Heartbeats of libzmq (RFC 37, PING): it would end a connection that leaves them without an answer."""
    async with listener(listening()) as (address, accepting):
        with zmq.Context() as context, raw(zmq.DEALER, context, PEER) as child:
            child.set(zmq.HEARTBEAT_IVL, 20)
            child.set(zmq.HEARTBEAT_TIMEOUT, 200)
            child.connect(address)
            child.send_multipart(event("hello").parts())
            link, recorder = await accepting.link(0)
            await recorder.count(1)
            await asyncio.sleep(0.6)
            assert link.ended is None
            send_all(link, [event("still.here")])
            assert await reply_to(child) == event("still.here").parts()


async def test_a_large_request_is_followed_by_its_mark():
    async with pair(batch=True) as (near, _heard, far, hears):
        near.enable_batch()
        near.outbox.handled(0)  # the far side tells what it has handled
        send_all(near, [request("large", b"x" * 900_000), request("small")])
        kinds = [(message.type, message.topic) for message in await hears.count(3)]
        assert [topic for _kind, topic in kinds] == ["large", "small", None]
        del far


# -- who does not get in ---------------------------------------------------------------------------


async def refused(address: str, **keys) -> LinkRefused:
    with pytest.raises(LinkRefused) as caught:
        await zeromq.transport.dial(address, dialling(**keys))
    return caught.value


async def test_reserved_descriptors_are_refused_at_the_handshake(caplog):
    options = listening()
    options.reserve = DescriptorReserve(0, 100)
    options.has_reserve = lambda peer: peer.rank is not None
    told = []
    options.refused = lambda peer, errnum, reason: told.append((peer.key, errnum))
    async with listener(options) as (address, _accepting):
        assert (await refused(address, certificate=CLIENT)).errno == errno.EPERM
        assert told == [(CLIENT.public_key, errno.EMFILE)]
        link = await zeromq.transport.dial(address, dialling())
        link.close()


@pytest.mark.parametrize("scarce", [False, True])
async def test_silent_strangers_are_few_and_the_oldest_goes(monkeypatch, scarce):
    monkeypatch.setattr(handshaking.HandshakeListener, "handshakes_max", 100 if scarce else 3)
    options = listening()
    if scarce:
        options.reserve = DescriptorReserve(0, 3)
        options.has_reserve = lambda peer: peer.rank is not None
    async with listener(options) as (address, _accepting):
        host, port = address.removeprefix("tcp://").split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(5)]
        for reader, _writer in silent[:2]:
            async with asyncio.timeout(PATIENCE_S):
                put_off = command(error(b"300"))
                assert (await reader.read()) == greeting(b"CURVE", as_server=True) + put_off
        link = await zeromq.transport.dial(address, dialling())
        link.close()
        for _reader, writer in silent:
            writer.close()


async def test_whom_we_have_answered_is_not_put_out_by_newer_strangers(monkeypatch):
    """Found with a storm of HELLOs: a child that was waiting for its own answer was taken for silent, and left."""
    monkeypatch.setattr(handshaking.HandshakeListener, "handshakes_max", 2)
    loop = asyncio.get_running_loop()
    async with listener(listening()) as (address, accepting):
        place = address.removeprefix("tcp://").split(":")
        client = Connection(
            CurveClient({b"Socket-Type": b"DEALER"}, pair_of(PEER), curve.raw_key(SERVER.public_key))
        )
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(socket.create_connection((place[0], int(place[1]))))
            sock.setblocking(False)
            async with asyncio.timeout(PATIENCE_S):
                while client.state is not State.OPEN:
                    await loop.sock_sendall(sock, client.take_owed())
                    data = await loop.sock_recv(sock, 4096)
                    if b"WELCOME" in data:
                        for _ in range(5):
                            stack.enter_context(socket.create_connection((place[0], int(place[1]))))
                        await asyncio.sleep(0.1)
                    client.feed(data)
            assert (await accepting.link(0))[0].peer.rank == 3


async def test_who_is_put_off_comes_again_and_is_not_refused():
    came = []

    async def full(_reader, writer):
        came.append(writer)
        writer.write(greeting(b"CURVE", as_server=True) + command(error(b"300")))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(full, "127.0.0.1", 0)
    async with server:
        options = dialling()
        options.connect_timeout_s = 0.7
        with pytest.raises(LinkBroken, match="no place"):
            await zeromq.transport.dial(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", options)
    assert len(came) > 3


async def test_a_stranger_that_says_nothing_is_dropped_in_time(monkeypatch, caplog):
    monkeypatch.setattr(handshaking, "HANDSHAKE_S", 0.1)
    async with listener(listening()) as (address, _accepting):
        host, port = address.removeprefix("tcp://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(PATIENCE_S):
            await reader.read()
        writer.close()
    assert "it took too long" in caplog.text


async def test_early_words_are_heard_though_the_link_is_lost_already():
    """A message comes with READY, and the peer is gone before anybody reads: what it said comes first."""
    for pause in (False, True):
        client, server = shake_hands(*PAIRS["curve"]())
        client.limit(1000)
        near, far = socket.socketpair()
        near.setblocking(False)
        server._early = encoded(client, request("last.words").parts())
        link, hears = ZmtpLink(near, PeerInfo("peer"), Options(), server, b""), Recorder()
        far.close()
        if pause:
            link.start(hears)
            link.pause()
        link.lose(LinkEnded("gone"))
        if not pause:
            link.start(hears)
        assert isinstance(await hears.end(), LinkEnded)
        assert topics(hears.messages) == ["last.words"]


async def test_an_abstract_name_that_is_in_use_says_so():
    name = f"ipc://@headgate-test-{os.getpid()}"
    async with listener(Options(), name):
        with pytest.raises(ConfigError, match=r"already|in use"):
            await zeromq.transport.listen(name, Accepting(), Options())


async def test_two_that_begin_at_once_do_not_take_each_others_socket(rundir: Path):
    """Both have looked and seen nobody: the second says so, and the first goes on."""
    uri = f"ipc://{rundir}/door"
    accepting = Accepting()
    made = await zeromq.transport.listen(uri, accepting, Options())
    with pytest.raises(ConfigError, match="cannot listen"):
        await zeromq.transport.listen(uri, Accepting(), Options())
    link = await zeromq.transport.dial(uri, Options(connect_timeout_s=PATIENCE_S))
    await accepting.link(0)
    for each in (link, *(each for each, _ in accepting.links)):
        each.abort(LinkClosed("test over"))
    await made.stop()


async def test_strangers_have_a_share_of_the_loop():
    """What one of them cost is waited for, three times over, before the next has its turn, or is accepted."""
    accepting = Accepting()
    made = await zeromq.transport.listen("tcp://127.0.0.1:0", accepting, listening())
    loop = asyncio.get_running_loop()
    link = await zeromq.transport.dial(made.address, dialling())
    begin = loop.time()
    assert 0 < made._not_before - begin < PATIENCE_S, "a handshake counts"
    made._spent(0.05)
    other = await zeromq.transport.dial(made.address, dialling())
    assert loop.time() - begin > 0.05 * (1 - handshaking.SHARE) / handshaking.SHARE
    for each in (link, other, *(each for each, _ in accepting.links)):
        each.abort(LinkClosed("test over"))
    await made.stop()


async def test_time_of_others_is_not_charged_to_strangers(monkeypatch):
    """A step that the machine interrupts is no work. Found with 200 peers beside six busy processes."""
    made = await zeromq.transport.listen("tcp://127.0.0.1:0", Accepting(), listening())
    begin = made.begin

    def interrupted():
        time.sleep(0.1)
        return begin()

    monkeypatch.setattr(made, "begin", interrupted)
    host, port = made.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))):
        async with asyncio.timeout(PATIENCE_S):
            while not made._strangers:
                await asyncio.sleep(0.001)
        assert made._not_before - asyncio.get_running_loop().time() < 0.1
    await made.stop()


async def test_who_comes_after_the_share_is_spent_is_accepted_later(monkeypatch):
    """In the middle of a burst, too: found with 10 000 a second, of whom 32 were greeted at a time."""
    monkeypatch.setattr(handshaking, "DEBT_S", 0.0)
    made = await zeromq.transport.listen("tcp://127.0.0.1:0", Accepting(), listening())
    host, port = made.address.removeprefix("tcp://").split(":")
    strangers = [socket.create_connection((host, int(port))) for _ in range(8)]
    try:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(made._strangers) == 1
        async with asyncio.timeout(PATIENCE_S):
            while len(made._strangers) < 8:
                await asyncio.sleep(0.001)
    finally:
        for each in strangers:
            each.close()
        await made.stop()


async def test_a_flood_of_strangers_leaves_the_loop_to_those_who_are_in(caplog):
    """Their handshakes get a share of the loop, some at a time; a link beside them goes on."""
    caplog.set_level(logging.CRITICAL)
    async with pair() as (near, _heard, far, hears):
        host, port = near.peer.address.removeprefix("tcp://").split(":")
        hello = greeting(b"CURVE", as_server=False) + b"\x04\xc8\x05HELLO\x01\x00" + bytes(192)
        strangers = []
        for _ in range(300):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex((host, int(port)))
            strangers.append(sock)
        await asyncio.sleep(0)
        for sock in strangers:
            try:
                sock.send(hello)
            except OSError:
                continue
        for number in range(20):
            send_all(near, [event(f"n.{number}")])
            await hears.count(number + 1)
        assert far.ended is None
        for sock in strangers:
            sock.close()


async def test_a_key_changes_for_those_who_come(rundir: Path):
    new = curve.generate()
    options = listening()
    accepting = Accepting()
    made = await zeromq.transport.listen("tcp://127.0.0.1:0", accepting, options)
    link = await zeromq.transport.dial(made.address, dialling())
    assert made.renew({"curve": curve.CurveServer(new)}) is made
    other = await zeromq.transport.dial(made.address, dialling(server=new))
    assert link.ended is None
    with pytest.raises(LinkRefused):
        await zeromq.transport.dial(made.address, dialling(server=SERVER))
    for each in (link, other, *(each for each, _ in accepting.links)):
        each.abort(LinkClosed("test over"))
    await made.stop()


async def test_limits_hold_for_what_waits():
    """One that is beyond its cap ends, as every link's outbox does."""
    options = listening(batch=True)
    options.limits = OutboxLimits(cap_bytes=1 << 20, event_bytes=1 << 20)
    async with listener(options) as (address, accepting):
        near = await zeromq.transport.dial(address, dialling(batch=True))
        far, hears = await accepting.link(0)
        answer = response(request("r"), b"x" * 100_000)
        for _ in range(400):
            if far.ended is None:
                send_all(
                    far,
                    [Message(answer.front, answer.topic_part, answer.payload_part, answer.head, answer.tag)],
                )
        assert "the cap is" in str(await hears.end())
        near.abort(LinkClosed("test over"))
