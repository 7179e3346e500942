"""The contract of transports, and what only this one has: certificates."""

import asyncio
import contextlib
import errno
import socket
from pathlib import Path

import msgspec
import pytest
from authority import Authority
from cryptography.hazmat.primitives import serialization
from headgate_tls import TlsOptions, transport
from headgate_tls.certificates import Certificate, client_context, peer_of

from broker.errors import ConfigError, LinkRefused
from broker.identity import ClientKey, Credentials, PeerKey
from broker.testing import CHECKS, Harness, connected
from broker.testing.endings import check_half_open_peer
from broker.testing.harness import Accepting, failure_of
from broker.transport.reserve import DescriptorReserve
from broker.wire.message import event

GUEST = Credentials(1000, 2)


def settings(authority, name, **more):
    return msgspec.convert(authority.options(name) | more, TlsOptions)


async def knock(address):
    host, _, port = address.partition("://")[2].rpartition(":")
    return (await asyncio.open_connection(host, int(port)))[1]


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def harness(authority):
    return Harness(
        "tls",
        transport,
        "tls://127.0.0.1:*",
        listen={"settings": settings(authority, "node0"), "keys": {"alice": ClientKey(GUEST)}},
        dial={"settings": settings(authority, "alice")},
        stranger=knock,
    )


@pytest.mark.parametrize(
    "check", [*CHECKS, check_half_open_peer], ids=lambda check: check.__name__.removeprefix("check_")
)
def test_contract(harness, check):
    asyncio.run(check(harness))


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
    assert "mallory" in list(Certificate(b"", fields).names())
    with pytest.raises(LinkRefused):
        peer_of(Certificate(b"", fields), "tls://x:1", {alice: ClientKey(GUEST)})


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
    other = Authority(tmp_path)
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
        stranger = harness.dialling(settings=settings(authority, "mallory"))
        error, refused = await refusal(stranger)
        assert isinstance(error, LinkRefused)
        assert error.errno == errno.EPERM
        assert "mallory" in refused[0][1]
        forged = settings(authority, "alice")
        forged = msgspec.structs.replace(forged, cert=str(tmp_path / "alice.pem"))
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
        with pytest.raises(ConfigError, match="node0.pem"):
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
        client_context(settings(authority, "node0", key=str(locked)))


def test_silent_connections_keep_nobody_out(harness, monkeypatch):
    monkeypatch.setattr("headgate_tls.listener.HANDSHAKES_MAX", 4)

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
        with pytest.raises(ConfigError, match="cannot listen at tls://127.0.0.1:"):
            await transport.listen(listener.contact_address, Accepting(), harness.listening())
        await listener.stop()

    asyncio.run(story())
