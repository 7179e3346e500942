"""The ROUTER with real sockets: who is who, what is kept from whom, and how connections end."""

import asyncio
import socket

import pytest
import zmq

from broker.endpoints import parse
from broker.errors import ConfigError
from broker.nfp.frames import Packet, decode, encode
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.opening import broker_of, read_any
from broker.nfp.records import WorkerSeen
from broker.nfp.server.turn import QueueLimits
from broker.transport import curve, dialing
from broker.transport.batching import ALONE_BYTES
from broker.transport.zeromq.connection import PARTS_MAX, Connection
from broker.transport.zeromq.dialing import shake_hands
from broker.transport.zeromq.listening import pair_of
from broker.transport.zeromq.mechanisms import CurveClient
from tests.unit.nfp.server.stage import KEY, OTHER, SERVER, received, stage, until

HELLO = [b"", b"hello"]


def event(size: int, uuid: str = "u", command: Command = Command.EVENT) -> Packet:
    return Packet(Sender.BROKER, command, service="svc", uuid=uuid, status=200, body=bytes(size))


def test_a_message_comes_from_somebody_and_the_answer_goes_there():
    async def story():
        async with stage() as on:
            on.ingress.on_message = lambda peer, frames: peer.send(event(3))
            with on.dealer(b"w1") as peer:
                peer.send_multipart(HELLO)
                frames = await received(peer)
                assert frames[1:3] == [b"NFPB01", b"0x08"]
                (found,) = on.ingress.peers
                assert (found.name, found.principal.key) == ("w1", KEY.public_key)
                assert on.router.sent == on.router.received == 1

    asyncio.run(story())


def test_large_bodies_are_passed_on_as_they_came():
    async def story():
        async with stage() as on:
            bodies = []
            on.ingress.on_message = lambda peer, frames: (
                bodies.append(frames[-1]),
                peer.send(
                    Packet(Sender.BROKER, Command.STREAM, service="s", uuid="u", status=200, body=frames[-1])
                ),
            )
            with on.dealer(b"w1") as peer:
                for size in (ALONE_BYTES - 1, ALONE_BYTES):
                    peer.send_multipart([b"", bytes(size)])
                    assert (await received(peer))[-1] == bytes(size)
            assert [type(body) for body in bodies] == [bytes, memoryview]

    asyncio.run(story())


def test_endless_frames_are_not_kept():
    async def story():
        async with stage() as on:
            with on.dealer(b"w1", RECONNECT_IVL=-1) as peer:
                peer.send_multipart([b"x"] * 1000)
                await until(lambda: on.ingress.came)
                peer.send_multipart([b""] * (PARTS_MAX + 1))
                await until(lambda: on.ingress.ended)
                assert len(on.ingress.came) == 1

    asyncio.run(story())


def test_a_refused_name_is_cut_and_nothing_is_sent_to_it():
    async def story():
        async with stage() as on:
            on.ingress.foreign.add((b"w1", OTHER.public_key))
            with on.dealer(b"w1", OTHER, RECONNECT_IVL=-1) as thief:
                thief.send_multipart(HELLO)
                await until(lambda: not thief.poll(0, zmq.POLLOUT))
                assert not on.ingress.came
            with on.dealer(b"w1") as owner:
                owner.send_multipart(HELLO)
                await until(lambda: on.ingress.came)
                assert on.ingress.peers[0].principal.key == KEY.public_key

    asyncio.run(story())


def test_what_was_queued_for_a_name_never_reaches_another_key():
    """The owner's connection breaks, a thief connects in its place and stays silent: it gets nothing."""

    async def story():
        async with stage() as on:
            with on.dealer(b"w1") as owner:
                owner.send_multipart(HELLO)
                await until(lambda: on.ingress.peers)
            (peer,) = on.ingress.peers
            with on.dealer(b"w1", OTHER) as thief:
                for _ in range(40):
                    peer.send(event(100))
                    await asyncio.sleep(0.005)
                await until(lambda: on.ingress.ended == ["w1"])
                assert not peer.alive
                assert peer.send(event(1)) is False
                assert thief.poll(200) == 0
            with on.dealer(b"w1", OTHER) as late:
                late.send_multipart(HELLO)
                await until(lambda: len(on.ingress.peers) == 2)

    asyncio.run(story())


