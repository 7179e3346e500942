"""The centre of a gateway: who may open a session, what a client is welcomed with, refusals, and how all leave."""

import asyncio
import errno
import logging
import os
import signal

import pytest

from broker.wire.message import request
from gateway.administration.denials import DENIED_MAX
from gateway.closes import ENDED, INTERNAL, REVOKED
from gateway.principal import Denied
from gateway.process import Leaving
from gateway.sessions.decisions import Decision
from tests.unit.gateway.sessions.desk import principal, rule, run, until


def refusal(desk, **options):
    with pytest.raises(Denied) as caught:
        desk.client(**options)
    return caught.value.status, caught.value.close


def test_connections_are_bounded_in_all_and_per_user():
    async def script(desk):
        first = desk.client()
        desk.client()
        assert refusal(desk) == (429, 4504)
        desk.client(principal("eve", 1002))
        assert refusal(desk, who=principal("bob", 1003)) == (503, 4005)
        first.session.close(1000, "bye")
        desk.client()
        assert dict(desk.sessions.counters.refusals) == {"flux.v1: 429": 1, "flux.v1: 503": 1}

    run(script, limits={"connections": 3, "connections_per_user": 2}, join=False)


def test_what_waits_for_a_user_is_charged_over_all_its_connections():
    async def script(desk):
        mine, too, other = desk.client(), desk.client(), desk.client(principal("eve", 1002))
        accounts = [each.near.outbox.account for each in (mine, too, other)]
        assert accounts[0] is accounts[1]
        assert accounts[0] is not accounts[2]

    run(script, join=False)


def test_places_of_all_processes_count():
    async def script(desk):
        class Elsewhere:
            def __init__(self):
                self.own = 0

            def acquire(self, user, limit):
                self.own += limit > 5
                return limit > 5

            def release(self, user):
                self.own -= 1

        places = desk.sessions.peers = Elsewhere()
        web = desk.client()
        assert places.own == 1
        web.session.close(1000, "bye")
        web.session.detach("twice")
        assert places.own == 0
        desk.client(kind="http")
        assert places.own == 0
        for kind in ("sse", "ndjson"):
            desk.client(kind=kind)
        assert places.own == 2

    run(script, limits={"connections_per_user": 6}, join=False)


def test_a_limit_that_may_not_be_reached_says_come_back():
    async def script(desk):
        class Full:
            def acquire(self, user, limit):
                return False

            def uncertain(self, user):
                return user == "ada"

        desk.sessions.peers = Full()
        assert refusal(desk) == (429, 4005)
        assert refusal(desk, who=principal("eve", 1002)) == (429, 4504)

    run(script, join=False)


def test_exchanges_of_a_user_are_bounded_apart():
    async def script(desk):
        desk.client(kind="http")
        assert refusal(desk, kind="http") == (429, 4504)
        desk.client()

    run(script, limits={"connections_per_user": 1}, join=False)


def test_the_welcome_says_who_and_what_and_where_events_are():
    async def script(desk):
        web, owner = desk.client(principal(expires=5e9)), desk.owner()
        said = web.session.welcome()
        token = said.pop("resume")
        assert token.startswith(web.session.id)
        assert said == {
            "type": "welcome",
            "session": web.session.id,
            "user": "ada",
            "userid": 1001,
            "roles": ["user"],
            "limits": {
                "message_bytes": 1 << 20,
                "in_flight": 256,
                "msgs_per_s": 2000.0,
                "subscriptions": 256,
                "services": 16,
            },
            "epoch": desk.node.context.uuid,
            "sequence": desk.delivery.history.last,
            "server": "headgate/0.1.0",
            "upstream": {
                "joined": True,
                "rank": 0,
                "size": 1,
                "version": desk.upstream.version,
            },
            "ping_s": 25.0,
            "expires": 5e9,
        }
        assert owner.session.welcome()["limits"]["msgs_per_s"] == 0

    run(script)


def test_hops_are_secret_and_of_one_connection_each():
    async def script(desk):
        fronts = {desk.client(kind="http").session.front for _ in range(50)}
        assert len(fronts) == 50
        assert {len(front) for front in fronts} == {34}

    run(script, join=False)


def test_refusals_are_kept_and_logged_within_bounds(caplog):
    async def script(desk):
        now = desk.sessions.clock()
        desk.sessions.clock = lambda: now
        web = desk.client()
        for n in range(DENIED_MAX + 10):
            desk.administration.deny(web.session, "call", f"a.{n}", "no")
        assert len(desk.administration.denials.ring) == DENIED_MAX
        assert desk.administration.denials.ring[0]["topic"] == "a.10"
        assert desk.sessions.counters.denied == DENIED_MAX + 10
        assert len(caplog.records) == 10
        desk.sessions.clock = lambda: now + 1
        desk.administration.deny(web.session, "call", "b", "no")
        assert caplog.messages[-1] == f"denied ada at 192.0.2.7 (call): no (and {DENIED_MAX} more)"

    with caplog.at_level(logging.WARNING, "headgate"):
        run(script, join=False)


def test_leaving_tells_everybody_and_spreads_the_closes():
    async def script(desk):
        webs = [desk.client() for _ in range(4)]
        drained = asyncio.get_running_loop().create_task(desk.sessions.drain(0.2), name="drain")
        calling = desk.client(kind="http")
        await asyncio.sleep(0)
        assert [web.told("shutdown") for web in webs] == [[{"type": "shutdown", "in_s": 0.2}]] * 4
        assert [web.code for web in webs] == [4000, None, None, None]
        assert refusal(desk) == (503, 4000)
        await drained
        assert [web.code for web in webs] == [4000] * 4
        assert list(desk.sessions.by_id.values()) == [calling.session]

    run(script, join=False)


