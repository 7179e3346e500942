"""The service `gateway`: for web clients by role, and for the owner through the broker."""

import asyncio
import errno
import itertools
from types import SimpleNamespace

import pytest

from broker.client import connect
from broker.errors import RpcError
from broker.wire import message as wire
from gateway.access import Access
from gateway.administration import listing
from gateway.administration.listing import NAMES_A_ROW
from gateway.administration.service import COUNT_MAX
from gateway.principal import Denied
from tests.tables import for_each
from tests.unit.gateway.sessions.desk import Desk, Others, principal, rule, run, settings_of, until

CALLS = rule(["user"], ["broker.ping"], ["call"])


def test_everybody_sees_the_own_session_and_no_other():
    async def script(desk):
        web, other = desk.client(), desk.client()
        mine = await web.rpc("gateway.session")
        assert (mine["session"], mine["user"], mine["userid"], mine["roles"]) == (
            web.session.id, "ada", 1001, ["user"],
        )  # fmt: skip
        assert (await web.rpc("gateway.session", {"session": web.session.id}))["session"] == web.session.id
        errnum, text = await web.refused("gateway.session", {"session": other.session.id})
        assert (errnum, text) == (errno.EPERM, "other sessions are shown to the role owner or admin")
        assert (await web.refused("gateway.session", {"session": "no such"}))[0] == errno.EPERM
        assert (await desk.owner().refused("gateway.session", {"session": "no such"}))[0] == errno.ENOENT
        assert web.session.hop.hex() not in str(mine)
        assert desk.spy.sent == []

    run(script)


@for_each("method", ["sessions", "stats", "denied", "end", "reload"])
def test_what_is_not_for_users_names_who_may(method):
    async def script(desk):
        web = desk.client()
        errnum, text = await web.refused(f"gateway.{method}")
        assert errnum == errno.EPERM
        assert text.startswith(f"gateway.{method} needs the role owner")
        assert desk.administration.denials.ring[-1]["topic"] == f"gateway.{method}"

    run(script, join=False)


OF_BROKERS = ["broker.calls", "broker.stats-get", "overlay.", "state-machine.get", "attr.get"]


class Known:
    """What a gateway knows of its brokers."""

    async def calls(self, rank, *, trusted):
        return {"rank": rank, "trusted": trusted}

    async def ranks(self, after, *, clients, owner):
        return {"after": after, "clients": clients and owner}


@for_each("method", ["calls", "ranks"])
def test_who_may_ask_the_brokers_may_ask_what_is_known_of_them(method):
    async def script(desk):
        desk.administration.trends = Known()
        web = desk.client()
        denied = OF_BROKERS[0] if method == "calls" else OF_BROKERS[1]
        await web.rpc(f"gateway.{method}")
        assert (await web.rpc("gateway.rules", {"kind": "call", "topic": f"gateway.{method}"})) == {
            "allowed": True, "roles": ["owner", "user", "admin"], "preset": "viewer",
        }  # fmt: skip
        desk.administration.set_access(
            Access(settings_of([rule(["user"], [each for each in OF_BROKERS if each != denied])]).rules)
        )
        errnum, text = await web.refused(f"gateway.{method}")
        assert (errnum, text) == (
            errno.EPERM,
            f'gateway.{method} needs the role owner or admin, or a rule: preset = "viewer"',
        )
        assert not (await web.rpc("gateway.rules", {"kind": "call", "topic": f"gateway.{method}"}))["allowed"]

    run(script, rules=[rule(["user"], OF_BROKERS)], join=False)


def test_last_errors_and_clients_of_brokers_are_not_for_users():
    async def script(desk):
        desk.administration.trends = Known()
        admin = desk.client(principal("eve", 7, ("admin",)))
        for client, trusted in ((desk.client(), False), (admin, True), (desk.owner(), True)):
            assert (await client.rpc("gateway.calls", {"rank": 3})) == {"rank": 3, "trusted": trusted}
        for client, clients in ((desk.client(), False), (admin, False), (desk.owner(), True)):
            assert (await client.rpc("gateway.ranks", {"clients": True, "after": 9})) == {
                "after": 9,
                "clients": clients,
            }
        assert (await admin.rpc("gateway.calls"))["rank"] is None
        for method, wrong in (
            ("calls", {"rank": -1}),
            ("calls", {"rank": "0"}),
            ("ranks", {"after": True}),
            ("ranks", {"clients": 1}),
        ):
            assert (await admin.refused(f"gateway.{method}", wrong))[0] == errno.EPROTO

    run(script, rules=[rule(["user"], OF_BROKERS)], join=False)