def test_unlisted_keys_stay_outside():
    async def story():
        async with stage() as on:
            on.ingress.strangers.add(OTHER.public_key)
            with on.dealer(b"w1", OTHER) as stranger:
                stranger.send_multipart(HELLO)
                await until(lambda: on.router.denied)
                assert not on.ingress.came

    asyncio.run(story())


def test_a_peer_ends_after_its_last_message():
    async def story():
        async with stage() as on:
            with on.dealer(b"w1", LINGER=1000) as peer:
                for number in range(500):
                    peer.send_multipart([b"", b"%d" % number])
            await until(lambda: on.ingress.ended)
            assert on.ingress.messages("w1") == [b"%d" % number for number in range(500)]
            assert not list(on.router.peers())

    asyncio.run(story())


def test_the_same_name_again_is_a_new_peer():
    async def story():
        async with stage() as on:
            for count in range(1, 6):
                with on.dealer(b"w1") as peer:
                    peer.send_multipart([b"", b"%d" % count])
                    await until(lambda count=count: len(on.ingress.peers) == count)
            await until(lambda: len(on.ingress.ended) == 5)
            assert len({id(peer) for peer in on.ingress.peers}) == 5

    asyncio.run(story())


NO_RECONNECT_MS = 3_600_000
"""With -1 libzmq throws away what it has received and not handed over."""


def opening() -> list[bytes]:
    return [bytes(frame) for frame in encode(Packet(Sender.CLIENT, Command.OPEN, body=b"{}"))]


async def refusal(sock: zmq.Socket) -> str:
    return broker_of(read_any(decode(await received(sock)).data)).refused


def test_who_is_there_keeps_its_name_and_the_other_one_is_told(caplog):
    async def story():
        async with stage() as on:
            with on.dealer(b"w1") as first:
                first.send_multipart([b"", b"first"])
                await until(lambda: on.ingress.came)
                with on.dealer(b"w1", RECONNECT_IVL=NO_RECONNECT_MS) as second:
                    second.send_multipart(opening())
                    assert await refusal(second) == "the name w1 is in use"
                first.send_multipart([b"", b"again"])
                await until(lambda: on.ingress.messages("w1") == [b"first", b"again"])
            assert not on.ingress.ended or on.ingress.ended == ["w1"]

    asyncio.run(story())
    assert "as 'w1': somebody is connected by that name" in caplog.text


def test_a_silent_connection_keeps_no_name():
    async def story():
        async with stage() as on:
            with on.dealer(b"w1", OTHER), on.dealer(b"w1") as owner:
                await until(lambda: len(on.ingress.arrivals) == 2)
                owner.send_multipart(HELLO)
                await until(lambda: on.ingress.came)
                assert on.ingress.peers[0].principal.key == KEY.public_key

    asyncio.run(story())


def test_who_comes_back_before_its_former_connection_has_ended_is_served_behind_it():
    """Its messages are kept meanwhile, and the former one's come first."""

    async def story():
        async with stage() as on:
            first = on.dealer(b"w1", LINGER=1000)
            first.send_multipart([b"", b"first"])
            await until(lambda: on.ingress.came)
            with on.dealer(b"w1") as second:
                second.send_multipart([b"", b"second"])
                await until(lambda: on.router._waiting)
                first.send_multipart([b"", b"last"])
                first.close()
                await until(lambda: len(on.ingress.came) == 3)
                second.send_multipart([b"", b"third"])
                await until(lambda: len(on.ingress.came) == 4)
            assert on.ingress.messages("w1") == [b"first", b"last", b"second", b"third"]
            assert on.ingress.peers[0] is not on.ingress.peers[1]

    asyncio.run(story())


