"""ROUTER and DEALER links against raw ZeroMQ sockets: forms on the wire, identities, refusals, losses."""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq

from broker.errors import ConfigError, LinkBroken, LinkClosed, LinkEnded, LinkRefused
from broker.identity import Credentials, Role
from broker.transport import curve, zeromq
from broker.transport.link import Link, Options
from broker.transport.outbox import OutboxLimits
from broker.transport.zeromq import hub, tuning
from broker.transport.zeromq.batching import ALONE_BYTES, BATCH_BYTES, BATCH_MSGS
from broker.wire.message import MAGIC_DEPLOYED, Message, control, event, request
from tests.contract.checks import PATIENCE_S, Accepting, Recorder, numbered, send_all, topics

SERVER, PEER, CLIENT = curve.generate(), curve.generate(), curve.generate()
GUEST = Credentials(1000, Role.USER)
UUID = b"0f8fad5b-d9cb-469f-a165-70867728950e"


def listening(keys=None, **extra) -> Options:
    known = (
        {PEER.public_key: curve.PeerKey(3), CLIENT.public_key: curve.ClientKey(GUEST)}
        if keys is None
        else keys
    )
    return Options(extra={"curve": curve.CurveServer(SERVER), "keys": known} | extra)


def dialling(certificate=PEER, server=SERVER, **extra) -> Options:
    return Options(
        extra={"curve": curve.CurveClient(certificate, server.public_key)} | extra,
        connect_timeout_s=PATIENCE_S,
    )


@contextlib.asynccontextmanager
async def listener(options: Options, uri: str = "tcp://127.0.0.1:0") -> AsyncIterator[tuple[str, Accepting]]:
    accepting = Accepting()
    made = await zeromq.transport.listen(uri, accepting, options)
    try:
        yield made.contact_address, accepting
    finally:
        for link, _recorder in accepting.links:
            link.abort(LinkClosed("test over"))
        await made.stop()


