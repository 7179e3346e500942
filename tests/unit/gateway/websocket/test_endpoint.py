"""The way in: the handshake, subprotocols, credentials, and nothing left behind."""

import asyncio
import gc
import socket
import weakref

import msgspec
import pytest

from gateway.closes import BUSY, ENDED, SHUTDOWN, TOO_MANY
from gateway.principal import Denied
from gateway.web.admission import Slot
from tests.tables import for_each
from tests.unit.gateway.websocket.house import AUTH, SMALL_BUFFER, flux, is_gone, masked, request_head

BINARY, TEXT, CLOSE, PING = 2, 1, 8, 9


async def answer(one, head: bytes) -> tuple[int, str, str]:
    """Status, head and body of the HTTP answer."""
    peer = await one.raw()
    peer.write(head)
    said = (await peer.head()).decode()
    size = next(
        int(line.split()[1]) for line in said.lower().splitlines() if line.startswith("content-length")
    )
    return int(said.split()[1]), said.lower(), (await peer.reader.readexactly(size)).decode()


async def test_the_accept_key_is_that_of_the_rfc(house):
    peer = await house.raw()
    peer.write(request_head("chat, flux.v1.json ,flux.v1"))
    head = (await peer.head()).decode().lower()
    assert "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in head
    assert "sec-websocket-protocol: flux.v1.json\r\n" in head, "the first of ours in the client's order"


@for_each(
    ("head", "status", "words"),
    [
        (request_head("mqtt, wamp.2.json"), 400, "flux.v1, flux.v1.json, zws2.0"),
        (request_head(""), 400, "flux.v1"),
        (request_head(query="?overflow=wait"), 400, "disconnect or drop"),
        (request_head("ZWS2.0", "?overflow=drop", Authorization="Bearer good"), 400, "gap"),
        (request_head("ZWS2.0"), 401, "handshake"),
        (request_head(Authorization="Bearer bad"), 401, "credential refused"),
        (request_head(Upgrade=""), 426, "upgrade"),
        (request_head(Upgrade="h2c"), 426, "upgrade"),
        (request_head(Connection="keep-alive"), 426, "upgrade"),
        (request_head(**{"Sec-WebSocket-Version": "8"}), 426, "13"),
        (request_head(**{"Sec-WebSocket-Key": ""}), 400, "key"),
        (request_head(**{"Sec-WebSocket-Key": "c2hvcnQ="}), 400, "key"),
        (request_head(**{"Sec-WebSocket-Key": "=" * 24}), 400, "key"),
        (request_head().replace(b"HTTP/1.1", b"HTTP/1.0"), 400, "http/1.1"),
        (request_head(**{"Content-Length": "1"}) + b"x", 400, "body"),
    ],
)
async def test_what_may_not_become_a_websocket_is_told_over_http(house, head, status, words):
    seen, lines, body = await answer(house, head)
    assert seen == status
    assert words in body.lower()
    if status == 426:
        assert "sec-websocket-version: 13" in lines
    if status == 401:
        assert "www-authenticate: bearer" in lines
    assert msgspec.json.decode(body)["name"] == ("EPERM" if status == 401 else "EINVAL")
    assert not house.sessions.opened
    assert not house.endpoint.preauth


async def test_frames_right_behind_the_handshake_are_not_lost(house):
    peer = await house.connect(behind=masked(BINARY, flux("a")) + masked(BINARY, flux("b"))[:9])
    peer.write(masked(BINARY, flux("b"), mask=b"abcd")[9:])
    assert (await peer.frame())[0] == 0x82
    await house.until(lambda: [each.topic for each in house.sessions.opened[0].messages][:1] == ["a"])


async def test_an_http_connection_may_become_a_websocket_later(house):
    peer = await house.raw()
    peer.write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
    await peer.head()
    assert await peer.reader.readexactly(5) == b"hello"
    peer.write(request_head(Authorization="Bearer good"))
    assert (await peer.head()).startswith(b"HTTP/1.1 101 ")
    assert (await peer.control())["type"] == "welcome"