def ticks():
    """A wall clock that shows another second whenever it is looked at: none is as old as another."""
    return itertools.count(1.0).__next__


async def pages(admin, limit):
    """The ids of all sessions, page for page."""
    found, asked = [], {"limit": limit}
    while True:
        page = await admin.rpc("gateway.sessions", asked)
        found.append([row["session"] for row in page["sessions"]])
        if "next" not in page:
            return found
        asked["after"] = page["next"]


def test_admins_see_all_sessions_in_pages():
    async def script(desk):
        webs = [desk.client() for _ in range(3)]
        admin = desk.client(principal("eve", 1003, ("admin",)))
        names = [web.session.id for web in (*webs, admin)]
        assert await pages(admin, 3) == [names[:3], names[3:]]
        webs[1].leave()  # between two pages: a place is one, too, when nobody is there
        page = await admin.rpc("gateway.sessions", {"limit": 2})
        webs[2].leave()
        rest = await admin.rpc("gateway.sessions", {"limit": 2, "after": page["next"]})
        assert [row["session"] for row in rest["sessions"]] == names[3:]
        assert (rest["total"], "next" in rest) == (2, False)
        for odd in (
            {"limit": -1},
            {"limit": 2**64},
            {"after": 1},
            {"after": ":"},
            {"after": "a:b"},
            {"after": "nan:"},
        ):
            assert (await admin.refused("gateway.sessions", odd))[0] == errno.EPROTO
        assert (await admin.rpc("gateway.sessions", {"limit": COUNT_MAX}))["total"] == 2
        assert (await admin.rpc("gateway.sessions", {"limit": 0}))["sessions"] == []
        assert (await admin.refused("gateway.reload"))[0] == errno.EPERM

    run(script, wall=ticks(), join=False)


def test_the_sessions_of_all_workers_are_listed_whatever_else_the_question_names():
    async def script(desk):
        asked = []

        async def others(question):
            asked.append(question)
            return [desk.administration.answered(question)]

        desk.sessions.peers = Others(others)
        admin = desk.client(principal("eve", 1003, ("admin",)))
        page = await admin.rpc("gateway.sessions", {"session": admin.session.id})
        assert (page["total"], len(asked)) == (2, 1)
        assert (await admin.refused("gateway.sessions", {"after": 2**63}))[0] == errno.EPROTO
        assert (await admin.rpc("gateway.session", {"session": admin.session.id}))["user"] == "eve"
        assert len(asked) == 1

    run(script, join=False)


def test_a_page_costs_all_workers_together_its_rows_however_deep_it_is(monkeypatch):
    async def script(desk):
        others = [Desk(desk.rundir, desk.sessions.settings, wall=wall) for _ in range(2)]

        async def ask(question):
            return [each.administration.answered(question) for each in others]

        desk.sessions.peers = Others(ask, {"a/1": 2})
        admin = desk.client(principal("eve", 1003, ("admin",)))
        there = [(desk, *others)[n * n % 3].client() for n in range(30)]
        made = []
        one = listing.row
        monkeypatch.setattr(listing, "row", lambda each: made.append(each) or one(each))
        found = await pages(admin, 6)
        assert [name for page in found for name in page] == [web.session.id for web in (admin, *there)]
        assert max(map(len, found)) <= 6
        assert len(made) <= 6 * len(found)
        for each in others:
            await each.close()

    wall = ticks()
    run(script, limits={"connections_per_user": 99}, wall=wall, join=False)


def test_a_row_with_many_subscriptions_counts_for_several():
    async def script(desk):
        for _ in range(3):
            session = desk.client().session
            for n in range(2 * NAMES_A_ROW):
                desk.delivery.fanout.subscribe(session, b"a.%d" % n)
        admin = desk.client(principal("eve", 1003, ("admin",)))
        assert list(map(len, await pages(admin, 3))) == [1, 1, 1, 1]
        assert list(map(len, await pages(admin, 4))) == [2, 2]

    run(script, join=False)


