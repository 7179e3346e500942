"""A credential over the life of a connection: refreshed, expired, revoked; and who may not be stamped at all."""

import asyncio
import errno
import time

import pytest

from broker import awake
from broker.identity import USERID_UNKNOWN, Role
from gateway.principal import Denied, Principal
from gateway.sessions import deadlines
from gateway.sessions.decisions import stamp_of
from tests.tables import for_each
from tests.unit.gateway.sessions.desk import principal, rule, run, until

NEWS = (rule(["user"], ["news."]), rule(["user"], ["broker.ping"], ["call"]))


class Identity:
    """Tokens are what the test says they are."""

    def __init__(self, tokens=None):
        self.tokens = tokens or {}
        self.gone = set()
        self.addresses = []

    async def authenticate_token(self, text, *, address):
        self.addresses.append(address)
        await asyncio.sleep(0)
        found = self.tokens.get(text)
        if found is None:
            raise Denied("unknown token", public="credential refused", status=401, close=4500)
        return found

    def revoked(self, who):
        return who.credential in self.gone

    def again(self, who):
        return who


def refresh(web, token):
    web.session.control({"type": "refresh", "token": token})


def test_a_principal_without_role_or_with_a_stamp_that_means_owner_cannot_exist():
    for userid, roles in (
        (1, Role.NONE),
        (1, Role.LOCAL | Role.USER),
        (USERID_UNKNOWN, Role.USER),
        (-1, Role.USER),
    ):
        with pytest.raises(ValueError):
            Principal("x", userid, roles, "token", "c")


def test_and_if_it_did_it_would_not_be_stamped():
    """The last line before the owner link: checked again where the stamp is made."""
    who = principal()
    for userid, roles in ((1, Role.NONE), (1, Role.LOCAL), (USERID_UNKNOWN, Role.USER), (1 << 32, Role.USER)):
        object.__setattr__(who, "userid", userid)
        object.__setattr__(who, "roles", roles)
        with pytest.raises(ValueError):
            stamp_of(who)
    object.__setattr__(who, "userid", 7)
    object.__setattr__(who, "roles", Role.USER | Role.LOCAL)
    assert stamp_of(who) == b"\0\0\0\7\0\0\0\2"


def test_a_session_without_a_role_is_not_opened():
    async def script(desk):
        who = principal()
        object.__setattr__(who, "roles", Role.NONE)
        with pytest.raises(ValueError):
            desk.client(who)
        assert desk.sessions.by_id == {}

    run(script, join=False)


def test_a_fresh_token_of_the_same_user_is_taken_with_its_roles():
    async def script(desk):
        desk.sessions.identity = Identity(
            {"t2": principal("ada", 1001, ("user", "admin"), expires=5e9, credential="token:2")}
        )
        web = desk.client()
        await web.rpc("event.subscribe", {"topic": "news."})
        assert (await web.rpc("broker.ping", {"seq": 1}))["rolemask"] == int(Role.USER)
        refresh(web, "t2")
        await until(lambda: web.told("refreshed"))
        assert web.told("refreshed") == [{"type": "refreshed", "expires": 5e9, "roles": ["user", "admin"]}]
        assert desk.sessions.identity.addresses == ["192.0.2.7"]
        assert (await web.rpc("broker.ping", {"seq": 2}))["rolemask"] == int(Role.USER | Role.ADMIN)
        assert web.session.subscriptions == {b"news.": 1}
        assert (await web.ask("attr.get", {"name": "rank"})).errnum == 0

    run(script, rules=NEWS)


def test_rights_that_went_with_the_role_are_given_up():
    async def script(desk):
        desk.sessions.identity = Identity({"t2": principal("ada", 1001, ("user",), credential="token:2")})
        web = desk.client(principal("ada", 1001, ("user", "admin")))
        for prefix in ("", "news."):
            await web.rpc("event.subscribe", {"topic": prefix})
        await web.rpc("attr.get", {"name": "rank"})
        refresh(web, "t2")
        await until(lambda: web.told("refreshed"))
        assert web.told("unsubscribed") == [{"type": "unsubscribed", "subscriptions": [""]}]
        assert (await web.refused("attr.get", {"name": "rank"}))[0] == errno.EPERM
        async with desk.direct() as far:
            await far.publish("job.a")
            await far.publish("news.a")
            await until(lambda: web.topics)
            assert web.topics == ["news.a"]

    run(script, rules=NEWS)


def test_a_demoted_owner_is_held_to_the_rate():
    async def script(desk):
        web = desk.client(principal("ada", 1001, ("owner",)))
        now = desk.sessions.clock()
        desk.sessions.clock = lambda: now
        for n in range(5):
            await web.rpc("broker.ping", {"seq": n})
        web.session.set_principal(principal())
        answers = [(await web.ask("broker.ping", {"seq": n})).errnum for n in range(3)]
        assert answers == [0, 0, errno.EAGAIN]

    run(script, rules=NEWS, limits={"msgs_per_s": 1, "msgs_burst": 2})