@pytest.mark.parametrize("subprotocol", ["flux.v1", "flux.v1.json", "ZWS2.0"])
async def test_a_credential_in_the_handshake_opens_a_session(house, subprotocol):
    peer = await house.connect(subprotocol)
    if subprotocol == "ZWS2.0":
        assert await peer.frame() == (0x82, b"\0"), "the routing id"
    (session,) = house.sessions.opened
    assert (session.kind, session.principal.name, session.address) == (
        subprotocol,
        "alice",
        "127.0.0.1",
    )
    assert not house.endpoint.preauth
    assert len(house.endpoint.keepalive) == 1


@pytest.mark.parametrize("credential", [{"Authorization": "Bearer good"}, {}])
async def test_a_leaving_gateway_lets_nobody_in(house, credential):
    house.sessions.accepting = False
    peer = await house.raw()
    peer.write(request_head(**credential))
    assert (await peer.head()).startswith(b"HTTP/1.1 101 ")
    assert (await peer.closing())[1] == SHUTDOWN
    assert not house.endpoint.preauth
    assert not house.sessions.opened


async def test_a_client_gone_during_the_handshake_leaves_nothing(house):
    peer = await house.raw()
    peer.write(request_head(Authorization="Bearer slow"))
    await house.identity.asked.wait()
    peer.writer.transport.abort()
    await asyncio.sleep(0.05)
    house.identity.release.set()
    await asyncio.sleep(0.05)
    assert not house.sessions.opened
    assert len(house.endpoint.keepalive) == 0


async def test_a_cookie_is_refused_where_a_page_can_see_it(house):
    peer = await house.raw()
    peer.write(request_head(cookie="bad"))
    assert (await peer.head()).startswith(b"HTTP/1.1 101 ")
    before, code, reason = await peer.closing()
    assert (code, reason) == (4500, "credential refused")
    assert msgspec.json.decode(before[0][1])["reconnect"] is False
    peer.write(masked(CLOSE, b"\x11\x94"))
    assert await peer.ended()


async def test_where_the_first_message_counts_a_bad_cookie_is_no_hindrance_and_a_foreign_page_is(house):
    peer = await house.raw()
    peer.write(request_head(query="?auth=message", cookie="bad"))
    assert (await peer.head()).startswith(b"HTTP/1.1 101 ")
    peer.write(masked(TEXT, AUTH % b"good"))
    await asyncio.wait_for(house.sessions.changed.wait(), 5)
    assert [session.principal.name for session in house.sessions.opened] == ["alice"]
    other = await house.raw()
    other.write(request_head(query="?auth=message", cookie="good", Origin="http://evil.example"))
    assert (await other.head()).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("token", ["good", None])
async def test_a_session_that_may_not_be_is_closed_with_its_code(house, token):
    house.sessions.refusal = Denied("too many", public="no more than 3", status=429, close=TOO_MANY)
    peer = await house.raw()
    peer.write(request_head(**({"Authorization": "Bearer good"} if token else {})))
    await peer.head()
    if not token:
        peer.write(masked(TEXT, AUTH % b"good"))
    before, code, reason = await peer.closing()
    assert (code, reason) == (TOO_MANY, "no more than 3")
    assert len(before) == 1
    assert not house.endpoint.preauth


async def test_no_more_sessions_than_connections(open_house):
    house = await open_house(connections=2)
    await house.connect()
    await house.connect()
    status, head, body = await answer(house, request_head())
    assert (status, msgspec.json.decode(body)["name"]) == (503, "EAGAIN"), "as over HTTP"
    assert "retry-after" in head


async def test_of_more_clients_at_the_door_than_allowed_the_oldest_goes(open_house):
    house = await open_house(connections=1, anonymous=2)
    first, second, third = [await house.connect(token=None) for _ in range(3)]
    before, code, _ = await first.closing()
    assert code == BUSY
    assert msgspec.json.decode(before[0][1])["reconnect"] is True
    assert len(house.endpoint.preauth) == 2
    for peer in (second, third):
        peer.write(masked(TEXT, AUTH % b"good"))
        assert (await peer.control())["type"] == "welcome"
    assert not house.endpoint.admission.strangers