@contextlib.contextmanager
def raw(kind: int, context: zmq.Context, certificate=PEER, identity: bytes = UUID):
    sock = context.socket(kind)
    sock.set(zmq.LINGER, 0)
    sock.set(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
    if kind == zmq.DEALER:
        sock.set(zmq.ROUTING_ID, identity)
        sock.set(zmq.CURVE_SERVERKEY, SERVER.public_key.encode())
    else:
        sock.set(zmq.CURVE_SERVER, 1)
        certificate = SERVER
    sock.set(zmq.CURVE_PUBLICKEY, certificate.public_key.encode())
    sock.set(zmq.CURVE_SECRETKEY, certificate.secret_key.encode())
    yield sock
    sock.close()


async def reply_to(sock: zmq.Socket) -> list[bytes]:
    return await asyncio.to_thread(sock.recv_multipart)


# -- forms on the wire ----------------------------------------------------------------------------


def test_batches_and_large_messages_on_the_wire():
    """One part per batch within its bounds, a large message as plain parts between them; plain before agreement."""

    async def check():
        with zmq.Context() as context, raw(zmq.ROUTER, context) as parent:
            port = parent.bind_to_random_port("tcp://127.0.0.1")
            link = await zeromq.transport.dial(f"tcp://127.0.0.1:{port}", dialling(batch=True, identity=UUID))
            link.start(Recorder())
            send_all(link, [request("hello", b"{}\0")])
            assert await reply_to(parent) == [UUID, b"", b"hello", b"{}\0", request("hello", b"{}\0").proto]
            link.enable_batch()
            large = request("large", b"x" * ALONE_BYTES)
            messages = [*numbered(1500), large, *numbered(20, 60_000)]
            send_all(link, messages)
            seen: list[bytes] = []
            while sum(part.count(MAGIC_DEPLOYED) for part in seen) < 1520:
                identity, *parts = await reply_to(parent)
                assert identity == UUID
                if len(parts) > 1:
                    assert parts == large.parts()
                    assert sum(part.count(MAGIC_DEPLOYED) for part in seen) == 1500
                    continue
                assert parts[0].startswith(MAGIC_DEPLOYED)
                assert len(parts[0]) <= BATCH_BYTES
                assert parts[0].count(MAGIC_DEPLOYED) <= BATCH_MSGS
                seen += parts
            assert b"".join(seen) == b"".join(
                message.framed() for message in messages if message is not large
            )
            link.close()

    asyncio.run(check())


def test_router_adds_and_strips_the_identity():
    async def check():
        async with listener(listening()) as (address, accepting):
            with zmq.Context() as context, raw(zmq.DEALER, context) as child:
                child.connect(address)
                asked = request("a.b", b"p")
                asked.push_route(b"below")
                child.send_multipart(asked.parts())
                link, recorder = await accepting.link(0)
                assert await recorder.count(1) == [asked]
                assert link.identity == UUID
                assert link.peer.rank == 3
                assert link.peer.curve_key == PEER.public_key
                link.enable_batch()  # not agreed on by setting: no effect
                send_all(link, [asked])
                assert await reply_to(child) == asked.parts()

    asyncio.run(check())


@pytest.mark.parametrize(
    ("settings", "form"),
    [
        ({"dialect": "flux1", "strict_rfc3": True}, [b"", b"a.b\0", b"p"]),
        ({"dialect": "cmb1rev"}, None),
    ],
)
def test_a_link_speaks_its_dialect(settings, form):
    async def check():
        options = listening(batch=True)
        for name, value in settings.items():
            setattr(options, name, value)
        async with listener(options) as (address, accepting):
            with zmq.Context() as context, raw(zmq.DEALER, context) as child:
                child.connect(address)
                from broker.wire.dialects import dialect

                spoken = dialect(options.dialect, options.strict_rfc3)
                said = request("a.b", b"p")
                child.send_multipart(spoken.encode(said))
                link, recorder = await accepting.link(0)
                assert await recorder.count(1) == [said]
                link.enable_batch()  # a batch holds the default form only: no effect
                send_all(link, [said, request("x", None, nodeid=0xFFFFFFFE), said])
                for _ in range(2):
                    parts = await reply_to(child)
                    assert parts == spoken.encode(said)
                    assert form is None or parts[:-1] == form
                assert link.untranslatable == 1
                assert link.ended is None

    asyncio.run(check())


@pytest.mark.parametrize(
    "bad", [[b""], [b"\x8e" * 20], [b"rubbish"], [b"", b"x", b"y" * 20], [event("cut").framed()[:-1]]]
)
def test_what_is_no_message_ends_its_own_link_only(bad):
    async def check():
        async with listener(listening(batch=True)) as (address, accepting):
            with (
                zmq.Context() as context,
                raw(zmq.DEALER, context) as good,
                raw(zmq.DEALER, context, CLIENT, b"other") as evil,
            ):
                good.connect(address)
                good.send_multipart(event("good").parts())
                await accepting.link(0)
                evil.connect(address)
                evil.send_multipart(event("before").parts())
                evil.send_multipart(bad)
                evil.send_multipart(event("after").parts())
                _link, recorder = await accepting.link(1)
                error = await recorder.end()
                assert isinstance(error, LinkBroken)
                assert error.errno == errno.EPROTO
                assert topics(recorder.messages) == ["before"]
                good.send_multipart(event("still.good").parts())
                assert topics(await accepting.links[0][1].count(2)) == ["good", "still.good"]

    asyncio.run(check())


def test_a_batch_nobody_agreed_on_ends_the_link():
    async def check():
        async with listener(listening()) as (address, accepting):
            with zmq.Context() as context, raw(zmq.DEALER, context) as child:
                child.connect(address)
                child.send(event("e").framed())
                _link, recorder = await accepting.link(0)
                assert "not agreed" in str(await recorder.end())

    asyncio.run(check())


def test_a_message_above_its_peers_cap_ends_the_link():
    async def check():
        options = listening()
        options.max_bytes = lambda peer: 10_000 if peer.user is not None else 1 << 20
        async with listener(options) as (address, accepting):
            with zmq.Context() as context, raw(zmq.DEALER, context, CLIENT) as child:
                child.connect(address)
                child.send_multipart(request("t", b"x" * 9_000).parts())
                child.send_multipart(request("t", b"x" * 11_000).parts())
                _link, recorder = await accepting.link(0)
                assert (await recorder.end()).errno == errno.EMSGSIZE
                assert len(recorder.messages) == 1

    asyncio.run(check())


# -- who gets in ----------------------------------------------------------------------------------


def test_clients_carry_their_credentials():
    async def check():
        async with listener(listening()) as (address, accepting):
            link = await zeromq.transport.dial(address, dialling(CLIENT))
            link.start(Recorder())
            send_all(link, [control(0)])
            far, _recorder = await accepting.link(0)
            assert far.peer.user == GUEST
            assert far.peer.rank is None
            assert link.peer.curve_key == SERVER.public_key
            link.close()

    asyncio.run(check())


def test_an_unknown_key_is_refused_until_it_is_known():
    async def check():
        keys = {PEER.public_key: curve.PeerKey(3)}
        async with listener(listening(keys)) as (address, accepting):
            with pytest.raises(LinkRefused, match="ZAP 400") as caught:
                await zeromq.transport.dial(address, dialling(CLIENT))
            assert caught.value.errno == errno.EPERM
            keys[CLIENT.public_key] = curve.PeerKey(4)
            link = await zeromq.transport.dial(address, dialling(CLIENT))
            link.start(Recorder())
            send_all(link, [control(0)])
            assert (await accepting.link(0))[0].peer.rank == 4
            link.close()

    asyncio.run(check())


def test_a_key_forgotten_between_handshake_and_first_message_is_not_heard():
    async def check():
        keys = {PEER.public_key: curve.PeerKey(3)}
        async with listener(listening(keys)) as (address, accepting):
            link, recorder = await zeromq.transport.dial(address, dialling()), Recorder()
            link.start(recorder)
            keys.clear()
            send_all(link, numbered(5))
            assert isinstance(await recorder.end(), LinkEnded)
            assert not accepting.links

    asyncio.run(check())


@pytest.mark.parametrize(
    "options", [dialling(server=CLIENT), Options(connect_timeout_s=PATIENCE_S)], ids=["key", "plain"]
)
def test_a_wrong_server_key_or_plaintext_is_refused(options):
    async def check():
        async with listener(listening()) as (address, accepting):
            with pytest.raises(LinkRefused):
                await zeromq.transport.dial(address, options)
            assert not accepting.links

    asyncio.run(check())


@pytest.mark.parametrize("uri", ["tcp://*:0", "tcp://0.0.0.0:0", "tcp://[::]:0"])
def test_plaintext_off_loopback_is_a_setting(uri):
    async def check():
        with pytest.raises(ConfigError, match="plaintext"):
            await zeromq.transport.listen(uri, Accepting(), Options())
        with pytest.raises(ConfigError, match="plaintext"):
            await zeromq.transport.dial("tcp://192.0.2.1:1", Options())
        made = await zeromq.transport.listen(uri, Accepting(), Options(insecure=True))
        assert not made.contact_address.endswith(":0")
        await made.stop()

    asyncio.run(check())


@pytest.mark.parametrize(
    "extra",
    [
        {"curve": curve.CurveClient(PEER, SERVER.public_key)},
        {"curve": curve.CurveServer(SERVER.public)},
        {"curve": "a string"},
    ],
)
def test_a_wrong_certificate_is_a_configuration_error(extra):
    async def check():
        with pytest.raises(ConfigError):
            await zeromq.transport.listen("tcp://127.0.0.1:0", Accepting(), Options(extra=extra))
        wrong = (
            {"curve": curve.CurveServer(SERVER)} if isinstance(extra["curve"], curve.CurveClient) else extra
        )
        with pytest.raises(ConfigError):
            await zeromq.transport.dial("tcp://127.0.0.1:1", Options(extra=wrong))

    asyncio.run(check())


def test_an_unknown_dialect_is_a_configuration_error():
    async def check():
        with pytest.raises(ConfigError, match="dialect"):
            await zeromq.transport.listen("tcp://127.0.0.1:0", Accepting(), Options(dialect="klingon"))
        with pytest.raises(ConfigError, match="dialect"):
            await zeromq.transport.dial("tcp://127.0.0.1:1", Options(dialect="klingon"))

    asyncio.run(check())


def test_listening_deletes_no_file(rundir: Path):
    (rundir / "precious").write_text("data")

    async def check():
        with pytest.raises(ConfigError, match="no socket"):
            await zeromq.transport.listen(f"ipc://{rundir}/precious", Accepting(), Options())
        with pytest.raises(ConfigError):
            await zeromq.transport.listen(f"ipc://{rundir}/missing/socket", Accepting(), Options())

    asyncio.run(check())
    assert (rundir / "precious").read_text() == "data"


def test_ipc_peers_are_known_by_the_kernel(rundir: Path):
    async def check():
        async with listener(Options(), f"ipc://{rundir}/s") as (address, accepting):
            link = await zeromq.transport.dial(address, Options())
            link.start(Recorder())
            send_all(link, [control(0)])
            far, _recorder = await accepting.link(0)
            assert (far.peer.uid, far.peer.gid, far.peer.pid) == (os.getuid(), os.getgid(), os.getpid())
            assert far.peer.local
            link.close()

    asyncio.run(check())


# -- connections come and go ----------------------------------------------------------------------


def test_an_identity_used_again_is_another_link():
    """A peer that takes over a dead peer's identity gets a link with its own key, and the dead one's ends first."""

    async def check():
        async with listener(listening()) as (address, accepting):
            with zmq.Context() as context:
                with raw(zmq.DEALER, context, PEER) as first:
                    first.connect(address)
                    first.send_multipart(event("first").parts())
                    await (await accepting.link(0))[1].count(1)
                with raw(zmq.DEALER, context, CLIENT) as second:
                    second.connect(address)
                    second.send_multipart(event("second").parts())
                    link, recorder = await accepting.link(1)
                    assert topics(await recorder.count(1)) == ["second"]
                    assert link.peer.curve_key == CLIENT.public_key
                    assert isinstance(await accepting.links[0][1].end(), LinkEnded)
                    assert topics(accepting.links[0][1].messages) == ["first"]
                    assert link.ended is None

    asyncio.run(check())


def test_an_identity_in_use_cannot_be_taken():
    async def check():
        async with listener(listening()) as (address, accepting):
            with (
                zmq.Context() as context,
                raw(zmq.DEALER, context, PEER) as owner,
                raw(zmq.DEALER, context, CLIENT) as thief,
            ):
                owner.connect(address)
                owner.send_multipart(event("mine").parts())
                link, recorder = await accepting.link(0)
                thief.connect(address)
                thief.send_multipart(event("stolen").parts())
                await asyncio.sleep(0.1)
                send_all(link, [event("for.the.owner")])
                assert await reply_to(owner) == event("for.the.owner").parts()
                assert topics(recorder.messages) == ["mine"]
                assert len(accepting.links) == 1

    asyncio.run(check())


def test_a_message_of_a_connection_that_is_gone_still_counts():
    """Last words that are read only after the connection was lost are delivered, then the link ends."""

    async def check():
        async with listener(listening()) as (address, accepting):
            with zmq.Context() as context:
                with raw(zmq.DEALER, context) as child:
                    child.connect(address)
                    await asyncio.sleep(0.2)  # the handshake; from here on our loop stands still
                    child.send_multipart(event("only.words").parts())
                    child.close(linger=2000)
                context.term()
                time.sleep(0.1)  # noqa: ASYNC251 - that is the point
                link, recorder = await accepting.link(0)
                assert isinstance(await recorder.end(), LinkEnded)
                assert topics(recorder.messages) == ["only.words"]
                send_all(link, [event("too.late")])

    asyncio.run(check())


CHILD = """
import asyncio, sys
from broker.transport import curve, zeromq
from broker.transport.link import Options
from broker.wire.message import control

async def main():
    certificate = curve.load(sys.argv[2])
    client = curve.CurveClient(certificate, sys.argv[3])
    link = await zeromq.transport.dial(sys.argv[1], Options(extra={"curve": client}))
    class Receiver:
        def received(self, link, messages): pass
        def link_ended(self, link, error): pass
        def link_choked(self, link, choked): pass
    link.start(Receiver())
    link.send(control(0))
    await asyncio.sleep(60)

asyncio.run(main())
"""


def start_child(address: str, certificate: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", CHILD, address, str(certificate), SERVER.public_key]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def test_a_killed_peer_is_noticed_by_the_kernel_not_by_silence(rundir: Path):
    async def check():
        curve.save(PEER, rundir / "cert")
        async with listener(listening()) as (address, accepting):
            with start_child(address, rundir / "cert") as child:
                link, recorder = await accepting.link(0)
                child.send_signal(signal.SIGKILL)
                child.wait()
                assert isinstance(await recorder.end(), LinkEnded)
                send_all(link, [event("nobody")])

    asyncio.run(check())


def test_a_frozen_peer_is_noticed_by_its_silence(rundir: Path, monkeypatch):
    monkeypatch.setattr(tuning, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(tuning, "HEARTBEAT_TIMEOUT_MS", 200)

    async def check():
        curve.save(PEER, rundir / "cert")
        async with listener(listening()) as (address, accepting):
            with start_child(address, rundir / "cert") as child:
                _link, recorder = await accepting.link(0)
                await asyncio.sleep(0.5)
                assert not recorder.ends, "a live peer answers heartbeats"
                child.send_signal(signal.SIGSTOP)
                assert isinstance(await recorder.end(), LinkEnded)
                child.kill()

    asyncio.run(check())


def test_dialling_waits_for_a_listener_to_come(rundir: Path):
    async def check():
        made: list[Link] = []

        async def dial() -> None:
            made.append(
                await zeromq.transport.dial(f"ipc://{rundir}/late", Options(connect_timeout_s=PATIENCE_S))
            )

        async with asyncio.TaskGroup() as group:
            group.create_task(dial(), name="dial")
            await asyncio.sleep(0.1)
            assert not made
            accepting = Accepting()
            late = await zeromq.transport.listen(f"ipc://{rundir}/late", accepting, Options())
        made[0].close()
        await late.stop()

    asyncio.run(check())


def test_a_cancelled_dial_leaves_nothing(rundir: Path):
    async def check():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await zeromq.transport.dial(f"ipc://{rundir}/never", Options(connect_timeout_s=0))
        assert asyncio.get_running_loop() not in hub._hubs

    asyncio.run(check())


def test_a_paused_peer_of_a_router_is_held_up_to_a_cap():
    async def check():
        options = listening()
        options.limits = OutboxLimits(cap_bytes=100_000)
        async with listener(options) as (address, accepting):
            link = await zeromq.transport.dial(address, dialling())
            link.start(Recorder())
            send_all(link, [control(0)])
            far, recorder = await accepting.link(0)
            await recorder.count(1)
            far.pause()
            send_all(link, numbered(90, 1000))
            await asyncio.sleep(0.1)
            assert far.ended is None
            assert len(recorder.messages) == 1
            send_all(link, numbered(20, 1000))
            assert "while its reading was paused" in str(await recorder.end())
            link.close()

    asyncio.run(check())


def test_a_farewell_longer_than_libzmqs_queue_arrives():
    """``close`` right after more messages than SNDHWM: what libzmq has no room for follows as room comes."""

    async def check():
        for closer in ("near", "far"):
            async with listener(listening()) as (address, accepting):
                near, near_in = await zeromq.transport.dial(address, dialling()), Recorder()
                near.start(near_in)
                send_all(near, [control(0)])
                far, far_in = await accepting.link(0)
                await far_in.count(1)
                mine, theirs_in = (near, far_in) if closer == "near" else (far, near_in)
                send_all(mine, numbered(1000, 100))
                mine.close()
                assert isinstance(mine.ended, LinkClosed)
                await theirs_in.end()
                assert topics(theirs_in.messages)[-1000:] == topics(numbered(1000))
                near.abort(LinkClosed())

    asyncio.run(check())


def test_a_receiver_that_fails_costs_its_link_only(caplog):
    class Failing(Recorder):
        def received(self, link: Link, messages: list[Message]) -> None:
            raise RuntimeError("a bug in the receiver")

    async def check():
        async with listener(listening()) as (address, accepting):
            links = []
            for number in range(2):
                link = await zeromq.transport.dial(address, dialling())
                link.start(Recorder())
                send_all(link, [control(0)])
                await (await accepting.link(number))[1].count(1)
                links.append(link)
            failing = Failing()
            accepting.links[0][0].receiver = failing
            send_all(links[0], numbered(1))
            send_all(links[1], numbered(1))
            assert isinstance(await failing.end(), LinkBroken)
            await accepting.links[1][1].count(2)
            for link in links:
                link.close()

    asyncio.run(check())
    assert "a bug in the receiver" in caplog.text


def test_the_context_ends_with_the_last_socket():
    async def check():
        async with listener(listening()) as (address, _accepting):
            link = await zeromq.transport.dial(address, dialling())
            assert asyncio.get_running_loop() in hub._hubs
            link.close()
        assert asyncio.get_running_loop() not in hub._hubs

    asyncio.run(check())
    for thread in threading.enumerate():
        if thread.name == "zeromq-term":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
