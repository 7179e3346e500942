"""TLS between brokers and of clients: what it has beside the contract of transports, certificates."""

import asyncio
import contextlib
import errno
import socket
import ssl
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization

from broker.errors import ConfigError, DecodeError, LinkBroken, LinkEnded, LinkRefused
from broker.identity import ClientKey, Credentials, PeerKey
from broker.testing import Harness, connected
from broker.testing.harness import Accepting, Recorder, failure_of, numbered, send_all, topics
from broker.transport import handshaking
from broker.transport.codec import FluxCodec
from broker.transport.link import DescriptorReserve
from broker.transport.tls import client_context, names_of, server_context, transport
from broker.transport.tls.layer import OWED_MAX, Session, TlsCodec
from broker.wire.message import event
from tests.live.certificates import TlsFiles
from tests.unit.transport.upgraded import Upgraded

GUEST = Credentials(1000, 2)


async def knock(address):
    host, _, port = address.partition("://")[2].rpartition(":")
    return (await asyncio.open_connection(host, int(port)))[1]


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def harness(authority):
    return Harness(
        "tls",
        transport,
        "tls://127.0.0.1:*",
        listen={"settings": authority.settings("node0"), "keys": {"alice": ClientKey(GUEST)}},
        dial={"settings": authority.settings("alice")},
        stranger=knock,
    )


@pytest.mark.parametrize("known", ["alice", "sha256"])
def test_a_client_is_known_by_its_name_or_its_fingerprint(harness, authority, known):
    key = authority.fingerprint("alice") if known == "sha256" else known

    async def story():
        harness.listen["keys"] = {key: ClientKey(GUEST)}
        async with connected(harness) as pair:
            assert (pair.far.peer.key, pair.far.peer.user, pair.far.peer.rank) == (key, GUEST, None)

    asyncio.run(story())


def test_what_a_reader_does_not_take_is_in_the_outbox(harness):
    async def story():
        async with connected(harness) as pair:
            pair.near.pause()
            pair.far.send(event("large", bytes(16 << 20)))
            pair.far.flush()
            assert pair.far.outbox.queued_bytes > 8 << 20
            pair.near.resume()
            await pair.near_in.count(1)
            assert not pair.far.outbox.queue

    asyncio.run(story())


def test_no_session_is_resumed(harness):
    """What a session remembers of a certificate says nothing about whether it has ended."""

    def again(address):
        host, _, port = address.partition("://")[2].rpartition(":")
        context, session = client_context(harness.dial["settings"]), None
        for _ in range(2):
            with (
                socket.create_connection((host, int(port))) as raw,
                context.wrap_socket(raw, server_hostname=host, session=session) as spoken,
            ):
                spoken.recv(1)
                session, reused = spoken.session, spoken.session_reused
        return reused

    async def story():
        accepting = Accepting()
        listener = await transport.listen(harness.new_address(), accepting, harness.listening())
        assert not await asyncio.to_thread(again, listener.contact_address)
        for link, _recorder in accepting.links:
            link.close()
        await listener.stop()

    asyncio.run(story())


def test_a_name_in_the_form_of_a_fingerprint_is_nobody():
    alice = "sha256:" + "a" * 64
    fields = {"subjectAltName": (("DNS", alice), ("URI", alice), ("DNS", "mallory"))}
    assert "mallory" in names_of(b"", fields)
    assert alice not in names_of(b"", fields)


@pytest.mark.parametrize("owner", [True, False])
def test_the_last_descriptors_are_for_the_owner(harness, owner):
    async def story():
        reserved = {"reserve": DescriptorReserve(0, 2), "has_reserve": lambda _peer: owner}
        accepting = Accepting()
        listener = await transport.listen(harness.new_address(), accepting, harness.listening(**reserved))
        silent = [await knock(listener.contact_address) for _ in range(4)]
        error = await failure_of(harness, listener, harness.dialling())
        for writer in silent:
            writer.close()
        for link, _recorder in accepting.links:
            link.close()
        await listener.stop()
        assert (error and error.errno) == (None if owner else errno.EMFILE)

    asyncio.run(story())