def test_a_dead_connection_makes_room_for_a_new_one(caplog):
    """Its machine is gone, or its process frozen: no byte comes, and nothing tells that it never will."""

    async def story():
        async with stage(beat_ms=100) as on:
            dead = await dial(on, b"w1")
            write(dead, HELLO)
            await until(lambda: on.ingress.came)
            with on.dealer(b"w1") as second:
                second.send_multipart([b"", b"second"])
                await until(lambda: len(on.ingress.came) == 2)
                assert (on.ingress.ended, on.router.cut_dead) == (["w1"], 1)
            dead[0].close()

    asyncio.run(story())
    assert "is cut: it gave no sign of life within 0.35 s" in caplog.text


def test_of_several_who_want_a_name_the_last_one_waits():
    async def story():
        async with stage(beat_ms=200) as on:
            dead = await dial(on, b"w1")
            write(dead, HELLO)
            await until(lambda: on.ingress.came)
            with (
                on.dealer(b"w1", RECONNECT_IVL=NO_RECONNECT_MS) as second,
                on.dealer(b"w1", RECONNECT_IVL=NO_RECONNECT_MS) as third,
            ):
                second.send_multipart(opening())
                await until(lambda: on.router._waiting)
                third.send_multipart([b"", b"third"])
                assert await refusal(second) == "the name w1 is wanted by another connection, too"
                await until(lambda: on.ingress.messages("w1")[1:] == [b"third"])
            dead[0].close()

    asyncio.run(story())


@pytest.mark.parametrize("plain", [True, False])
def test_a_foreign_name_is_told_to_who_opens(plain):
    key = "" if plain else OTHER.public_key

    async def story():
        async with stage(plain=plain) as on:
            on.ingress.foreign.add((b"w1", key))
            with on.dealer(b"w1", OTHER, RECONNECT_IVL=NO_RECONNECT_MS) as thief:
                thief.send_multipart(opening())
                assert await refusal(thief) == (
                    "the name w1 is somebody else's" if plain else "the name w1 belongs to another key"
                )

    asyncio.run(story())


def test_who_says_no_identity_is_named_as_a_router_names_it():
    async def story():
        async with stage() as on:
            with on.dealer(b"") as one, on.dealer(b"") as two:
                for each in (one, two):
                    each.send_multipart(HELLO)
                await until(lambda: len(on.ingress.peers) == 2)
                identities = {peer.identity for peer in on.ingress.peers}
                assert len(identities) == 2
                assert all(len(each) == 5 and each[0] == 0 for each in identities)

    asyncio.run(story())


@pytest.mark.parametrize(("kind", "lockstep"), [(zmq.REQ, True), (zmq.DEALER, False)])
def test_a_req_is_known_by_its_handshake(kind, lockstep):
    async def story():
        async with stage(plain=True) as on:
            on.ingress.on_message = lambda peer, frames: peer.send(event(3))
            with on.context.socket(kind) as sock:
                sock.connect(on.router.address)
                sock.send_multipart([b"hello"] if lockstep else HELLO)
                assert (await received(sock))[-1] == bytes(3)
                assert on.ingress.came[0][1] == HELLO
                assert on.ingress.peers[0].lockstep is lockstep

    asyncio.run(story())


async def dial(on, identity: bytes) -> tuple[socket.socket, Connection]:
    """A DEALER by hand, which answers nothing."""
    keys, server = pair_of(KEY), curve.raw_key(SERVER.public_key)
    connection = Connection(CurveClient({b"Socket-Type": b"DEALER", b"Identity": identity}, keys, server))
    sock = await dialing.connect(parse(on.router.address), proven=True)
    await shake_hands(sock, connection, "the router")
    return sock, connection