def test_a_deep_page_is_found_as_fast_as_the_first():
    class Age(float):
        def __eq__(self, other):
            compared.append(self)
            return float(self) == float(other)

        __hash__ = float.__hash__

    compared, count = [], 300

    async def script(desk):
        clients = [desk.client() for _ in range(count)]
        behind = desk.sessions.behind
        assert [next(behind((Age(n + 1.5), ""))) for n in range(count)] == [each.session for each in clients]
        assert count < len(compared) <= count * 10

    # the first second is the start of the process
    run(script, limits={"connections_per_user": count}, wall=ticks(), join=False)


def test_a_session_that_a_silent_worker_may_have_is_not_said_to_be_gone():
    async def script(desk):
        other = Desk(desk.rundir, desk.sessions.settings)
        there = other.client()
        said = []

        async def others(question):
            return [each if isinstance(each, bytes) else each.answered(question) for each in said]

        desk.sessions.peers = Others(others)
        admin = desk.client(principal("eve", 1003, ("admin",)))
        for method in ("session", "end"):
            asked = {"session": there.session.id}
            for said[:], errnum in (
                ([], errno.ENOENT),
                ([desk.administration], errno.ENOENT),
                ([b""], errno.ETIMEDOUT),
                ([desk.administration, b""], errno.ETIMEDOUT),
            ):
                assert (await admin.refused(f"gateway.{method}", asked))[0] == errnum
            said[:] = [b"", other.administration]
            await admin.rpc(f"gateway.{method}", asked)
        assert there.code == 4006
        _, text = await admin.refused("gateway.end", {"session": "0"})
        assert text == "1 of the worker processes did not answer, and the session may be there: ask again"
        page = await admin.rpc("gateway.sessions")
        assert (page["total"], page["silent"]) == (1, 1)
        await other.close()

    run(script, join=False)


def test_statistics_are_of_all_gateways_and_who_is_silent_is_named():
    async def script(desk):
        other, label = Desk(desk.rundir, desk.sessions.settings), "a/1"
        there = [other.client() for _ in range(3)]
        other.sessions.peers = Others(None, label="b/2")

        async def others(question):
            return [b"", other.administration.answered(question), desk.administration.answered(question)]

        desk.sessions.peers = Others(others, {label: 1, "b/2": 2, "c/3": 1}, label)
        web, owner = desk.client(), desk.owner()
        await web.refused("secret.plan")
        told = await owner.rpc("gateway.stats")
        assert (told["gateway"], told["sessions"], told["counters"]["refused"]) == (label, 2, 1)
        assert [(row["gateway"], row["processes"], row["sessions"]) for row in told["gateways"]] == [
            (label, 2, 4),
            ("b/2", 1, 3),
        ]
        assert told["silent"] == ["b/2", "c/3"]
        assert (told["all"]["sessions"], told["all"]["counters"]["refused"], told["more"]) == (7, 2, 0)
        assert told["all"]["by_kind"] == {"flux.v1": 7}
        assert len(there) == 3
        await other.close()

    run(script, join=False)


def test_statistics_of_a_gateway_alone_are_its_own():
    async def script(desk):
        assert "gateways" not in await desk.owner().rpc("gateway.stats")

    run(script, join=False)


def test_many_gateways_are_one_answer(monkeypatch):
    monkeypatch.setattr(listing, "GATEWAYS_MAX", 2)

    async def script(desk):
        desk.client()
        told = listing.all_stats(
            desk.administration,
            [listing.stats(desk.administration) | {"gateway": f"x/{n}"} for n in range(4)],
        )
        assert (len(told["gateways"]), told["more"], told["all"]["sessions"]) == (2, 3, 5)

    run(script, join=False)


def test_figures_and_refusals():
    async def script(desk):
        web, owner = desk.client(), desk.owner()
        await web.rpc("broker.ping", {"seq": 1})
        await web.refused("attr.get", {"name": "rank"})
        stats = await owner.rpc("gateway.stats")
        assert stats["sessions"] == 2
        assert stats["by_kind"] == {"flux.v1": 2}
        assert (stats["counters"]["requests"], stats["counters"]["denied"]) == (1, 1)
        assert stats["upstream"]["joined"] is True
        denied = await owner.rpc("gateway.denied", {"limit": 10})
        assert denied["total"] == 1
        assert denied["denied"][0] | {"at": 0, "session": ""} == {
            "at": 0,
            "session": "",
            "user": "ada",
            "userid": 1001,
            "kind": "call",
            "topic": "attr.get",
            "reason": "call 'attr.get': needs the role owner or admin, or a rule: preset = \"viewer\"",
            "address": "192.0.2.7",
        }
        assert (await owner.rpc("gateway.denied", {"limit": 0}))["denied"] == []

    run(script, rules=[CALLS])