def test_whose_name_is_not_listed_is_refused_and_so_is_who_has_no_certificate_of_ours(
    harness, authority, tmp_path
):
    other = TlsFiles(tmp_path)
    other.options("alice")

    async def refusal(dialling):
        refused = []
        listening = harness.listening(refused=lambda _peer, errnum, reason: refused.append((errnum, reason)))
        listener = await transport.listen(harness.new_address(), Accepting(), listening)
        try:
            return await failure_of(harness, listener, dialling), refused
        finally:
            await listener.stop()

    async def story():
        stranger = harness.dialling(settings=authority.settings("mallory"))
        error, refused = await refusal(stranger)
        assert isinstance(error, LinkRefused)
        assert error.errno == errno.EPERM
        assert "mallory" in refused[0][1]
        forged = msgspec.structs.replace(authority.settings("alice"), cert=str(tmp_path / "alice.pem"))
        error, refused = await refusal(harness.dialling(settings=forged))
        assert error is not None

    asyncio.run(story())


def test_a_broker_dials_only_a_parent_that_it_knows(harness):
    async def story():
        accepting = Accepting()
        listener = await transport.listen(harness.new_address(), accepting, harness.listening())
        error = await failure_of(harness, listener, harness.dialling(keys={"node7": PeerKey(7)}))
        assert isinstance(error, LinkRefused)
        assert await failure_of(harness, listener, harness.dialling(keys={"node0": PeerKey(0)})) is None
        for link, _recorder in accepting.links:
            link.close()
        await listener.stop()

    asyncio.run(story())


def test_a_listener_that_is_renewed_shows_another_certificate(harness, authority):
    async def story():
        file = authority.folder / "node0.pem"
        accepting = Accepting()
        listener = await transport.listen(harness.new_address(), accepting, harness.listening())
        file.unlink()
        with pytest.raises(ConfigError, match=r"node0\.pem"):
            listener.renew({})
        authority.options("node0")
        assert listener.renew({}) is listener
        new = harness.dialling(keys={authority.fingerprint("node0"): PeerKey(0)})
        assert await failure_of(harness, listener, new) is None
        for link, _recorder in accepting.links:
            link.close()
        await listener.stop()

    asyncio.run(story())


def test_a_key_with_a_password_is_an_error_and_no_question(authority, tmp_path):
    file = Path(authority.options("node0")["cert"])
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"sesame")
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
    )
    with pytest.raises(ConfigError, match=r"locked\.pem"):
        client_context(authority.settings("node0", key=str(locked)))


def test_silent_connections_keep_nobody_out(harness, monkeypatch):
    monkeypatch.setattr(handshaking.HandshakeListener, "handshakes_max", 4)

    async def story():
        async with connected(harness) as pair, contextlib.AsyncExitStack() as stack:
            for _ in range(8):
                writer = await knock(pair.listener.contact_address)
                stack.callback(writer.close)
            assert await failure_of(harness, pair.listener, harness.dialling()) is None

    asyncio.run(story())


def test_a_port_that_is_taken_is_a_clear_error(harness):
    async def story():
        listener = await transport.listen(harness.new_address(), Accepting(), harness.listening())
        with pytest.raises(ConfigError, match=r"cannot listen at tls://127\.0\.0\.1:"):
            await transport.listen(listener.contact_address, Accepting(), harness.listening())
        await listener.stop()

    asyncio.run(story())