@for_each("other", [principal("eve", 1001), principal("ada", 1002), None])
def test_a_token_of_somebody_else_or_of_nobody_ends_the_connection(other):
    async def script(desk):
        desk.sessions.identity = Identity({"t2": other} if other else {})
        web = desk.client()
        refresh(web, "t2")
        await until(lambda: web.code)
        assert web.code == 4500
        assert web.session.principal.userid == 1001
        assert "t2" not in str(desk.administration.denials.ring) + str(web.log) + web.reason

    run(script, join=False)


def test_a_fault_while_a_fresh_token_is_checked_costs_the_connection(caplog):
    class Broken(Identity):
        async def authenticate_token(self, text, *, address):
            raise RuntimeError("a fault of ours")

    async def script(desk):
        desk.sessions.identity = Broken()
        web = desk.client()
        refresh(web, "fresh-token-of-ada")
        await until(lambda: web.code)
        assert web.code == 4001
        assert desk.sessions.counters.faults == 1

    run(script, join=False, faults=1)
    assert "a fault of ours" in caplog.text
    assert "fresh-token-of-ada" not in caplog.text


def test_a_second_refresh_while_one_is_checked_is_one_too_many():
    async def script(desk):
        desk.sessions.identity = Identity({"t2": principal()})
        web = desk.client()
        refresh(web, "t2")
        refresh(web, "t2")
        assert web.code == 4503
        await until(lambda: not desk.sessions.tasks)
        assert not web.told("refreshed")

    run(script, join=False)


def test_an_expired_credential_ends_the_connection_and_a_refreshed_one_does_not():
    wall = [1000.0]

    async def script(desk):
        desk.sessions.identity = Identity({"t2": principal(expires=2000.0), "t3": principal(expires=None)})
        short, renewed, endless = (desk.client(principal(expires=1001.0)) for _ in range(3))
        refresh(renewed, "t2")
        refresh(endless, "t3")
        await until(lambda: renewed.told("refreshed") and endless.told("refreshed"))
        wall[0] = 1001.0
        await until(lambda: short.code)
        assert short.code == 4004
        desk.delivery.deadlines.sweep()
        assert (renewed.code, endless.code) == (None, None)
        wall[0] = 2000.0
        desk.delivery.deadlines.sweep()
        assert (renewed.code, endless.code) == (4004, None)

    run(script, wall=lambda: wall[0], join=False)


def test_a_gateway_that_was_stopped_reads_a_refresh_before_it_takes_a_credential_for_expired(monkeypatch):
    monkeypatch.setattr(awake, "LATE_S", 0.03)
    monkeypatch.setattr(deadlines, "TICK_S", 0.05)
    wall = [1000.0]

    async def script(desk):
        desk.sessions.identity = Identity({"t2": principal(expires=2000.0)})
        renewed, late = desk.client(principal(expires=1001.0)), desk.client(principal(expires=1001.0))
        asyncio.get_running_loop().call_soon(refresh, renewed, "t2")  # it lies in the socket
        wall[0] = 1001.0
        time.sleep(0.1)  # noqa: ASYNC251 - nobody was here
        while not late.code:  # one late tick more: a machine that is always late lets nobody stay for ever
            time.sleep(0.1)  # noqa: ASYNC251
            await asyncio.sleep(0)
        assert (late.code, renewed.code) == (4004, None)

    run(script, wall=lambda: wall[0], join=False)


def test_revoked_credentials_end_their_sessions_and_no_others():
    async def script(desk):
        identity = desk.sessions.identity = Identity()
        one, two, three = (desk.client(principal(credential=f"token:{n}")) for n in range(3))
        desk.sessions.revoked("token:0")
        identity.gone = {"token:1"}
        desk.sessions.revoked()
        assert (one.code, two.code, three.code) == (4506, 4506, None)

    run(script, join=False)


def test_ping_is_answered_and_other_objects_have_no_place():
    async def script(desk):
        web = desk.client()
        web.session.control({"type": "ping"})
        assert web.told("pong") == [{"type": "pong"}]
        web.session.control({"type": "auth", "token": "secret"})
        assert web.code == 4503
        assert "secret" not in web.reason
        web.session.control({"type": "ping"})
        assert len(web.told("pong")) == 1

    run(script, join=False)


def test_control_objects_count_as_messages():
    async def script(desk):
        web = desk.client()
        now = desk.sessions.clock()
        desk.sessions.clock = lambda: now
        for _ in range(4):
            web.session.control({"type": "ping"})
        assert len(web.told("pong")) == 2
        for _ in range(30):
            web.session.control({"type": "ping"})
        assert web.code == 4507

    run(script, limits={"msgs_per_s": 1, "msgs_burst": 2}, join=False)
