"""Connections that begin with a PROXY header, through real sockets: aiohttp behind it, with TLS and without."""

import asyncio
import contextlib
import errno
import socket

import pytest

from gateway.identity.proxies import Networks
from gateway.settings.schema import LimitsSection, ListenEntry
from gateway.web import listener as room
from gateway.web.admission import ADDRESS, DESCRIPTORS, Admission
from gateway.web.listener import Acceptor, Turns
from tests.tables import for_each
from tests.unit.gateway.identity import doorway
from tests.unit.gateway.identity.authority import Authority, common
from tests.unit.gateway.identity.doorway import Answer, ask, client_tls, settings_in
from tests.unit.gateway.identity.test_proxyheader import v2

pytestmark = pytest.mark.interpreter

V1 = b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 443\r\n"
HEADERS = {"v1": V1, "v2": v2(), "v2 with TLVs": v2(tlvs=b"\x04\x00\x02ab")}


def plain(tmp_path, *, limits=None, **more):
    listen = ListenEntry(
        url="http://127.0.0.1:0", proxy_protocol=True, trusted_proxies=("127.0.0.0/8",), **more
    )
    return settings_in(tmp_path / "state", listen=listen, limits=limits)


def secure(tmp_path, *, limits=None, **more):
    authority = Authority()
    authority.server(tmp_path / "server.pem")
    authority.save(tmp_path / "ca.pem")
    (tmp_path / "alice.pem").write_bytes(authority.leaf(common("alice"))[0])
    listen = ListenEntry(
        url="https://127.0.0.1:0",
        proxy_protocol=True,
        trusted_proxies=("127.0.0.0/8",),
        cert=str(tmp_path / "server.pem"),
        client_ca=str(tmp_path / "ca.pem"),
        client_cert="optional",
        **more,
    )
    return settings_in(tmp_path / "state", listen=listen, limits=limits)


@for_each("kind", HEADERS)
async def test_the_client_is_known(open_door, tmp_path, kind):
    door = await open_door(plain(tmp_path))
    answer = (await ask(door.port, first=HEADERS[kind])).json()
    assert answer["address"] == answer["remote"] == "192.0.2.7"
    assert answer["peer"] == "127.0.0.1"
    assert not answer["local"]


@for_each("kind", HEADERS)
async def test_the_client_is_known_behind_tls(open_door, tmp_path, kind):
    door = await open_door(secure(tmp_path))
    tls = client_tls(tmp_path / "ca.pem", tmp_path / "alice.pem")
    answer = (await ask(door.port, first=HEADERS[kind], tls=tls)).json()
    assert (answer["address"], answer["peer"], answer["scheme"]) == (
        "192.0.2.7",
        "127.0.0.1",
        "https",
    )
    assert (answer["name"], answer["kind"]) == ("alice", "tls")
    # a renewed certificate is served here, too
    door.tls.reload()
    assert (await ask(door.port, first=HEADERS[kind], tls=tls)).status == 200


async def test_a_header_without_a_source_means_the_peer(open_door, tmp_path):
    door = await open_door(plain(tmp_path))
    for header in (b"PROXY UNKNOWN\r\n", v2(command=0x20, block=b"")):
        answer = (await ask(door.port, first=header)).json()
        assert answer["address"] == answer["peer"] == "127.0.0.1"


async def test_all_in_one_write_and_byte_by_byte(open_door, tmp_path):
    door = await open_door(plain(tmp_path))
    request = f"GET /who HTTP/1.1\r\nHost: 127.0.0.1:{door.port}\r\nConnection: close\r\n\r\n".encode()
    for header in HEADERS.values():
        for step in (1, len(header + request)):
            reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            whole = header + request
            for at in range(0, len(whole), step):
                writer.write(whole[at : at + step])
                await asyncio.sleep(0)
            assert Answer(await reader.read()).json()["address"] == "192.0.2.7"
            writer.close()
            await writer.wait_closed()