def test_a_panel_can_ask_which_role_it_needs():
    async def script(desk):
        web = desk.client()

        async def asked(kind, topic):
            answer = await web.rpc("gateway.rules", {"kind": kind, "topic": topic})
            return answer["allowed"], answer["roles"]

        assert await asked("call", "broker.ping") == (True, ["owner", "user", "admin"])
        assert await asked("call", "attr.get") == (False, ["owner", "admin"])
        assert await asked("publish", "news.a") == (False, ["owner"])
        assert await asked("call", "gateway.denied") == (False, ["owner", "admin"])
        assert await asked("call", "gateway.session") == (True, ["owner", "user", "admin"])
        assert await asked("call", "event.subscribe") == (True, ["owner", "user", "admin"])
        assert (await web.refused("gateway.rules", {"kind": "see", "topic": "a"}))[0] == errno.EPROTO
        assert (await web.refused("gateway.rules", {}))[0] == errno.EPROTO

    run(script, rules=[CALLS], join=False)


def test_an_admin_ends_a_session():
    async def script(desk):
        web, admin = desk.client(), desk.client(principal("eve", 1003, ("admin",)))
        assert await admin.rpc("gateway.end", {"session": web.session.id}) == {}
        assert (web.code, web.reason) == (4006, "ended by eve")
        assert (await admin.refused("gateway.end", {"session": web.session.id}))[0] == errno.ENOENT
        await admin.ask("gateway.sessions")
        tag = admin.send("gateway.end", {"session": admin.session.id})
        await until(lambda: admin.code)
        assert not admin.answers(tag)

    run(script, join=False)


def test_an_admin_revokes_the_credential_of_a_session():
    async def script(desk):
        class Identity:
            def __init__(self):
                self.gone = []

            def revoke(self, who):
                if who.name == "bob":
                    raise Denied("gateway.db: locked", public="try again", status=503, close=4005, errno=11)
                self.gone.append(who.credential)

        web, twin, other = desk.client(), desk.client(), desk.client(principal("bob", credential="jwt:7"))
        admin = desk.client(principal("eve", 1003, ("admin",), credential="token:eve"))
        asked = {"session": web.session.id, "revoke": True}
        identity = desk.sessions.identity = Identity()
        assert (await web.refused("gateway.end", asked))[0] == errno.EPERM
        assert (await admin.refused("gateway.end", asked | {"revoke": 1}))[0] == errno.EPROTO
        assert await admin.refused("gateway.end", asked | {"session": other.session.id}) == (11, "try again")
        assert (web.code, other.code, identity.gone) == (None, None, [])
        assert await admin.rpc("gateway.end", asked) == {}
        assert (web.code, twin.code, other.code) == (4506, 4506, None)
        assert identity.gone == ["token:1"]

    run(script, join=False)


def test_nobody_revokes_what_is_above_its_own_role():
    async def script(desk):
        class Identity:
            def revoke(self, who):
                gone.append(who.name)

        gone = []
        owner = desk.client(principal("ida", 1004, ("owner",), credential="token:ida"))
        second = desk.client(principal("ola", 1005, ("owner",), credential="token:ola"))
        peer = desk.client(principal("pat", 1006, ("admin",), credential="token:pat"))
        admin = desk.client(principal("eve", 1003, ("admin",)))
        desk.sessions.identity = Identity()
        for each in (owner, second):
            errnum, text = await admin.refused("gateway.end", {"session": each.session.id, "revoke": True})
            assert (errnum, text) == (
                errno.EPERM,
                "a credential of the role owner is revoked by the role owner",
            )
            assert each.code is None
        assert await admin.rpc("gateway.end", {"session": peer.session.id, "revoke": True}) == {}
        assert await owner.rpc("gateway.end", {"session": second.session.id, "revoke": True}) == {}
        assert gone == ["pat", "ola"]
        assert await admin.rpc("gateway.end", {"session": owner.session.id}) == {}, "it may come back"

    run(script, join=False)


def test_a_fault_of_a_method_that_takes_its_time_is_answered(caplog):
    async def script(desk):
        async def reload():
            raise RuntimeError("a fault of ours")

        desk.administration.reload = reload
        number, text = await desk.owner().refused("gateway.reload")
        assert number == errno.EIO
        assert "a fault of ours" not in text

    run(script)
    assert "a fault of ours" in caplog.text