@pytest.mark.parametrize("where", ["handshake", "door", "sessions"])
async def test_a_refused_client_that_does_not_leave_ends_for_a_newer_one(open_house, where, monkeypatch):
    monkeypatch.setattr("gateway.websocket.link.LINGER_S", 3600.0)
    house = await open_house(anonymous=2)
    if where == "sessions":
        house.sessions.refusal = Denied("too many", public="no more than 3", status=429, close=TOO_MANY)
    peers = []
    for _ in range(4):
        peer = await house.raw()
        head = {"handshake": {"cookie": "bad"}, "door": {}, "sessions": {"Authorization": "Bearer good"}}[
            where
        ]
        peer.write(request_head(**head) + (masked(TEXT, AUTH % b"bad") if where == "door" else b""))
        assert (await peer.head()).startswith(b"HTTP/1.1 101 ")
        assert (await peer.closing())[1] >= 4500
        peers.append(peer)
    assert len(house.endpoint.admission.strangers) == 2
    assert not house.endpoint.preauth
    for peer in peers[:2]:  # which did not answer the close frame
        assert await peer.ended()
    for peer in peers[2:]:
        peer.write(masked(CLOSE, b"\x11\x94"))
        assert await peer.ended()
    await house.until(lambda: not house.endpoint.admission.strangers)


async def deaf(house):
    """A client that reads nothing, and its link, whose connection cannot end in peace for what is still unsent."""
    peer = await house.connect()
    peer.writer.transport.pause_reading()
    link = house.sessions.opened[-1].link
    link._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
    link.tell({"type": "filler", "text": "x" * 250_000})
    link.flush()
    return peer, link


@pytest.mark.parametrize("end", ["ours", "the client's"])
async def test_a_connection_that_outlives_its_session_counts_for_its_user(open_house, end, monkeypatch):
    monkeypatch.setattr("gateway.websocket.link.LINGER_S", 3600.0)
    house = await open_house(connections_per_user=1)
    users, peers = house.endpoint.admission.users, []
    for count in (1, 2, 2, 2):
        peer, link = await deaf(house)
        if end == "ours":
            house.sessions.opened[-1].link.close_with(ENDED)
        else:
            peer.write(masked(CLOSE, b"\x03\xe8"))
            await house.until(lambda link=link: link.ended)
        assert (users.of("alice"), len(users)) == (count, count)
        peers.append((peer, link))
    assert not house.endpoint.admission.strangers
    await house.until(lambda: is_gone(peers[1][1]))
    assert [is_gone(link) for _, link in peers] == [True, True, False, False]
    for peer, _link in peers[2:]:
        peer.writer.transport.abort()
    await house.until(lambda: not users)


async def test_where_all_connections_of_a_user_are_at_work_none_outlives_its_session(open_house):
    house = await open_house(connections_per_user=1)
    users = house.endpoint.admission.users
    for _ in range(2):
        busy = Slot(lambda: None)
        busy.idle = False
        assert users.enter(busy, "alice")
    _peer, link = await deaf(house)
    link.close_with(ENDED)
    await house.until(lambda: is_gone(link))
    assert users.of("alice") == 2


async def test_the_slot_of_a_stranger_is_not_kept_for_its_session(house):
    peer = await house.connect(token=None)
    peer.write(masked(TEXT, AUTH % b"good"))
    assert (await peer.control())["type"] == "welcome"
    assert not house.endpoint.admission.strangers


async def test_nothing_of_aiohttp_is_kept_for_a_connection(house):
    peer = await house.raw()
    await house.until(lambda: house.server.handler.connections)
    queue = weakref.ref(
        house.server.handler.connections[0]._messages
    )  # goes with its handler, which takes no weakref
    peer.write(request_head(Authorization="Bearer good"))
    await peer.head()
    await peer.control()
    await house.until(lambda: len(asyncio.all_tasks()) == 1)
    gc.collect()
    assert queue() is None
    peer.write(masked(PING))
    assert (await peer.frame())[0] == 0x8A
