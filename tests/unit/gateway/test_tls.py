"""TLS of a listener through real sockets: certificates, authorities, and their replacement while it runs."""

import asyncio
import contextlib
import os
import ssl
import tracemalloc
from asyncio import sslproto

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from broker.errors import ConfigError
from gateway import process, selfsigned
from gateway.settings.schema import ListenEntry
from gateway.tls import TlsContext, certificate_end
from tests.tables import for_each
from tests.unit.gateway.identity.authority import Authority, common, pem

pytestmark = pytest.mark.interpreter


@pytest.fixture
def authority():
    return Authority()


@pytest.fixture
def files(tmp_path, authority):
    authority.server(tmp_path / "server.pem")
    authority.save(tmp_path / "ca.pem")
    return tmp_path


def entry(files, **more):
    return ListenEntry(url="https://127.0.0.1:0", cert=str(files / "server.pem"), **more)


@contextlib.asynccontextmanager
async def echo(context):
    """A server that says what it knows of the client's certificate, then echoes."""

    async def serve(reader, writer):
        with contextlib.suppress(OSError):
            peer = writer.get_extra_info("ssl_object").getpeercert()
            writer.write(
                repr(sorted(dict(pair[0] for pair in peer["subject"]).values()) if peer else None).encode()
            )
            writer.write(b"\n")
            while line := await reader.readline():
                writer.write(line)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


class Caller:
    """A client's connection."""

    def __init__(self, reader, writer, greeting):
        self.reader, self.writer, self.greeting = reader, writer, greeting
        self.tls = writer.get_extra_info("ssl_object")
        self.serial = x509.load_der_x509_certificate(self.tls.getpeercert(binary_form=True)).serial_number

    async def say(self, line):
        self.writer.write(line + b"\n")
        return await self.reader.readline()

    async def close(self):
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def call(port, trusted, *, certificate=None, sni="localhost", session=None, check=True, **options):
    context = ssl.create_default_context(cafile=str(trusted))
    context.check_hostname = check and sni is not None
    if certificate is not None:
        context.load_cert_chain(certificate)
    for name, value in options.items():
        setattr(context, name, value)
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname=sni or ""
        )
        try:
            greeting = await reader.readline()
            if not greeting:
                raise ConnectionResetError
        except BaseException:
            writer.transport.abort()
            raise
    return Caller(reader, writer, greeting.strip().decode())


REFUSED = (ssl.SSLError, ConnectionError)


async def test_a_renewed_certificate_is_served_and_connections_stay(files, authority):
    context = TlsContext(entry(files))
    async with echo(context) as port:
        before = await call(port, files / "ca.pem")
        serial = authority.server(files / "server.pem")
        again = await call(port, files / "ca.pem")
        assert again.serial == before.serial  # not before it is asked to
        context.reload()
        for sni in ("localhost", None):
            after = await call(port, files / "ca.pem", sni=sni)
            assert after.serial == serial != before.serial
            await after.close()
        assert await before.say(b"still here") == b"still here\n"
        await before.close()
        await again.close()


BAD = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "junk": lambda path: path.write_bytes(b"junk" * 100),
    "no key": lambda path: path.write_bytes(path.read_bytes().partition(b"-----BEGIN PRIVATE")[0]),
    "other key": lambda path: path.write_bytes(
        path.read_bytes().partition(b"-----BEGIN PRIVATE")[0] + pem(ec.generate_private_key(ec.SECP256R1()))
    ),
    "no certificate": lambda path: path.write_bytes(pem(ec.generate_private_key(ec.SECP256R1()))),
    "encrypted key": lambda path: path.write_bytes(
        path.read_bytes().partition(b"-----BEGIN PRIVATE")[0]
        + ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    ),
    "half": lambda path: path.write_bytes(path.read_bytes()[:300]),
}


@for_each("fault", BAD)
async def test_a_bad_file_keeps_the_old_certificate(files, authority, fault):
    authority.server(files / "server.pem")
    context = TlsContext(entry(files))
    current, expires = context.current, context.expires
    BAD[fault](files / "server.pem")
    with pytest.raises(ConfigError, match=r"server\.pem"):
        context.reload()
    assert (context.current, context.expires) == (current, expires)
    async with echo(context) as port:
        await (await call(port, files / "ca.pem")).close()
        serial = authority.server(files / "server.pem")
        context.reload()
        after = await call(port, files / "ca.pem")
        assert after.serial == serial
        await after.close()