def test_drain_is_the_owners_says_why_and_is_done_once():
    async def script(desk):
        owner, said = desk.owner(), []
        admin = desk.client(principal("eve", 1003, ("admin",)))
        why = {"reason": "a new version\x1b[2J"}
        assert (await owner.refused("gateway.drain", why))[0] == errno.ENOSYS
        desk.administration.leave = said.append
        assert (await owner.refused("gateway.drain"))[0] == errno.EPROTO
        assert (await admin.refused("gateway.drain", why))[0] == errno.EPERM
        assert await owner.rpc("gateway.drain", why) == {}
        desk.sessions.accepting = False
        assert await owner.rpc("gateway.drain", why) == {}
        (text,) = said
        assert "\x1b" not in text
        assert "a new version" in text

    run(script, join=False)


def test_reload_is_the_owners_and_may_take_its_time():
    async def script(desk):
        owner = desk.owner()

        async def reload():
            await asyncio.sleep(0.01)
            return {"reloaded": ["tls"]}

        desk.administration.reload = reload
        assert await owner.rpc("gateway.reload") == {"reloaded": ["tls"]}

        async def failing():
            raise RpcError(errno.EIO, "the file is bad")

        desk.administration.reload = failing
        assert await owner.refused("gateway.reload") == (errno.EIO, "the file is bad")
        desk.administration.reload = lambda: {"reloaded": []}
        assert await owner.rpc("gateway.reload") == {"reloaded": []}

    run(script, join=False)


def test_odd_requests_are_answered():
    async def script(desk):
        web = desk.client()
        assert (await web.refused("gateway.nothing"))[0] == errno.ENOSYS
        assert (await web.refused("gateway"))[0] == errno.ENOSYS
        assert (await web.refused("gateway.session", b"no json"))[0] == errno.EPROTO
        for topic in ("gateway.session", "event.subscribe", "event.publish", "service.add"):
            errnum, text = await web.refused(topic, {"topic": "a"}, flags=wire.STREAMING)
            assert (errnum, text) == (errno.EPROTO, f"{topic} has one answer, no stream")
        assert not web.session.subscriptions
        both = wire.STREAMING | wire.NORESPONSE
        assert (await web.refused("event.subscribe", {"topic": "a"}, flags=both))[0] == errno.EPROTO
        tag = web.send("event.publish", {"topic": "a"}, flags=both)
        await web.rpc("gateway.session")
        assert not web.answers(tag)

    run(script, join=False)


def test_the_owner_asks_through_the_broker():
    async def script(desk):
        web = desk.client()
        async with connect(desk.uri) as far:
            rows = (await far.rpc("gateway.sessions")).json()["sessions"]
            assert [row["session"] for row in rows] == [web.session.id]
            with pytest.raises(RpcError) as caught:
                await far.rpc("gateway.session")
            assert caught.value.errno == errno.ENOENT
            with pytest.raises(RpcError):
                await far.rpc("gateway.denied", {"limit": "x"})
            await far.rpc("gateway.end", {"session": web.session.id})
            assert web.code == 4006
            guest = wire.request("gateway.stats", userid=1001, rolemask=2)
            assert (await far.request(guest)).errnum == errno.EPERM

    run(script)


@for_each("method", ["of", "counts", "end_all"])
def test_logins_whose_store_is_away_are_refused_in_words_for_clients(method):
    class Logins:
        """One login, as far as the store can be read."""

        def of(self, _mine):
            self._answer("of")
            return [SimpleNamespace(id="a", credential="login:a", user="ada", described=dict)]

        def counts(self, _login):
            return self._answer("counts")

        def end_all(self, _logins):
            self._answer("end_all")

        def _answer(self, asked):
            if asked == method:
                raise Denied("/place/gateway.db: disk", public="try again", status=503, close=4503, errno=11)
            return True

    async def script(desk):
        desk.sessions.identity = SimpleNamespace(
            logins=Logins(), revoked=lambda _mine: False, again=lambda mine: mine
        )
        topic, payload = (
            ("gateway.logout", {"everywhere": True}) if method == "end_all" else ("gateway.logins", {})
        )
        assert await desk.client().refused(topic, payload) == (errno.EAGAIN, "try again")

    run(script, join=False)
