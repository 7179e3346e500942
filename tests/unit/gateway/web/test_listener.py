"""Listeners: addresses, slow and silent clients, PROXY headers, UNIX sockets."""

import asyncio
import contextlib
import logging
import os
import socket
import stat
import time

import aiohttp
import pytest

from broker import awake
from broker.errors import ConfigError
from gateway.closes import ENDED
from gateway.settings.addresses import place_of
from gateway.web.connections import Connection
from gateway.web.listener import bind
from tests.unit.gateway.identity.authority import Authority


async def dial(url):
    host, port = url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


QUICK = "[limits]\nhandshake_s = 0.15\n"


@pytest.fixture
def connections(monkeypatch):
    """All that are made, in order."""
    made, begin = [], Connection.connection_made
    monkeypatch.setattr(
        Connection, "connection_made", lambda self, wire: (made.append(self), begin(self, wire))
    )
    return made


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a_request_head_that_does_not_come_is_not_waited_for(open_live, sent):
    live = await open_live(QUICK)
    reader, writer = await dial(live.url)
    writer.write(sent)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_a_request_head_a_byte_at_a_time_is_cut_off(open_live):
    live = await open_live(QUICK)
    reader, writer = await dial(live.url)
    ended = asyncio.get_running_loop().create_task(reader.read(), name="read")
    for byte in b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 100:
        if ended.done():
            break
        writer.write(bytes((byte,)))
        await asyncio.sleep(0.02)
    with contextlib.suppress(ConnectionResetError):  # of a byte that came behind the end
        assert await asyncio.wait_for(ended, 5) == b""
    writer.close()


ASK = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


