"""The endpoint before the real sessions and identity, without a broker: who comes in, as whom, and who stays out."""

import errno
import time

import msgspec
import pytest

from broker.wire.framing import Splitter
from broker.wire.message import request
from gateway.administration.service import Administration
from gateway.closes import BAD_CREDENTIAL
from gateway.identity.authenticate import BURST, Authenticator
from gateway.identity.store import Store
from gateway.sessions.delivery import Delivery
from gateway.sessions.sessions import Sessions
from gateway.settings.schema import GatewaySection, GatewaySettings, LimitsSection, UserEntry
from gateway.upstream.upstream import Upstream
from tests.unit.gateway.websocket.house import masked, request_head

TEXT, BINARY, CLOSE = 1, 2, 8


@pytest.fixture
async def open_gateway(open_house, tmp_path):
    """Open a house with the real sessions and the real identity; `token` is one of alice."""
    store = Store(str(tmp_path))
    opened = []

    async def go(**limits):
        settings = GatewaySettings(
            gateway=GatewaySection(statedir=str(tmp_path)),
            users=(UserEntry(name="alice", userid=1001), UserEntry(name="bob", userid=1002)),
            limits=LimitsSection(**limits),
        )
        identity = Authenticator(settings, store)
        sessions = Sessions(settings, identity, key=store.key("resume"))
        delivery = Delivery(sessions, Upstream("local:///nobody/is/there"))
        administration = Administration(sessions, delivery, None, reload=dict)
        await identity.start()
        opened.append(sessions)
        one = await open_house(
            sessions=sessions, delivery=delivery, administration=administration, identity=identity
        )
        _, one.token = identity.tokens.add("alice", now=store.wall())
        identity.tokens.refresh()
        return one

    yield go
    for sessions in opened:
        await sessions.stop()
        sessions.identity.close()
    store.close()


@pytest.fixture
async def gateway(open_gateway):
    return await open_gateway()


async def enter(one, *, origin="", first_message=False):
    peer = await one.raw()
    bearer = "" if first_message else f"Bearer {one.token}"
    peer.write(request_head(Origin=origin, Authorization=bearer))
    head = await peer.head()
    if head.startswith(b"HTTP/1.1 101 ") and first_message:
        peer.write(masked(TEXT, msgspec.json.encode({"type": "auth", "token": one.token})))
    return peer, int(head.split()[1])


@pytest.mark.parametrize("first_message", [False, True])
async def test_the_welcome_says_who_the_client_is(gateway, first_message):
    peer, status = await enter(gateway, first_message=first_message)
    assert status == 101
    welcome = await peer.control()
    (session,) = gateway.sessions.by_id.values()
    assert (welcome["type"], welcome["session"]) == ("welcome", session.id)
    assert (welcome["user"], welcome["userid"], welcome["roles"]) == ("alice", 1001, ["user"])
    assert welcome["limits"]["message_bytes"] == gateway.sessions.settings.limits.message_bytes
    assert welcome["upstream"]["joined"] is False
    peer.write(masked(BINARY, request("broker.ping", b"{}\0", matchtag=5).framed()))
    (answer,) = Splitter().feed((await peer.frame())[1])
    assert (answer.matchtag, answer.errnum) == (5, errno.EPERM)
    peer.write(masked(TEXT, b'{"type":"ping"}'))
    assert await peer.control() == {"type": "pong"}
    peer.write(masked(CLOSE))
    await peer.closing()
    await gateway.until(lambda: not gateway.sessions.by_id)
    assert gateway.sessions.peers.own("alice") == 0


