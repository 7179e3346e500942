"""The endpoint before the real hub and identity, without a broker: who comes in, as whom, and who stays out."""

import asyncio
import contextlib
import errno

import msgspec
import pytest

from broker.wire.framing import Splitter
from broker.wire.message import request
from gateway.closes import BAD_CREDENTIAL
from gateway.hub import Hub
from gateway.identity.attempts import BURST
from gateway.identity.authenticate import Authenticator
from gateway.identity.store import Store
from gateway.settings.schema import GatewaySection, GatewaySettings, LimitsSection, UserEntry
from tests.unit.gateway.websocket.house import house, masked, request_head

TEXT, BINARY, CLOSE = 1, 2, 8


@contextlib.asynccontextmanager
async def gateway(tmp_path, **limits):
    settings = GatewaySettings(
        gateway=GatewaySection(statedir=str(tmp_path)),
        users=(UserEntry(name="alice", userid=1001), UserEntry(name="bob", userid=1002)),
        limits=LimitsSection(**limits),
    )
    store = Store(settings.gateway.statedir)
    identity = Authenticator(settings, store)
    await identity.start()
    hub = Hub(settings, key=store.key("resume"))
    hub.identity, hub.places = identity, identity.connections
    try:
        async with house(hub=hub, identity=identity) as one:
            _, one.token = identity.tokens.add("alice", now=store.wall())
            identity.tokens.refresh()
            yield one
    finally:
        await hub.stop()
        identity.close()
        store.close()


async def enter(one, *, origin="", first_message=False):
    peer = await one.raw()
    bearer = "" if first_message else f"Bearer {one.token}"
    peer.write(request_head(Origin=origin, Authorization=bearer))
    head = await peer.head()
    if head.startswith(b"HTTP/1.1 101 ") and first_message:
        peer.write(masked(TEXT, msgspec.json.encode({"type": "auth", "token": one.token})))
    return peer, int(head.split()[1])


@pytest.mark.parametrize("first_message", [False, True])
def test_the_welcome_says_who_the_client_is(tmp_path, first_message):
    async def story():
        async with gateway(tmp_path) as one:
            peer, status = await enter(one, first_message=first_message)
            assert status == 101
            welcome = await peer.control()
            (session,) = one.hub.sessions.values()
            assert (welcome["type"], welcome["session"]) == ("welcome", session.id)
            assert (welcome["user"], welcome["userid"], welcome["roles"]) == ("alice", 1001, ["user"])
            assert welcome["limits"]["message_bytes"] == one.hub.settings.limits.message_bytes
            assert welcome["upstream"]["joined"] is False
            peer.write(masked(BINARY, request("broker.ping", b"{}\0", matchtag=5).framed()))
            (answer,) = Splitter().feed((await peer.frame())[1])
            assert (answer.matchtag, answer.errnum) == (5, errno.EPERM)
            peer.write(masked(TEXT, b'{"type":"ping"}'))
            assert await peer.control() == {"type": "pong"}
            peer.write(masked(CLOSE))
            await peer.closing()
            await one.until(lambda: not one.hub.sessions)
            assert one.identity.connections.own("alice") == 0

    asyncio.run(story())


def test_a_page_of_another_site_gets_no_websocket(tmp_path):
    async def story():
        async with gateway(tmp_path) as one:
            for first_message in (False, True):
                _, status = await enter(one, origin="https://evil.example", first_message=first_message)
                assert status == 403
            _, status = await enter(one, origin="http://127.0.0.1", first_message=True)
            assert status == 101

    asyncio.run(story())


def test_a_wrong_credential_is_told_so_however_many_there_were_before(tmp_path):
    async def story():
        async with gateway(tmp_path) as one:
            one.token = "hgt_wrong"
            for _ in range(BURST + 3):
                peer, _ = await enter(one, first_message=True)
                before, code, _ = await peer.closing()
                assert code == BAD_CREDENTIAL
                assert msgspec.json.decode(before[0][1])["reconnect"] is False

    asyncio.run(story())


@pytest.mark.parametrize("first_message", [False, True])
def test_connections_of_one_user_are_limited(tmp_path, first_message):
    async def story():
        async with gateway(tmp_path, connections_per_user=2) as one:
            first, _ = await enter(one)
            await enter(one)
            third, _ = await enter(one, first_message=first_message)
            _, code, reason = await third.closing()
            assert code == 4504
            assert "alice" in reason
            first.write(masked(CLOSE))
            await first.closing()
            again, _ = await enter(one)
            assert (await again.control())["type"] == "welcome"

    asyncio.run(story())


def test_a_revoked_token_ends_its_session(tmp_path):
    async def story():
        async with gateway(tmp_path) as one:
            peer, _ = await enter(one)
            await peer.control()
            one.identity.tokens.remove(lambda token: True)
            assert one.identity.poll()
            one.hub.revoked()
            assert (await peer.closing())[1] == 4506
            _, status = await enter(one)
            assert status == 401

    asyncio.run(story())


def test_everybody_hears_of_the_end(tmp_path):
    async def story():
        async with gateway(tmp_path) as one:
            inside, _ = await enter(one)
            await inside.control()
            outside = await one.connect(token=None)
            await one.hub.drain(0)
            await one.endpoint.close()
            before, code, _ = await inside.closing()
            assert [msgspec.json.decode(data)["type"] for _, data in before] == ["shutdown", "error"]
            assert code == 4000
            assert (await outside.closing())[1] == 4000
            late, _ = await enter(one)
            assert (await late.closing())[1] == 4000

    asyncio.run(story())
