"""Requests that are sent again where their service is: what is kept, for how long, and who goes meanwhile."""

import asyncio
import errno

from broker.wire.message import NODEID_ANY, NORESPONSE, UPSTREAM
from gateway.sessions import any_rank_retry
from tests.unit.gateway.sessions.desk import rule, run, until

CALLS = rule(["user"], ["calc.", "broker.ping"], ["call"])


class Told:
    """What the brokers say, when the test says so."""

    def __init__(self, ranks):
        self.given, self.asked, self.doubted = ranks, [], []
        self.told = asyncio.Event()

    async def ranks(self, topic):
        self.asked.append(topic)
        await self.told.wait()
        return self.given

    def invalidate(self, name):
        self.doubted.append(name)


def before(script, ranks=(1,)):
    """``script(desk, told)`` with a gateway whose one broker has nothing but rank 0."""

    async def whole(desk):
        told = Told(list(ranks))
        desk.spy.nearby = told
        await script(desk, told)
        await until(lambda: not desk.delivery.any_rank_retry._asking)
        assert (desk.delivery.any_rank_retry.held, desk.delivery.any_rank_retry._bytes) == ({}, 0)

    run(whole, rules=[CALLS], gateway={"anywhere": True})


def nodeids(desk, topic="calc.add"):
    return [one.nodeid for one in desk.spy.requests(topic)]


def test_the_ranks_are_tried_one_after_the_other():
    async def script(desk, told):
        web = desk.client()
        told.told.set()
        answer = await web.ask("calc.add", {"n": 1})  # none of these ranks is there
        assert answer.errnum == errno.EHOSTUNREACH
        assert nodeids(desk) == [NODEID_ANY, 7]
        assert [one.payload for one in desk.spy.requests("calc.add")] == [b'{"n":1}\0'] * 2
        assert told.doubted == ["calc"]
        told.given = [0]
        assert (await web.ask("calc.add")).errnum == errno.ENOSYS
        assert nodeids(desk)[2:] == [NODEID_ANY, 0]
        assert web.session.calls.count == 0
        web.leave()
        await until(lambda: web.session.ended)
        assert sorted(nodeids(desk, "calc.disconnect")) == [0, 7, NODEID_ANY]

    before(script, ranks=[7])


def test_a_kind_that_was_answered_is_kept_no_longer():
    async def script(desk, told):
        web = desk.client()
        for _ in range(2):
            assert (await web.ask("broker.ping", {"seq": 1})).errnum == 0
        tag = web.send("broker.ping", {"seq": 2})
        assert desk.delivery.any_rank_retry.held == {}
        await web.answer(tag)
        assert told.asked == []

    before(script)


def test_what_is_no_request_to_any_rank_with_an_answer_is_left_alone():
    async def script(desk, told):
        web = desk.client()
        web.send("calc.add", flags=NORESPONSE)
        assert (await web.ask("calc.add", nodeid=0)).errnum == errno.ENOSYS
        assert (await web.ask("calc.add", nodeid=0, flags=UPSTREAM)).errnum == errno.EHOSTUNREACH
        assert (await web.ask("calc.add", matchtag=0)).errnum == errno.ENOSYS
        large = {"pad": "x" * any_rank_retry.KEPT_MESSAGE_BYTES}
        assert (await web.ask("calc.add", large)).errnum == errno.ENOSYS
        assert told.asked == []

    before(script)


def test_who_goes_while_the_brokers_are_asked_is_sent_nothing_and_nothing_is_sent_for_it():
    async def script(desk, told):
        web, other = desk.client(), desk.client()
        web.send("calc.add")
        tag = other.send("calc.add")
        await until(lambda: len(told.asked) == 2)
        web.leave()
        await until(lambda: web.session.ended)
        told.told.set()
        await other.answer(tag)
        assert nodeids(desk) == [NODEID_ANY, NODEID_ANY, 7]

    before(script, ranks=[7])


def test_a_lost_upstream_answers_what_is_kept_once():
    async def script(desk, told):
        web = desk.client()
        tag = web.send("calc.add")
        await until(lambda: told.asked)
        desk.delivery.upstream_lost("cut")
        assert [one.errnum for one in web.answers(tag)] == [errno.EHOSTUNREACH]
        told.told.set()
        await web.settled()
        assert len(web.answers(tag)) == 1

    before(script)


def test_too_many_questions_at_once_are_not_asked():
    async def script(desk, told):
        web = desk.client()
        for _ in range(any_rank_retry.ASKED_AT_ONCE):
            web.send("calc.add")
        await until(lambda: len(told.asked) == any_rank_retry.ASKED_AT_ONCE)
        assert (await web.ask("calc.add")).errnum == errno.ENOSYS
        told.told.set()
        await until(lambda: not desk.delivery.any_rank_retry.held)

    before(script, ranks=[])
