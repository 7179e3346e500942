"""ROUTER and DEALER links against raw ZeroMQ sockets: forms on the wire, identities, refusals."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
import zmq

from broker.errors import ConfigError, LinkBroken, LinkRefused
from broker.identity import PeerKey
from broker.testing.harness import PATIENCE_S, Accepting, Recorder, send_all, topics
from broker.transport import curve, zeromq
from broker.transport.link import Options
from broker.wire.message import control, event, request
from tests.tables import for_each
from tests.unit.transport.raw import (
    CLIENT,
    GUEST,
    PEER,
    SERVER,
    UUID,
    dialling,
    listener,
    listening,
    raw,
    reply_to,
)

# -- forms on the wire ----------------------------------------------------------------------------


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
                assert link.peer.key == PEER.public_key
                link.enable_batch()  # not agreed on by setting: no effect
                send_all(link, [asked])
                assert await reply_to(child) == asked.parts()

    asyncio.run(check())


@for_each(
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
                unfit = request("x")
                unfit.set_aux1(0xFFFFFFFE)
                send_all(link, [said, unfit, said])
                for _ in range(2):
                    parts = await reply_to(child)
                    assert parts == spoken.encode(said)
                    assert form is None or parts[:-1] == form
                assert link.untranslatable == 1
                assert link.ended is None

    asyncio.run(check())


@for_each("bad", [[b""], [b"\x8e" * 20], [b"rubbish"], [b"", b"x", b"y" * 20], [event("cut").framed()[:-1]]])
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
            assert link.peer.key == SERVER.public_key
            link.close()

    asyncio.run(check())


def test_an_unknown_key_is_refused_until_it_is_known():
    async def check():
        keys, told = {PEER.public_key: PeerKey(3)}, []
        options = listening(keys)
        options.refused = lambda peer, errnum, reason: told.append((peer.key, errnum, reason))
        async with listener(options) as (address, accepting):
            with pytest.raises(LinkRefused, match="ZAP 400") as caught:
                await zeromq.transport.dial(address, dialling(CLIENT))
            assert caught.value.errno == errno.EPERM
            key = CLIENT.public_key
            assert told == [(key, errno.EPERM, f"unknown CURVE key {key}")]
            keys[CLIENT.public_key] = PeerKey(4)
            link = await zeromq.transport.dial(address, dialling(CLIENT))
            link.start(Recorder())
            send_all(link, [control(0)])
            assert (await accepting.link(0))[0].peer.rank == 4
            link.close()

    asyncio.run(check())


@for_each("options", [dialling(server=CLIENT), Options(connect_timeout_s=PATIENCE_S)], ids=["key", "plain"])
def test_a_wrong_server_key_or_plaintext_is_refused(options):
    async def check():
        async with listener(listening()) as (address, accepting):
            with pytest.raises(LinkRefused):
                await zeromq.transport.dial(address, options)
            assert not accepting.links

    asyncio.run(check())


@for_each("uri", ["tcp://*:0", "tcp://0.0.0.0:0", "tcp://[::]:0"])
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


@for_each(
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