class Relay:
    """Passes on what two ends of a connection say, until it ends both connections by itself."""

    def __init__(self, address):
        self.host, _, self.port = address.partition("://")[2].rpartition(":")
        self.writers = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.address = f"tls://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_failure):
        self.cut()
        self.server.close()

    async def serve(self, reader, writer):
        other, onward = await asyncio.open_connection(self.host, int(self.port))
        self.writers += [writer, onward]
        await asyncio.gather(self.pass_on(reader, onward), self.pass_on(other, writer))

    async def pass_on(self, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    def cut(self):
        for writer in self.writers:
            writer.close()


@pytest.mark.parametrize("who", ["between", "peer"])
def test_an_end_without_a_goodbye_is_told_as_broken(harness, who):
    """Whoever is between could end a connection, and keep the rest of what was said for itself."""

    async def story():
        accepting, near_in = Accepting(), Recorder()
        listener = await transport.listen(harness.new_address(), accepting, harness.listening())
        async with Relay(listener.contact_address) as relay:
            near = await transport.dial(relay.address, harness.dialling())
            near.start(near_in)
            send_all(near, [event("before")])
            far, far_in = await accepting.link(0)
            await far_in.count(1)
            if who == "between":
                relay.cut()
                assert isinstance(await near_in.end(), LinkBroken)
                assert isinstance(await far_in.end(), LinkBroken)
            else:
                far.close()
                assert isinstance(await near_in.end(), LinkEnded)
        await listener.stop()

    asyncio.run(story())


def test_what_is_flushed_together_is_sealed_together_and_any_cut_of_it_means_the_same(authority):
    server, client = sessions(authority)
    sealing = TlsCodec(client, FluxCodec(1 << 20))
    messages = numbered(50, 20)
    data = sealing.encode([message.framed() for message in messages])
    assert data.count(b"\x17\x03\x03") == 1, "one record"
    opening, found = TlsCodec(server, FluxCodec(1 << 20)), []
    for at in range(0, len(data), 7):
        found += opening.feed(data[at : at + 7])
    assert found == messages
    assert opening.failure is None
    assert opening.feed(sealing.goodbye("")) == []
    assert isinstance(opening.failure, LinkEnded)


def test_a_record_that_was_changed_ends_the_link_and_what_came_before_it_counts(authority):
    server, client = sessions(authority)
    sealing, opening = TlsCodec(client, FluxCodec(1 << 20)), TlsCodec(server, FluxCodec(1 << 20))
    whole, changed = (sealing.encode([event(topic).framed()]) for topic in ("whole", "changed"))
    changed = changed[:-1] + bytes([changed[-1] ^ 1])
    assert topics(opening.feed(whole + changed)) == ["whole"]
    assert isinstance(opening.failure, DecodeError)
    assert opening.owed, "an alert"


def sessions(authority):
    """Both ends of a connection whose handshake is over."""
    server = Session(server_context(authority.settings("node0")))
    client = Session(client_context(authority.settings("alice")), "localhost")
    while not (server.is_open and client.is_open):
        server.feed(client.take_owed())
        client.feed(server.take_owed())
    assert client.failure is server.failure is None
    return server, client


def test_all_that_a_gateway_said_before_the_goodbye_of_tls_is_heard(authority):
    """In one read: messages, why it closes, a close frame, close_notify. The reason was lost, and clients came back."""
    server, client = sessions(authority)
    client.take_owed()
    client.feed(server.take_owed())
    up = Upgraded()
    codec = TlsCodec(client, up.codec)
    up.server.send_binary(event("one").framed())
    up.server.send_text(b'{"type":"error","text":"go away","reconnect":false}')
    up.server.send_binary(event("two").framed())
    up.server.send_close(4501, "no")
    server.tls.write(up.said())
    with contextlib.suppress(ssl.SSLError):  # that of the peer has not come
        server.tls.unwrap()
    heard = codec.feed(server.take_owed())
    while up.codec.early and codec.failure is None:
        heard += codec.feed(b"")
    assert topics(heard) == ["one", "two"]
    assert up.talk.said == "go away"
    assert "go away" in str(codec.failure)


def test_words_of_tls_that_nobody_reads_are_bounded(authority):
    """Such as answers to a flood of KeyUpdates. Python cannot send these: what they would leave is put there."""
    server, _client = sessions(authority)
    server.take_owed()
    codec = TlsCodec(server, FluxCodec(1 << 20))
    server._goes.write(bytes(OWED_MAX))
    assert codec.feed(b"") == []
    assert codec.failure is None
    server._goes.write(b"x")
    codec.feed(b"")
    assert "not read" in str(codec.failure)