def test_stopping_ends_all_at_once_and_its_tasks():
    async def script(desk):
        web = desk.client()
        desk.sessions.tasks.spawn("sleeper", asyncio.sleep(60))
        await desk.sessions.stop()
        await desk.sessions.stop()
        assert web.code == 4000
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "sleeper"]

    run(script, join=False)


def test_a_fault_with_one_session_keeps_no_other_from_hearing_of_the_loss(caplog):
    def broken(_message):
        raise RuntimeError("a fault of ours")

    async def script(desk):
        first, second = desk.client(), desk.client()
        asked = request("a.b")
        first.session.calls.add(asked.tag, Decision(None, asked.topic_part, asked.head))
        first.session.link.send = broken  # where the answer goes
        desk.delivery.upstream_lost("gone")
        assert (first.code, second.code) == (4001, None)
        assert second.told("upstream")[0]["joined"] is False
        assert desk.sessions.counters.faults == 1

    run(script, join=False, faults=1)
    assert "a fault of ours" in caplog.text


def test_a_fault_with_one_session_keeps_no_other_from_hearing_that_the_gateway_leaves(caplog):
    def broken(_obj):
        raise RuntimeError("a fault of ours")

    async def script(desk):
        first, second = desk.client(), desk.client()
        first.near.tell = broken
        await desk.sessions.drain(0)
        assert (first.code, second.code) == (INTERNAL, 4000)
        assert second.told("shutdown")

    run(script, join=False, faults=1)
    assert "a fault of ours" in caplog.text


def test_a_fault_while_affairs_are_settled_leaves_no_connection_open(caplog):
    def broken(_session):
        raise RuntimeError("a fault of ours")

    async def script(desk):
        web = desk.client()
        desk.delivery.registrations.remove_session = broken
        desk.sessions.each(lambda session: session.close(ENDED, "enough"))
        await until(lambda: web.ended is not None)
        assert (web.code, desk.sessions.by_id) == (ENDED, {})

    run(script, join=False, faults=1)
    assert "a fault of ours" in caplog.text


def test_a_fault_with_a_control_object_is_counted_and_said(caplog):
    def broken(_obj):
        raise RuntimeError("a fault of ours")

    async def script(desk):
        web = desk.client()
        web.near.tell = broken
        web.session.control({"type": "ping"})
        assert (web.code, desk.sessions.counters.faults) == (INTERNAL, 1)

    run(script, join=False, faults=1)
    assert "a fault of ours" in caplog.text


def test_a_fault_with_one_registration_keeps_no_other_call_from_being_answered(caplog):
    def broken(_message):
        raise RuntimeError("a fault of ours")

    async def script(desk):
        first, second = desk.client(), desk.client()
        desk.upstream.send = lambda _message: True  # nobody answers
        first.send("service.add", {"service": "1001-x"})
        tag = second.send("service.add", {"service": "1001-y"})
        await until(lambda: second.session.adding)
        first.session.link.send = broken
        desk.delivery.upstream_lost("gone")
        assert (await second.answer(tag)).errnum == errno.EHOSTUNREACH
        assert (first.code, second.code) == (INTERNAL, None)

    rules = [rule(["user"], ["1001-"], ["register"])]
    run(script, rules=rules, join=False, faults=1)
    assert "a fault of ours" in caplog.text


def test_a_fault_with_one_session_leaves_no_other_its_old_rights(caplog):
    async def script(desk):
        first, second = desk.client(), desk.client()

        class Identity:
            def again(self, mine):
                if mine is first.session.principal:
                    raise RuntimeError("a fault of ours")

        desk.sessions.identity = Identity()
        desk.administration.set_access(desk.sessions.access)
        assert (first.code, second.code) == (INTERNAL, REVOKED)

    run(script, join=False, faults=1)
    assert "a fault of ours" in caplog.text


def test_a_fault_with_one_session_leaves_no_other_its_revoked_credential(caplog):
    async def script(desk):
        first, second = desk.client(), desk.client(principal("bob", 1003))

        class Identity:
            def revoked(self, mine):
                if mine is first.session.principal:
                    raise RuntimeError("a fault of ours")
                return True

        desk.sessions.identity = Identity()
        desk.sessions.revoked()
        assert (first.code, second.code) == (INTERNAL, REVOKED)

    run(script, join=False, faults=1)
    assert "a fault of ours" in caplog.text


async def test_a_fault_while_reloading_on_a_signal_is_logged(caplog):
    class Broken:
        async def reload(self):
            raise RuntimeError("a fault of ours")

        async def stop(self):
            """Nothing runs."""

    async with Leaving(Broken()):
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(20):
            while "reload failed" not in caplog.text:
                await asyncio.sleep(0.01)


def test_a_failing_task_is_logged_and_costs_nothing_else(caplog):
    async def fail():
        raise RuntimeError("boom")

    async def script(desk):
        desk.sessions.tasks.spawn("bad", fail())
        await asyncio.sleep(0.01)
        assert "task bad failed" in caplog.messages

    run(script, join=False)


def test_events_that_never_came_are_counted():
    async def script(desk):
        for changed, missed in ((False, 3), (False, None), (True, 7), (False, 2)):
            desk.delivery.upstream_joined(changed, missed)
        assert desk.sessions.counters.plain()["missed"] == 5

    run(script, join=False)