async def silence(port, sent, *, shut=False):
    """Send something; returns all that comes back before the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    if shut:
        writer.write_eof()
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@for_each(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 1 99999\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100,
        V1[:-1] + b"x" * 200,
        v2(block=b"x"),
    ],
)
async def test_a_trusted_proxy_without_a_good_header_is_cut_off(open_door, tmp_path, sent):
    door = await open_door(plain(tmp_path))
    assert await silence(door.port, sent) == b""
    assert (await ask(door.port, first=V1)).status == 200


@for_each("sent", [b"", b"PROXY", v2()[:20]])
async def test_a_header_that_ends_early(open_door, tmp_path, sent):
    door = await open_door(plain(tmp_path))
    assert await silence(door.port, sent, shut=True) == b""


async def test_a_header_that_never_ends(open_door, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "HEADER_S", 0.05)
    door = await open_door(plain(tmp_path))
    assert await silence(door.port, b"PROXY TCP4 ") == b""


async def test_a_handshake_that_never_ends(open_door, tmp_path):
    door = await open_door(secure(tmp_path), head_s=0.15)
    assert await silence(door.port, V1 + b"\x16\x03\x01") == b""


async def test_few_go_on_in_one_turn_of_the_loop_in_order():
    """However many handshakes are to begin: whatever else is ready is done in between."""
    turns = Turns(3)
    begun = []

    async def begin(number):
        await turns.wait()
        begun.append(number)

    tasks = [asyncio.get_running_loop().create_task(begin(number), name=str(number)) for number in range(20)]
    tasks[4].cancel()
    seen = 0
    while len(begun) < 19:
        await asyncio.sleep(0)
        assert len(begun) - seen <= 3
        seen = len(begun)
    assert begun == [number for number in range(20) if number != 4]
    await asyncio.gather(*tasks, return_exceptions=True)


@for_each("header", [V1, b"PROXY UNKNOWN\r\n", v2()])
async def test_from_others_a_header_is_refused(open_door, tmp_path, header):
    """A peer outside the networks is served without one, and gets nowhere with one."""
    listen = ListenEntry(url="http://127.0.0.1:0", proxy_protocol=True, trusted_proxies=("10.0.0.0/8",))
    door = await open_door(settings_in(tmp_path / "state", listen=listen))
    assert (await ask(door.port)).json()["address"] == "127.0.0.1"
    answer = await silence(door.port, header + b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer == b"" or Answer(answer).status == 400


def v1(address):
    return f"PROXY TCP4 {address} 10.0.0.1 4711 443\r\n".encode()


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("sent", [b"", V1, V1 + b"\x16\x03\x01"], ids=("nothing", "header", "hello"))
async def test_silent_connections_do_not_stop_accept(open_door, tmp_path, sent):
    """As many as may be on their way through header and handshake; whoever comes behind them is served at once."""
    limits = LimitsSection(anonymous=30, anonymous_per_address=30, handshake_s=300)
    door = await open_door(secure(tmp_path, limits=limits), head_s=300)
    silent = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(60)]
    while door.admission.ended.total() < 30:
        await asyncio.sleep(0)
    for _reader, writer in silent:
        writer.write(sent)
    tls = client_tls(tmp_path / "ca.pem")
    assert (await ask(door.port, first=v1("192.0.2.8"), tls=tls)).status == 200
    for reader, writer in silent[:30]:
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
    assert door.admission.sockets <= 31
    for _reader, writer in silent[30:]:
        writer.transport.abort()


async def test_the_client_behind_the_header_is_whom_connections_count_for(open_door, tmp_path):
    limits = LimitsSection(anonymous=60, anonymous_per_address=3, handshake_s=300)
    door = await open_door(plain(tmp_path, limits=limits))
    streams = []
    for address in ("192.0.2.7",) * 8 + ("192.0.2.8",) * 2:
        streams.append(await asyncio.open_connection("127.0.0.1", door.port))
        streams[-1][1].write(v1(address))
    for reader, writer in streams[:5]:
        assert await reader.read() == b""
        writer.close()
    while door.admission.strangers.of("192.0.2.8") < 2:
        await asyncio.sleep(0)
    assert door.admission.strangers.of("192.0.2.7") == 3
    assert door.admission.strangers.of("127.0.0.1") == 0
    assert door.admission.ended == {ADDRESS: 5}
    for _reader, writer in streams[5:]:
        writer.transport.abort()


class Exhausted(socket.socket):
    """A listening socket of a process whose descriptors come to an end."""

    failures = 0

    def accept(self):
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_out_of_descriptors_accepting_rests_and_goes_on(monkeypatch, caplog):
    """One line, whoever tries how often; what is idle ends, and every newcomer gets in."""
    monkeypatch.setattr(room, "PAUSE_S", 0.001)
    monkeypatch.setattr(room, "SHED_S", 0.001)
    sock = Exhausted()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    admission = Admission(LimitsSection())
    made = []

    def factory(slot, _deadline):
        made.append(slot)
        return asyncio.Protocol()

    listening = Acceptor(sock, factory, admission)
    idle, idle_too = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    while len(made) < 2:
        await asyncio.sleep(0)
    sock.failures = 20
    fresh = await asyncio.open_connection("127.0.0.1", port)
    for reader, _writer in (idle, idle_too):
        assert await reader.read() == b""
    while len(made) < 3:
        await asyncio.sleep(0)
    assert (admission.pauses, admission.ended) == (20, {DESCRIPTORS: 2})
    assert [text for text in caplog.messages if "accept" in text] == [
        "accept: Too many open files; resting 0.001 s"
    ]
    listening.close()
    await listening.wait_closed()
    for _reader, writer in (idle, idle_too, fresh):
        writer.close()


async def test_a_listening_socket_that_is_gone_ends_accept(caplog):
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    listening = Acceptor(sock, lambda _slot, _deadline: asyncio.Protocol(), Admission(LimitsSection()))
    sock.shutdown(socket.SHUT_RDWR)
    while "accept ended" not in caplog.text:
        await asyncio.sleep(0)
    listening.close()


async def test_a_header_over_a_unix_socket(rundir):
    """The proxy that connects there is on this machine, and says who its client is."""
    path = str(rundir / "web.sock")
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    seen = []

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport):
            seen.append(transport.get_extra_info("peername"))
            transport.close()

    listening = Acceptor(
        sock,
        lambda _slot, _deadline: Protocol(),
        Admission(LimitsSection()),
        proxies=Networks(["127.0.0.0/8"]),
        header=True,
    )
    for header in (V1, v2(), b"PROXY UNKNOWN\r\n"):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(header)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
    assert seen == [("192.0.2.7", 4711, "unix")] * 2 + [""]
    listening.close()
    await listening.wait_closed()


async def test_closing_drops_who_is_not_served_yet(tmp_path):
    async with doorway.open_door(plain(tmp_path)) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        await ask(door.port, first=V1)  # what came before it was accepted, too
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", door.port)