@for_each("fault", BAD)
def test_a_bad_file_at_the_start(files, authority, fault):
    authority.server(files / "server.pem")
    BAD[fault](files / "server.pem")
    with pytest.raises(ConfigError, match=r"server\.pem"):
        TlsContext(entry(files))


def test_a_bad_authority_keeps_everything_even_with_a_good_certificate(files, authority):
    context = TlsContext(entry(files, client_ca=str(files / "ca.pem"), client_cert="required"))
    current = context.current
    for content in (b"", b"junk", pem(authority.key)):
        (files / "ca.pem").write_bytes(content)
        authority.server(files / "server.pem")
        with pytest.raises(ConfigError, match=r"ca\.pem"):
            context.reload()
        assert context.current is current


# ---------------------------------------------------------------- client certificates


@pytest.fixture
def alice(files, authority):
    (files / "alice.pem").write_bytes(authority.leaf(common("alice"))[0])
    return files / "alice.pem"


def mutual(files, mode):
    return TlsContext(entry(files, client_ca=str(files / "ca.pem"), client_cert=mode))


async def test_optional_certificates(files, alice):
    async with echo(mutual(files, "optional")) as port:
        for certificate, seen in ((alice, "['alice']"), (None, "None")):
            caller = await call(port, files / "ca.pem", certificate=certificate)
            assert caller.greeting == seen
            await caller.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_required_certificates(files, alice, version):
    other = Authority("Test Authority")  # of the same name, with another key
    (files / "mallory.pem").write_bytes(other.leaf(common("alice"))[0])
    old = Authority()
    expired = files / "expired.pem"
    expired.write_bytes(old.leaf(common("alice"), days=-1)[0])
    async with echo(mutual(files, "required")) as port:
        caller = await call(port, files / "ca.pem", certificate=alice, maximum_version=version)
        assert caller.greeting == "['alice']"
        await caller.close()
        for certificate in (None, files / "mallory.pem", expired):
            with pytest.raises(REFUSED):
                await call(port, files / "ca.pem", certificate=certificate, maximum_version=version)


async def test_an_expired_certificate_of_our_authority_and_a_servers_are_refused(files, authority):
    from cryptography.x509.oid import ExtendedKeyUsageOID

    (files / "expired.pem").write_bytes(authority.leaf(common("alice"), days=-1)[0])
    text, _ = authority.leaf(common("alice"), usage=ExtendedKeyUsageOID.SERVER_AUTH)
    (files / "usage.pem").write_bytes(text)
    async with echo(mutual(files, "optional")) as port:
        for name in ("expired.pem", "usage.pem"):
            with pytest.raises(REFUSED):
                await call(port, files / "ca.pem", certificate=files / name)


async def test_an_exchanged_authority_counts_for_the_next_connection(files, authority, alice, tmp_path):
    """The authority of clients is replaced, with or without SNI; who was let in by the old one is not any more."""
    after = Authority("New Authority")
    (files / "bob.pem").write_bytes(after.leaf(common("bob"))[0])
    authority.save(files / "server-ca.pem")
    context = mutual(files, "required")
    trusted = files / "server-ca.pem"
    async with echo(context) as port:
        before = await call(port, trusted, certificate=alice)
        after.save(files / "ca.pem")
        context.reload()
        for sni in ("localhost", None):
            caller = await call(port, trusted, certificate=files / "bob.pem", sni=sni)
            assert caller.greeting == "['bob']"
            await caller.close()
            with pytest.raises(REFUSED):
                await call(port, trusted, certificate=alice, sni=sni)
        assert await before.say(b"still here") == b"still here\n"
        await before.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_ticket_does_not_outlive_its_authority(files, authority, alice, version):
    import socket

    authority.save(files / "server-ca.pem")
    client = ssl.create_default_context(cafile=str(files / "server-ca.pem"))
    client.maximum_version = version
    client.load_cert_chain(alice)

    def visit(port, session):
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as raw,
            client.wrap_socket(raw, server_hostname="localhost", session=session) as secured,
        ):
            if not secured.recv(100):
                raise ConnectionResetError
            return secured.session, secured.session_reused

    context = mutual(files, "required")
    async with echo(context) as port:
        session, _ = await asyncio.to_thread(visit, port, None)
        _, resumed = await asyncio.to_thread(visit, port, session)
        assert resumed
        Authority("New Authority").save(files / "ca.pem")
        context.reload()
        with pytest.raises(REFUSED):
            await asyncio.to_thread(visit, port, session)


# ---------------------------------------------------------------- the rest