@pytest.mark.parametrize("first_message", [False, True])
async def test_a_request_that_is_none_is_answered_and_the_connection_goes_on(gateway, first_message):
    peer = await gateway.raw()
    peer.write(request_head("flux.v1.json", Authorization="" if first_message else f"Bearer {gateway.token}"))
    assert (await peer.head()).startswith(b"HTTP/1.1 101 ")
    if first_message:
        peer.write(masked(TEXT, msgspec.json.encode({"type": "auth", "token": gateway.token})))
    asked = '{"type":"request","topic":"gateway.session","matchtag":%d,"payload":{"a":"%s"}}'
    for tag, said in ((5, "\\ud83d"), (6, "whole")):
        peer.write(masked(TEXT, (asked % (tag, said)).encode()))
    assert (await peer.control())["type"] == "welcome"
    refused, answer = await peer.control(), await peer.control()
    assert (refused["matchtag"], refused["errnum"], refused["topic"]) == (5, errno.EPROTO, "gateway.session")
    assert "half of a character" in refused["error"]
    assert (answer["matchtag"], answer["payload"]["user"]) == (6, "alice")


async def test_requests_that_are_none_count_as_others_do(open_gateway):
    gateway = await open_gateway(msgs_per_s=1, msgs_burst=1)
    peer = await gateway.raw()
    peer.write(request_head("flux.v1.json", Authorization=f"Bearer {gateway.token}"))
    await peer.head()
    await peer.control()
    for tag in (1, 2):
        peer.write(masked(TEXT, b'{"type":"request","topic":"a.b","matchtag":%d,"strange":1}' % tag))
    assert [(await peer.control())["errnum"] for _ in (1, 2)] == [errno.EPROTO, errno.EAGAIN]


async def test_a_page_of_another_site_gets_no_websocket(gateway):
    for first_message in (False, True):
        _, status = await enter(gateway, origin="https://evil.example", first_message=first_message)
        assert status == 403
    _, status = await enter(gateway, origin="http://127.0.0.1", first_message=True)
    assert status == 101


async def test_a_wrong_credential_is_told_so_however_many_there_were_before(gateway):
    gateway.token = "hgt_wrong"
    for _ in range(BURST + 3):
        peer, _ = await enter(gateway, first_message=True)
        before, code, _ = await peer.closing()
        assert code == BAD_CREDENTIAL
        assert msgspec.json.decode(before[0][1])["reconnect"] is False


@pytest.mark.parametrize("first_message", [False, True])
async def test_connections_of_one_user_are_limited(open_gateway, first_message):
    gateway = await open_gateway(connections_per_user=2)
    first, _ = await enter(gateway)
    await enter(gateway)
    third, _ = await enter(gateway, first_message=first_message)
    _, code, reason = await third.closing()
    assert code == 4504
    assert "alice" in reason
    first.write(masked(CLOSE))
    await first.closing()
    again, _ = await enter(gateway)
    assert (await again.control())["type"] == "welcome"


async def test_a_revoked_token_ends_its_session(gateway):
    peer, _ = await enter(gateway)
    await peer.control()
    gateway.identity.tokens.remove(lambda token: True)
    assert gateway.identity.poll()
    gateway.sessions.revoked()
    assert (await peer.closing())[1] == 4506
    _, status = await enter(gateway)
    assert status == 401


async def test_everybody_hears_of_the_end(gateway):
    inside, _ = await enter(gateway)
    await inside.control()
    outside = await gateway.connect(token=None)
    await gateway.sessions.drain(0)
    await gateway.endpoint.close()
    before, code, _ = await inside.closing()
    assert [msgspec.json.decode(data)["type"] for _, data in before] == ["shutdown", "error"]
    assert code == 4000
    assert (await outside.closing())[1] == 4000
    late, _ = await enter(gateway)
    assert (await late.closing())[1] == 4000


@pytest.mark.patient
async def test_what_came_at_the_rate_while_the_gateway_was_stopped_closes_nobody(open_gateway):
    gateway = await open_gateway(ping_s=1.0, msgs_per_s=1000, msgs_burst=50)
    peer, _ = await enter(gateway)
    await peer.control()
    (session,) = gateway.sessions.by_id.values()
    peer.write(masked(BINARY, request("broker.ping", b"{}\0", matchtag=5).framed()) * 900)
    time.sleep(0.9)  # noqa: ASYNC251 - nobody was here
    await gateway.until(lambda: session.ended or session.received_msgs == 900)
    assert not session.ended