def write(dialled: tuple[socket.socket, Connection], parts: list[bytes]) -> None:
    out: list[bytes] = []
    dialled[1].encode(parts, out)
    dialled[0].send(b"".join(out))


def test_a_cut_peer_is_not_heard_any_more():
    async def story():
        async with stage() as on:
            on.ingress.on_message = lambda peer, frames: peer.cut("enough")
            with on.dealer(b"w1", RECONNECT_IVL=-1) as peer:
                for _ in range(50):
                    peer.send_multipart(HELLO)
                await until(lambda: on.ingress.ended)
                assert len(on.ingress.came) == 1

    asyncio.run(story())


def test_messages_wait_for_their_commit_and_keep_their_order():
    async def story():
        async with stage() as on:
            with on.dealer(b"w1") as sock:
                sock.send_multipart(HELLO)
                await until(lambda: on.ingress.peers)
                (peer,) = on.ingress.peers
                peer.send(event(1))
                peer.send(event(2), after=7)
                peer.send(event(3))
                assert len((await received(sock))[-1]) == 1
                assert sock.poll(100) == 0
                on.turn.commit_done(6)
                assert sock.poll(100) == 0
                on.turn.commit_done(7)
                assert [len((await received(sock))[-1]) for _ in range(2)] == [2, 3]

    asyncio.run(story())


def test_what_a_read_led_to_leaves_in_one_write_and_overtakes_nobody():
    async def story():
        async with stage() as on:
            waited = []

            def answer(peer, frames):
                peer.send(event(1))
                peer.send(event(2))
                peer.send(event(3), after=7)
                peer.send(event(4))
                waited.append(peer.waiting[0])
                peer.pipe.write = counted(peer.pipe.write)
                on.ingress.on_message = lambda peer, frames: None

            on.ingress.on_message = answer
            with on.dealer(b"w1") as sock:
                sock.send_multipart(HELLO)
                assert [len((await received(sock))[-1]) for _ in range(2)] == [1, 2]
                assert waited == [4]
                (peer,) = on.ingress.peers
                assert peer.pipe.write.calls == 1
                assert sock.poll(100) == 0
                on.turn.commit_done(7)
                assert [len((await received(sock))[-1]) for _ in range(2)] == [3, 4]

    asyncio.run(story())


def counted(function):
    """``function``, which counts its calls."""

    def call():
        call.calls += 1
        function()

    call.calls = 0
    return call


def test_while_nothing_can_be_stored_other_jobs_overtake():
    async def story():
        async with stage() as on:
            with on.dealer(b"w1") as sock:
                sock.send_multipart(HELLO)
                await until(lambda: on.ingress.peers)
                (peer,) = on.ingress.peers
                peer.send(event(1, "old"), after=9)
                peer.send(event(2, "old"))
                peer.send(event(3, "full"))
                peer.send(event(4, "new"), after=9)
                assert sock.poll(100) == 0
                on.broken = "disk full"
                peer.drop({"new"})
                on.turn.retry()
                assert len((await received(sock))[-1]) == 3
                assert sock.poll(100) == 0
                on.turn.commit_done(9)
                assert [len((await received(sock))[-1]) for _ in range(2)] == [1, 2]
                assert peer.waiting == (0, 0)

    asyncio.run(story())


def test_a_peer_that_does_not_read_loses_events_and_is_cut_before_results_are_lost():
    async def story():
        async with stage(limits=QueueLimits(1 << 20, 100)) as on:
            with on.dealer(b"slow", RCVHWM=1) as sock, on.dealer(b"quick") as quick:
                sock.send_multipart(HELLO)
                quick.send_multipart(HELLO)
                await until(lambda: len(on.ingress.peers) == 2)
                slow, other = sorted(on.ingress.peers, key=lambda peer: peer.name, reverse=True)
                while slow.send(event(30_000)):
                    await asyncio.sleep(0)
                assert slow.waiting[1] <= 0.75 * (1 << 20)
                assert slow.alive
                assert other.send(event(10))
                assert len((await received(quick))[-1]) == 10
                while slow.send(event(30_000, command=Command.RESPONSE)):
                    await asyncio.sleep(0)
                assert slow.alive  # it may just be slow
                on.router.stall_s = 0.1
                await until(lambda: not slow.send(event(30_000, command=Command.RESPONSE)) and not slow.alive)
                await until(lambda: on.ingress.ended == ["slow"])
                assert on.dropped > 20

    asyncio.run(story())