async def test_old_versions_are_refused_and_http_1_1_is_offered(files):
    async with echo(TlsContext(entry(files))) as port:
        caller = await call(port, files / "ca.pem")
        assert caller.tls.selected_alpn_protocol() is None
        await caller.close()
        context = ssl.create_default_context(cafile=str(files / "ca.pem"))
        context.set_alpn_protocols(["h2", "http/1.1"])
        _reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="localhost"
        )
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        writer.transport.abort()
        old = ssl.create_default_context(cafile=str(files / "ca.pem"))
        old.set_ciphers("DEFAULT:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            old.minimum_version = ssl.TLSVersion.TLSv1
        with pytest.raises(REFUSED):
            await asyncio.open_connection("127.0.0.1", port, ssl=old, server_hostname="localhost")


def test_the_end_of_the_certificate_is_told(files, authority):
    text, made = authority.leaf(common("x"), days=3)
    (files / "server.pem").write_bytes(text)
    context = TlsContext(entry(files))
    assert (
        context.expires == made.not_valid_after_utc.timestamp() == certificate_end(str(files / "server.pem"))
    )


def test_a_key_of_its_own_file(files, authority, caplog):
    whole = (files / "server.pem").read_bytes()
    certificate, mark, key = whole.partition(b"-----BEGIN PRIVATE")
    (files / "server.pem").write_bytes(certificate)
    (files / "key.pem").write_bytes(mark + key)
    (files / "key.pem").chmod(0o604)
    assert TlsContext(entry(files, key=str(files / "key.pem"))).expires > 0
    assert "key.pem: mode 0604 shows the secret to others; it is used" in caplog.text


@pytest.mark.parametrize(
    "hosts", [(), ("gate.example.org", "192.0.2.7", "2001:db8::7", "[::1]", "*.example.org")]
)
async def test_a_self_signed_certificate_serves(tmp_path, hosts):
    import time

    made = selfsigned.make(hosts, days=2, now=time.time())
    certificate, key = selfsigned.save(made, tmp_path / "new" / "tls")
    assert oct(os.stat(key).st_mode & 0o777) == "0o600"
    context = TlsContext(ListenEntry(url="https://127.0.0.1:0", cert=str(certificate), key=str(key)))
    assert context.expires == made.expires
    async with echo(context) as port:
        for flags in (
            ssl.VERIFY_X509_TRUSTED_FIRST,
            ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN,
        ):
            for name in (
                "localhost",
                "127.0.0.1",
                "::1",
                *(host for host in hosts if host[0] not in "*["),
            ):
                caller = await call(port, certificate, sni=name, verify_flags=flags)
                await caller.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await call(port, certificate, sni="evil.example")
    names = x509.load_pem_x509_certificate(made.certificate).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert len(names.value) == 3 + len([host for host in hosts if host != "[::1]"])


@for_each("host", ["", "a b", "-x", "x-", "a..b", "http://x", "x" * 64, "ä.example", "*", "a.*.b"])
def test_hosts_that_are_none(host):
    with pytest.raises(ConfigError):
        selfsigned.make([host], now=0.0)


def test_existing_files_are_kept(tmp_path):
    first = selfsigned.make([], now=0.0)
    selfsigned.save(first, tmp_path)
    with pytest.raises(ConfigError, match="--force"):
        selfsigned.save(selfsigned.make([], now=0.0), tmp_path)
    assert (tmp_path / "key.pem").read_bytes() == first.key
    selfsigned.save(selfsigned.make([], now=0.0), tmp_path, replace=True)
    assert (tmp_path / "key.pem").read_bytes() != first.key
    assert {path.name for path in tmp_path.iterdir()} == {"cert.pem", "key.pem"}


async def test_idle_connections_are_small_in_a_gateways_process(files, monkeypatch):
    monkeypatch.setattr(
        sslproto.SSLProtocol, "max_size", sslproto.SSLProtocol.max_size
    )  # as it is, afterwards
    process.shrink_tls_buffers()
    count = 20
    async with echo(TlsContext(entry(files))) as port:
        callers = [await call(port, files / "ca.pem")]
        tracemalloc.start()
        try:
            callers += [await call(port, files / "ca.pem") for _ in range(count)]
            held, _peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < count * 2 * 100_000  # both ends are here; with asyncio's own size one has 256 KiB
        line = b"x" * 60_000  # several records, and more than is read at a time
        callers[0].writer.write(line + b"\n")
        assert await callers[0].reader.readexactly(len(line) + 1) == line + b"\n"
        for each in callers:
            await each.close()
