"""Users and rules are read again while sessions are open: each keeps what it still may."""

import asyncio
import logging

import aiohttp
import msgspec
import pytest

from broker.errors import ConfigError
from gateway.closes import REVOKED
from gateway.identity.tokens import TokenFile, token_path
from gateway.settings.schema import UserEntry

JSON = ("flux.v1.json",)


class Client:
    """A web session; what its link is told stands in ``sock``."""

    def __init__(self, sock):
        self.sock = sock

    async def subscribe(self, topic):
        asked = {"topic": "event.subscribe", "matchtag": 1, "payload": {"topic": topic}}
        await self.sock.send_json({"type": "request", **asked})
        assert not (await self.until("response")).get("errnum")

    async def until(self, kind):
        while (said := await self.sock.receive_json(timeout=20))["type"] != kind:
            pass
        return said


@pytest.fixture
async def enter(live):
    async with aiohttp.ClientSession() as http:

        async def enter(user):
            sock = await http.ws_connect(live.ws, protocols=JSON, headers=live.bearer(user))
            client = Client(sock)
            await client.until("welcome")
            return client

        yield enter


def reread(live, **changes):
    live.gateway._reread = lambda: msgspec.structs.replace(live.gateway.settings, **changes)


async def test_other_rules_take_away_what_an_open_session_had(live, enter):
    bob, ada = await enter("bob"), await enter("ada")
    for each in (bob, ada):
        await each.subscribe("news.")
    (wide, narrow) = live.gateway.settings.rules
    reread(live, rules=(wide, msgspec.structs.replace(narrow, prefixes=("news.",))))
    assert await live.gateway.reload() == []
    assert await bob.until("unsubscribed") == {"type": "unsubscribed", "subscriptions": ["news."]}
    assert [len(one.subscriptions) for one in live.gateway.sessions.by_id.values()] == [0, 1]


async def test_other_roles_count_at_once_and_who_is_gone_or_another_is_ended(live, enter):
    bob, ada, eve = await enter("bob"), await enter("ada"), await enter("eve")
    users = {user.name: user for user in live.gateway.settings.users}
    changed = msgspec.structs.replace
    reread(live, users=(changed(users["bob"], roles=("admin",)), changed(users["eve"], userid=77)))
    assert await live.gateway.reload() == []
    (left,) = live.gateway.sessions.by_id.values()
    assert (left.principal.name, left.principal.role_names) == ("bob", ["user", "admin"])
    for gone in (ada, eve):
        assert (await gone.until("error"))["code"] == REVOKED
    assert not bob.sock.closed


async def test_a_new_user_gets_in(live):
    fresh = UserEntry(name="zoe", userid=1009, roles=("user",))
    reread(live, users=(*live.gateway.settings.users, fresh))
    assert not live.gateway.identity.users.known("zoe")
    assert await live.gateway.reload() == []
    assert live.gateway.identity.users.known("zoe")


async def test_what_needs_a_restart_is_said_and_everything_else_counts(live):
    before = live.gateway.settings
    limits = msgspec.structs.replace(before.limits, subscriptions=before.limits.subscriptions + 1)
    section = msgspec.structs.replace(before.gateway, prefix="/other")
    fresh = UserEntry(name="zoe", userid=1009, roles=("user",))
    reread(live, users=(*before.users, fresh), limits=limits, gateway=section, listen=())
    (said,) = await live.gateway.reload()
    assert set(said.partition(":")[0].split(", ")) == {"listen", "limits.subscriptions", "gateway.prefix"}
    assert "restart" in said
    assert live.gateway.identity.users.known("zoe")


async def test_a_bad_file_leaves_all_as_it_was_and_says_so_once(live, enter, caplog):
    def bad():
        raise ConfigError("gateway.toml:1: one\ngateway.toml:2: two")

    await enter("bob")
    gateway = live.gateway
    before = (gateway.settings, gateway.sessions.access, gateway.identity.users)
    gateway._reread = bad
    with caplog.at_level(logging.ERROR, "headgate"):
        assert await gateway.reload() == ["gateway.toml:1: one; gateway.toml:2: two"]
    assert (gateway.settings, gateway.sessions.access, gateway.identity.users) == before
    assert len(gateway.sessions.by_id) == 1
    assert len(caplog.records) == 1


class Half:
    """A call of ``user`` over HTTP whose body has half come: its credential was accepted, its session is not open."""

    def __init__(self, live, http, user):
        self._rest = asyncio.Event()
        headers = live.bearer(user) | {"Content-Type": "application/json"}
        call = http.post(f"{live.url}/v1/rpc/gateway.session", data=self._body(), headers=headers)
        self._call = asyncio.get_running_loop().create_task(call, name="half a call")

    async def _body(self):
        yield b"{"
        await self._rest.wait()
        yield b"}"

    async def finish(self):
        self._rest.set()
        async with await self._call as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def begin(live):
    users = live.gateway.admission.users
    async with aiohttp.ClientSession() as http:

        async def begin(user):
            before, half = users.of(user), Half(live, http, user)
            async with asyncio.timeout(20):
                while users.of(user) == before:
                    await asyncio.sleep(0.01)
            return half

        yield begin


async def test_a_call_whose_body_came_over_a_reload_has_the_rights_of_now(live, begin):
    halves = {name: await begin(name) for name in ("ada", "bob", "eve")}
    users = {user.name: user for user in live.gateway.settings.users}
    changed = msgspec.structs.replace
    reread(live, users=(changed(users["bob"], roles=("admin",)), changed(users["eve"], userid=77)))
    assert await live.gateway.reload() == []
    assert await live.gateway.reload() == []
    status, mine = await halves["bob"].finish()
    assert (status, mine["roles"]) == (200, ["user", "admin"])
    for gone in ("ada", "eve"):
        status, problem = await halves[gone].finish()
        assert (status, problem["name"]) == (401, "EPERM")


async def test_a_call_whose_body_came_over_a_revocation_has_none(live, begin):
    half, other = await begin("bob"), await begin("eve")
    token = live.tokens["bob"].split("_")[1]
    assert TokenFile(token_path(live.gateway.settings)).remove(lambda each: each.id == token)
    assert (await half.finish())[0] == 401
    assert (await other.finish())[0] == 200