def test_a_peer_that_reads_gets_more_in_one_turn_than_its_queue_holds():
    """Nothing of it was written yet when the queue was full."""

    async def story():
        async with stage(limits=QueueLimits(1 << 20, 100)) as on:
            results = []
            on.ingress.on_message = lambda peer, frames: results.extend(
                peer.send(event(300_000 + number, command=Command.RESPONSE)) for number in range(10)
            )
            with on.dealer(b"c1") as peer:
                peer.send_multipart(HELLO)
                sizes = [len((await received(peer))[-1]) for _ in range(10)]
                assert sizes == [300_000 + number for number in range(10)]
            assert results == [True] * 10

    asyncio.run(story())


def test_who_waits_for_the_disk_is_not_cut_and_is_told_when_there_is_room():
    async def story():
        async with stage(limits=QueueLimits(1 << 20, 100)) as on:
            on.router.stall_s = 0.0
            with on.dealer(b"c1") as sock:
                sock.send_multipart(HELLO)
                await until(lambda: on.ingress.peers)
                (peer,) = on.ingress.peers
                while peer.send(event(300_000, command=Command.RESPONSE), after=1):
                    pass
                for _ in range(3):
                    assert not peer.send(event(300_000, command=Command.RESPONSE), after=1)
                    await asyncio.sleep(0.01)
                assert peer.alive
                assert not peer.has_spare_room()
                assert on.ingress.relieved == []
                on.turn.commit_done(1)
                await until(lambda: on.ingress.relieved == ["c1"])
                assert peer.has_spare_room()
                for _ in range(3):
                    await received(sock)

    asyncio.run(story())


def test_a_peer_that_is_lost_tells_what_it_was_not_sent():
    async def story():
        async with stage() as on:
            with on.dealer(b"c1") as sock:
                sock.send_multipart(HELLO)
                await until(lambda: on.ingress.peers)
                (peer,) = on.ingress.peers
                peer.send(event(3, "left"))
                await received(sock)
                peer.send(event(3, "kept", Command.RESPONSE), after=1)
            await until(lambda: on.ingress.ended)
            assert peer.unsent == {"kept"}

    asyncio.run(story())


def test_keepalive_does_not_wait_for_the_disk():
    async def story():
        async with stage() as on:
            with on.dealer(b"w1") as sock:
                sock.send_multipart(HELLO)
                await until(lambda: on.ingress.peers)
                (peer,) = on.ingress.peers
                for uuid in ("u1", "u2"):
                    peer.send(event(3, uuid, Command.RESPONSE), after=1)
                peer.send(Packet(Sender.BROKER, Command.KEEPALIVE, service="svc"))
                assert (await received(sock))[2] == b"0x02"
                assert not sock.poll(50)
                on.turn.commit_done(1)
                said = [(await received(sock))[4] for _ in range(2)]
                assert said == [b"u1", b"u2"]

    asyncio.run(story())


def test_a_message_that_breaks_the_house_costs_no_other_message(caplog):
    async def story():
        def broken(peer, frames):
            if frames[-1] == b"poison":
                raise ValueError("it broke")

        async with stage() as on:
            on.ingress.on_message = broken
            with on.dealer(b"w1") as sock:
                for part in (b"poison", b"behind"):
                    sock.send_multipart([b"", part])
                await until(lambda: on.ingress.messages("w1") == [b"poison", b"behind"])
        assert "could not be handled" in caplog.text

    asyncio.run(story())