async def answered(reader):
    """Read the answer to `ASK`."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    assert head.startswith(b"HTTP/1.1 200 ")
    return await reader.readexactly(len(b'{"status":"ok"}'))


@pytest.mark.parametrize("begun", [b"G", b"\r\n", b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a_second_request_head_that_does_not_come_is_not_waited_for_either(
    open_live, connections, begun
):
    live = await open_live()
    reader, writer = await dial(live.url)
    for _ in range(2):
        writer.write(ASK)
        await answered(reader)
    connections[0]._head_s = 0.05
    writer.write(begun)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_a_request_that_came_while_the_gateway_was_stopped_is_answered(
    open_live, connections, monkeypatch
):
    monkeypatch.setattr(awake, "LATE_S", 0.05)
    live = await open_live()
    reader, writer = await dial(live.url)
    writer.write(ASK)
    await answered(reader)
    connections[0]._head_s = 0.1
    writer.write(ASK[:5])
    while connections[0]._deadline is None:
        await asyncio.sleep(0)
    writer.write(ASK[5:])
    time.sleep(0.3)  # noqa: ASYNC251 - nobody was here
    await answered(reader)
    writer.close()


async def test_a_body_that_is_not_read_is_no_head(open_live, monkeypatch):
    begun = []
    monkeypatch.setattr(Connection, "_expect_head_by", lambda self, due: begun.append(due))
    live = await open_live()
    reader, writer = await dial(live.url)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
    await answered(reader)
    writer.write(b"ab")
    await asyncio.sleep(0.01)
    writer.write(ASK[:5])
    await asyncio.sleep(0.01)
    writer.write(ASK[5:])
    await answered(reader)
    assert len(begun) == 2, "of the connection, and of the second request"
    writer.close()


async def test_a_client_that_has_asked_once_may_pause(open_live, connections):
    live = await open_live()
    async with aiohttp.ClientSession() as http:
        for _ in range(2):
            async with http.get(f"{live.url}/livez") as answer:
                assert answer.status == 200
            assert connections[0]._deadline is None
        assert len(connections) == 1


@pytest.mark.usefixtures("short_grace")
async def test_of_more_silent_connections_than_allowed_the_oldest_goes(open_live):
    limits = "[limits]\nanonymous = 64\nanonymous_per_address = 64\nhandshake_s = 20.0\n"
    live = await open_live(limits)
    silent = [await dial(live.url) for _ in range(65)]
    assert await asyncio.wait_for(silent[0][0].read(), 5) == b""
    for reader, writer in (silent[1], silent[-1]):
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 200 ")
    for _reader, each in silent:
        each.close()


async def test_of_more_idle_connections_than_allowed_the_oldest_go(open_live):
    live = await open_live("[limits]\nanonymous = 59\nanonymous_per_address = 59\n")
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{live.url}/v1/events", headers=live.bearer()) as stream:
            line = await stream.content.readline()
            held = [await dial(live.url) for _ in range(59)]
            first, others = held[0], held[1:]
            for reader, writer in [*others, first]:  # the first asks last, and so has been idle for least
                writer.write(ASK)
                await answered(reader)
            for _ in range(58):
                held.append(await dial(live.url))
                held[-1][1].write(ASK)
                await answered(held[-1][0])
            for reader, _writer in others:
                assert await asyncio.wait_for(reader.read(), 5) == b""
            for reader, writer in (first, *held[59:]):
                writer.write(ASK)
                await answered(reader)
            assert len(live.gateway.admission.strangers) == 59
            await live.gateway.delivery.upstream.handle.publish("a.b")
            while line and b"a.b" not in line:
                line = await asyncio.wait_for(stream.content.readline(), 5)
            assert line, "what is under way stays"
        for _reader, writer in held:
            writer.close()


async def test_clients_that_do_not_read_their_answers_are_idle(open_live):
    live = await open_live("[limits]\nanonymous = 16\nanonymous_per_address = 16\n")
    lazy = [await dial(live.url) for _ in range(16)]
    for _reader, writer in lazy:
        writer.transport.pause_reading()
        writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 400)
    await asyncio.sleep(0.5)
    reader, writer = await dial(live.url)
    writer.write(ASK)
    await answered(reader)
    for _reader, each in (*lazy, (reader, writer)):
        each.transport.abort()


async def test_websockets_are_none_of_them(open_live):
    live = await open_live("[limits]\nanonymous = 4\nanonymous_per_address = 4\n")
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(live.ws, protocols=("flux.v1.json",), headers=live.bearer()) as ws,
    ):
        assert (await ws.receive_json())["type"] == "welcome"
        admission = live.gateway.admission
        assert (len(admission.strangers), len(admission.users), admission.sockets) == (0, 0, 1)
        for _ in range(8):
            reader, writer = await dial(live.url)
            writer.write(ASK)
            await answered(reader)
            writer.close()
        await ws.send_json({"type": "ping"})
        assert (await ws.receive_json())["type"] == "pong"


async def test_connections_that_went_without_a_word_keep_nobody_out(open_live):
    limits = "[limits]\nanonymous = 64\nanonymous_per_address = 64\nhandshake_s = 20.0\n"
    live = await open_live(limits)
    async with aiohttp.ClientSession() as http:
        for _ in range(100):
            _reader, writer = await dial(live.url)
            writer.close()
            await writer.wait_closed()
        async with http.get(f"{live.url}/livez") as answer:
            assert answer.status == 200


async def gone(*streams):
    """Wait until the gateway has ended these connections."""
    for reader, writer in streams:
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(reader.read(65536), 10):
                pass
        writer.close()


async def gone_by_us(*streams):
    """End these connections."""
    for _reader, writer in streams:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def upgrade(live, user=None):
    """A WebSocket handshake, with a credential or without."""
    bearer = f"Authorization: {live.bearer(user)['Authorization']}\r\n" if user else ""
    return (
        "GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"Sec-WebSocket-Protocol: flux.v1.json\r\n{bearer}\r\n"
    ).encode()


@pytest.mark.usefixtures("short_grace")
async def test_silent_websockets_keep_nobody_out(open_live):
    """As many as there may be connections, all without a credential: whoever comes after them gets in."""
    live = await open_live("[limits]\nconnections = 40\nconnections_per_user = 8\nanonymous = 20\n")
    silent = []
    for _ in range(40):
        silent.append(await dial(live.url))
        silent[-1][1].write(upgrade(live))
        assert b" 101 " in await asyncio.wait_for(silent[-1][0].readuntil(b"\r\n\r\n"), 5)
    assert len(live.gateway.endpoint.preauth) == len(live.gateway.admission.strangers) == 20
    last, (reader, writer) = silent[20], await dial(live.url)
    writer.write(upgrade(live, "bob"))
    assert b" 101 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    assert b"4005" in await asyncio.wait_for(last[0].read(), 5)
    await gone(*silent[:20])
    for _reader, each in (*silent, (reader, writer)):
        each.transport.abort()


@pytest.mark.usefixtures("short_grace")
async def test_connections_of_users_are_not_ended_for_strangers(open_live):
    live = await open_live("[limits]\nanonymous = 8\nanonymous_per_address = 8\n")
    ask = b"GET /v1/session HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\n\r\n"
    ask = ask % live.bearer("bob")["Authorization"].encode()
    mine = await dial(live.url)
    for _ in range(2):
        mine[1].write(ask)
        head = await asyncio.wait_for(mine[0].readuntil(b"}"), 5)
        assert head.startswith(b"HTTP/1.1 200 ")
        silent = [await dial(live.url) for _ in range(40)]
        await gone(*silent[:32])
        await gone_by_us(*silent[32:])
    await gone_by_us(mine)


async def test_idle_connections_of_one_user_are_limited(open_live):
    live = await open_live("[limits]\nconnections_per_user = 3\n")
    ask = (
        f"GET /v1/session HTTP/1.1\r\nHost: x\r\nAuthorization: {live.bearer('bob')['Authorization']}\r\n\r\n"
    )
    held = []
    for _ in range(10):
        held.append(await dial(live.url))
        held[-1][1].write(ask.encode())
        await asyncio.wait_for(held[-1][0].readuntil(b"}"), 5)
    await gone(*held[:4])
    assert live.gateway.admission.users.of("bob") == 6
    for _reader, writer in held[4:]:
        writer.close()


async def test_connections_at_work_of_one_user_are_limited(open_live):
    """Bodies that never come keep connections at work, before any call is counted."""
    live = await open_live("[limits]\nconnections_per_user = 2\n")
    ask = "POST /v1/rpc/lab.echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nAuthorization: {}\r\n\r\n"
    held = [await dial(live.url) for _ in range(4)]
    for _reader, writer in held:
        writer.write(ask.format(live.bearer("bob")["Authorization"]).encode())
    while live.gateway.admission.users.of("bob") < 4:
        await asyncio.sleep(0.005)
    async with aiohttp.ClientSession() as http:
        for user, status in (("bob", 429), ("ada", 200)):
            async with http.get(f"{live.url}/v1/session", headers=live.bearer(user)) as answer:
                assert answer.status == status
                assert status == 200 or "limits.connections_per_user" in (await answer.json())["text"]
    for _reader, writer in held:
        writer.transport.abort()


async def deaf_stream(live):
    """A stream whose client does not read, so that nothing more can be written, and its session."""
    ask = (
        f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: {live.bearer('bob')['Authorization']}\r\n\r\n"
    )
    reader, writer = await dial(live.url)
    writer.write(ask.encode())
    assert b" 200 OK" in await asyncio.wait_for(reader.readuntil(b"event: welcome"), 20)
    writer.transport.pause_reading()
    (session,) = live.gateway.sessions.by_id.values()
    session.tell({"type": "filler", "text": "x" * (8 << 20)})
    while session.link.outbox.queue:
        await asyncio.sleep(0)
    return writer, session


async def test_a_stream_that_outlives_its_session_ends_for_a_newer_one_of_its_user(open_live):
    live = await open_live("[limits]\nconnections_per_user = 1\n")
    writers = []
    for _ in range(4):
        writer, session = await deaf_stream(live)
        writers.append(writer)
        session.close(ENDED, "enough")
        assert not live.gateway.sessions.by_id
    assert live.gateway.admission.users.of("bob") == 2
    for writer in writers:
        writer.transport.abort()


async def test_a_stream_that_outlives_its_session_ends_soon(live, monkeypatch):
    monkeypatch.setattr("gateway.web.connections.LINGER_S", 0.0)
    writer, session = await deaf_stream(live)
    session.close(ENDED, "enough")
    async with asyncio.timeout(20):
        while live.gateway.admission.sockets:
            await asyncio.sleep(0.005)
    writer.transport.abort()


@pytest.mark.patient
async def test_a_stream_whose_client_does_not_read_keeps_no_gateway_from_its_end(live):
    writer, _session = await deaf_stream(live)
    async with asyncio.timeout(20):  # aiohttp waits for two minutes, if it may
        await live.gateway.stop()
    writer.transport.abort()


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("sent", [b"", b"GET /livez HTTP/1.1\r\n"])
async def test_of_too_many_sockets_in_tls_handshakes_the_oldest_goes(open_live, tmp_path, sent):
    """They are closed, too: what asyncio does not read from is not left to its time for handshakes."""
    authority = Authority()
    authority.server(tmp_path / "server.pem")
    listen = f'[[listen]]\nurl = "https://127.0.0.1:0"\ncert = "{tmp_path}/server.pem"\n'
    live = await open_live(f"[limits]\nanonymous = 8\nanonymous_per_address = 8\nhandshake_s = 300\n{listen}")
    port = int(live.url.rpartition(":")[2])
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
    await gone(*silent[:22])
    async with asyncio.timeout(5):
        while live.gateway.admission.sockets > 8:  # a few are closed in each turn of the loop
            await asyncio.sleep(0)
    assert live.gateway.admission.sockets == 8
    silent[-1][1].write(sent)
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{live.url}/livez", ssl=False, headers={"Connection": "close"}) as answer,
    ):
        assert answer.status == 200
    for _reader, writer in silent:
        writer.close()


async def test_bytes_that_are_no_http(live):
    reader, writer = await dial(live.url)
    writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.")
    writer.close()


async def test_a_unix_socket(open_live, rundir):
    path = rundir / "web.sock"
    live = await open_live(f'[[listen]]\nurl = "unix://{path}"\n')
    assert live.gateway.urls == [f"unix://{path}"]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http,
        http.get("http://localhost/v1/session", headers=live.bearer()) as answer,
        http.ws_connect("http://localhost/v1/ws", protocols=("flux.v1.json",), headers=live.bearer()) as ws,
    ):
        assert answer.status == 200
        assert (await ws.receive_json())["type"] == "welcome"
    await live.gateway.stop()
    assert not path.exists()


def test_a_socket_file_that_nobody_listens_at_is_replaced(rundir):
    path = rundir / "web.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    bind(place_of(f"unix://{path}"))[0].close()
    assert path.exists()


def test_a_socket_file_that_is_in_use_is_left_alone(rundir):
    path = rundir / "web.sock"
    with socket.socket(socket.AF_UNIX) as used:
        used.bind(str(path))
        used.listen()
        with pytest.raises(ConfigError, match="in use"):
            bind(place_of(f"unix://{path}"))
    (rundir / "file").write_text("precious")
    with pytest.raises(ConfigError, match="a file that is no socket is there"):
        bind(place_of(f"unix://{rundir}/file"))
    assert (rundir / "file").read_text() == "precious"


def test_a_port_that_is_in_use():
    used, place = bind(place_of("http://127.0.0.1:0"))
    with used:
        used.listen()
        with pytest.raises(ConfigError, match="in use"):
            bind(place)


def test_a_name_is_all_interfaces_whatever_it_resolves_to_here():
    everywhere, place = bind(place_of("http://node0.invalid:0"))
    here, _place = bind(place_of("http://localhost:0"))
    with everywhere, here:
        assert everywhere.getsockname()[0] in ("::", "0.0.0.0")
        assert here.getsockname()[0] == "127.0.0.1"
        everywhere.listen()
        port = everywhere.getsockname()[1]
        assert place.text == f"http://node0.invalid:{port}"
        socket.create_connection(("127.0.0.1", port), 5).close()  # by IPv4, too


def test_workers_share_a_port():
    first, place = bind(place_of("http://127.0.0.1:0"), shared=True)
    second, _place = bind(place, shared=True)
    assert place.port
    assert second.getsockname() == first.getsockname()
    first.close()
    second.close()


async def test_the_address_behind_a_trusted_proxy(open_live):
    listen = (
        '[[listen]]\nurl = "http://127.0.0.1:0"\ntrusted_proxies = ["127.0.0.0/8"]\nproxy_protocol = true\n'
    )
    live = await open_live(listen)
    reader, writer = await dial(live.url)
    writer.write(b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 80\r\n")
    writer.write(
        f"POST /v1/rpc/gateway.session HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n"
        f"Authorization: {live.bearer()['Authorization']}\r\n\r\n".encode()
    )
    assert b'"address":"192.0.2.7"' in await asyncio.wait_for(reader.read(), 5)
    writer.close()


async def test_the_listener_for_metrics_is_one_of_its_own(open_live, rundir):
    path = rundir / "metrics.sock"
    live = await open_live(f'[gateway]\nmetrics_listen = "unix://{path}"\n')
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http:
        for name, status in (("metrics", 200), ("v1/session", 404)):
            async with http.get(f"http://localhost/{name}") as answer:
                assert answer.status == status
        assert len(live.gateway.urls) == 1
        await live.gateway.drain()
        async with http.get("http://localhost/readyz") as answer:
            assert (await answer.json())["status"] == "leaving"
        with pytest.raises(aiohttp.ClientConnectorError):
            async with aiohttp.ClientSession() as other:
                await other.get(f"{live.url}/livez")


@pytest.mark.usefixtures("short_grace")
async def test_who_is_silent_at_the_listener_for_metrics_keeps_nobody_out(open_live, rundir):
    path = rundir / "metrics.sock"
    limits = "[limits]\nanonymous = 8\nanonymous_per_address = 8\n"
    await open_live(f'[gateway]\nmetrics_listen = "unix://{path}"\n{limits}')
    silent = [await asyncio.open_unix_connection(path) for _ in range(40)]
    await gone(*silent[:32])
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http,
        http.get("http://localhost/metrics") as answer,
    ):
        assert answer.status == 200
    for _reader, writer in silent:
        writer.close()


async def test_a_login_link_names_the_listener_as_bound(open_live):
    live = await open_live('[access]\nlogin_links = "owner"\n')
    assert live.gateway.login_link().startswith(f"{live.url}/login#once=")


async def test_the_access_log_has_no_query(live, caplog):
    caplog.set_level(logging.DEBUG, "headgate")
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{live.url}/livez?token=hgt_secret", headers=live.bearer()) as answer,
    ):
        assert answer.status == 200
    assert "GET /livez 200" in caplog.text
    assert "secret" not in caplog.text
    assert live.tokens["ada"] not in caplog.text