@pytest.mark.patient  # how long the kernel rests when a window was full
def test_a_full_peer_gets_the_rest_when_it_reads():
    async def story():
        async with stage(limits=QueueLimits(16 << 20, 10_000)) as on:
            with on.dealer(b"slow", RCVHWM=1, RCVBUF=1 << 16) as sock:
                sock.send_multipart(HELLO)
                await until(lambda: on.ingress.peers)
                (peer,) = on.ingress.peers
                for number in range(1000):  # more than the kernel takes
                    assert peer.send(event(10_000 + number % 7))
                await until(lambda: not peer.pipe.free)
                sizes = []
                while len(sizes) < 1000:
                    sizes.append(len((await received(sock))[-1]))
                assert sizes == [10_000 + number % 7 for number in range(1000)]

    asyncio.run(story())


def test_a_frame_beyond_the_cap_ends_the_connection():
    async def story():
        async with stage() as on:
            with on.dealer(b"w1", RECONNECT_IVL=-1) as peer:
                peer.send_multipart(HELLO)
                peer.send_multipart([b"", bytes(1 << 20)])
                await until(lambda: len(on.ingress.came) == 2)
                peer.send_multipart([b"", bytes((1 << 20) + 1)])
                await until(lambda: on.ingress.ended)

    asyncio.run(story())


def test_a_worker_of_an_earlier_run_that_says_nothing_is_told_to_register():
    """On each connection anew; who speaks by itself, and who is not expected, is left alone."""

    async def story():
        async with stage(plain=True) as on:
            on.expected = {name: WorkerSeen(name, "svc", Dialect.NORFAB, "") for name in ("w1", "w2")}
            with on.dealer(b"w1") as silent, on.dealer(b"w2") as speaks, on.dealer(b"w3") as stranger:
                speaks.send_multipart(HELLO)
                said = decode(await received(silent))
                assert (said.sender, said.command, said.service) == (Sender.BROKER, Command.DISCONNECT, "svc")
                silent.send_multipart(HELLO)
                await until(lambda: {name for name, _ in on.ingress.came} == {"w1", "w2"})
                assert not speaks.poll(50)
                assert not stranger.poll(0)
            await until(lambda: len(on.ingress.ended) == 2)
            with on.dealer(b"w1") as again:
                await received(again)
            assert on.called_back == 2

    asyncio.run(story())


def test_a_turn_reads_a_part_of_what_a_greedy_peer_sends():
    """Whoever sends little is served between two reads of one who sends all the time."""

    async def story():
        async with stage(limits=QueueLimits(16 << 20, 10_000)) as on:
            with on.dealer(b"greedy", SNDHWM=0) as greedy, on.dealer(b"small") as small:
                small.send_multipart(HELLO)
                await until(lambda: on.ingress.came)
                for _ in range(5000):
                    greedy.send_multipart([b"", bytes(100)])
                small.send_multipart([b"", b"please"])
                await until(lambda: on.ingress.messages("small")[1:])
                before = len(on.ingress.messages("greedy"))
                await until(lambda: len(on.ingress.messages("greedy")) == 5000)
                assert before < 4000

    asyncio.run(story())


def test_ipc(rundir):
    async def story():
        async with stage(uri=f"ipc://{rundir}/nfp") as on:
            with on.dealer(b"w1") as peer:
                peer.send_multipart(HELLO)
                await until(lambda: on.ingress.came)
            await until(lambda: on.ingress.ended)
        assert not (rundir / "nfp").exists()

    asyncio.run(story())


def test_a_port_in_use_is_said():
    async def story():
        async with stage() as on:
            with pytest.raises(ConfigError, match="cannot listen"):
                async with stage(uri=on.router.address):
                    pass

    asyncio.run(story())
