"""A handle over ``ws://`` whose link is lost: it comes back, goes on where it was, and says what is missing."""

import asyncio
import contextlib
import errno
import json
from datetime import timedelta

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response as Refusal

import broker.client
from broker.client import Reconnect
from broker.client.service import Service
from broker.errors import HeadgateError, LinkEnded, LinkError, LinkRefused, Missed, RpcError
from broker.rfc6455 import reconnects
from broker.wire.framing import Splitter
from broker.wire.message import REQUEST, event, request, response
from broker.wire.payload import decode_json, encode_json
from gateway.closes import MEANINGS
from tests.tables import for_each
from tests.unit.client.peer import settle, soon
from tests.unit.transport.scripted_gateway import PATIENCE_S, WELCOME, gateway, options, say

SOON = Reconnect(min_s=0.002, max_s=0.01)
HELLO = WELCOME | {"resume": "tok", "epoch": "e1", "sequence": 40}
SILENT = {"odd.hang"}


class Far:
    """A scripted gateway: welcomes, answers requests, keeps what it heard; a test says when a connection ends."""

    def __init__(self, **welcome):
        self.welcomes = [HELLO | welcome]
        self.connections, self.controls, self.asked, self.recovered = [], [], [], True
        self.refuse, self.denied, self.taken = [], [], 0
        self.arrived = asyncio.Condition()

    async def script(self, connection):
        await connection.send(say(self.welcomes[min(len(self.connections), len(self.welcomes) - 1)]))
        await self._note(self.connections, connection)
        splitter = Splitter()
        with contextlib.suppress(ConnectionClosed):
            async for data in connection:
                if isinstance(data, str):
                    await self._control(connection, json.loads(data))
                    continue
                for message in splitter.feed(data):
                    if message.type == REQUEST:
                        await self._answer(connection, message)

    async def _control(self, connection, obj):
        await self._note(self.controls, obj)
        if obj["type"] == "resume":
            missed = [43, 44] if obj["subscriptions"] and self.recovered else []
            for number in missed:
                await connection.send(event("job.x", sequence=number).framed())
            outcome = {"recovered": self.recovered, "epoch": "e1", "sequence": 50, "denied": self.denied}
            await connection.send(say({"type": "resumed", "replayed": len(missed), **outcome}))

    async def _answer(self, connection, message):
        topic = message.topic
        if topic not in SILENT:
            taken = topic == "service.add" and self.taken > 0
            self.taken -= taken
            body = encode_json({"sequence": 42}) if topic == "event.subscribe" else None
            await connection.send(response(message, body, errnum=errno.EEXIST if taken else 0).framed())
        await self._note(self.asked, (topic, decode_json(message.payload) if message.payload else None))

    async def _note(self, row, what):
        async with self.arrived:
            row.append(what)
            self.arrived.notify_all()

    async def until(self, true):
        async with asyncio.timeout(PATIENCE_S), self.arrived:
            await self.arrived.wait_for(true)

    async def lose(self, code=None):
        """End the newest connection: with a close code, or without a word."""
        if code is None:
            self.connections[-1].transport.abort()
        else:
            await self.connections[-1].close(code)

    def upgrade(self, _connection, _request):
        return self.refuse.pop(0) if self.refuse else None


def play(work, far=None, reconnect=SOON, **extra):
    async def main():
        async with asyncio.timeout(PATIENCE_S):
            stage = far() if far else Far()
            async with (
                gateway(stage.script, answer=stage.upgrade) as uri,
                broker.client.connect(uri, options=options(**extra), reconnect=reconnect) as handle,
            ):
                await work(handle, stage)

    asyncio.run(main())


def resumes(far):
    return [each for each in far.controls if each["type"] == "resume"]


def test_events_go_on_from_the_last_one_that_came():
    async def work(h, far):
        async with h.subscribe("job.") as events:
            await far.connections[0].send(event("job.a", sequence=42).framed())
            assert (await anext(events)).sequence == 42
            await far.lose()
            assert [(await anext(events)).sequence for _ in range(2)] == [43, 44]
            assert resumes(far) == [
                {"type": "resume", "token": "tok", "epoch": "e1", "sequence": 42, "subscriptions": ["job."]}
            ]
            await far.connections[1].send(event("job.b", sequence=51).framed())
            assert (await anext(events)).sequence == 51
            await far.lose(4000)
            await far.until(lambda: len(resumes(far)) == 2)
            assert resumes(far)[1]["sequence"] == 51
            assert [topic for topic, _ in far.asked] == ["event.subscribe"], "once, over the first link"

    play(work)


def test_where_the_program_wanted_to_go_on_is_for_the_first_link():
    """Said again over another one it was followed by a second resume, which ended the connection for good."""
    old = {"token": "old", "epoch": "e1", "sequence": 7, "subscriptions": []}

    async def work(h, far):
        async with h.subscribe("job."):
            await far.lose()
            await far.until(lambda: len(far.connections) == 2 and len(resumes(far)) > 1)
            assert [each["sequence"] for each in resumes(far)] == [7, 42]

    play(work, resume=old)


def test_a_first_subscription_may_begin_with_events_of_before():
    async def work(h, far):
        async with h.subscribe("job.", since=("e1", 42)) as events:
            assert events.epoch == "e1"
            assert [(await anext(events)).sequence for _ in range(2)] == [43, 44]
            assert resumes(far) == [
                {"type": "resume", "epoch": "e1", "sequence": 42, "subscriptions": ["job."]}
            ]
            await far.connections[0].send(event("job.b", sequence=51).framed())
            assert (await anext(events)).sequence == 51
            with pytest.raises(RpcError) as second:
                async with h.subscribe("log.", since=3):
                    pass
            assert second.value.errno == errno.EBUSY
            # one without goes on as ever, and both over the next link
            async with h.subscribe("log."):
                await far.lose()
                await far.until(lambda: len(resumes(far)) == 2)
                assert (resumes(far)[1]["sequence"], resumes(far)[1]["subscriptions"]) == (
                    51,
                    ["job.", "log."],
                )

    play(work)


def test_a_number_alone_is_one_of_the_gateways_epoch_and_a_time_is_none():
    async def work(h, far):
        with pytest.raises(RpcError) as refused:
            async with h.subscribe("job.", since=timedelta(seconds=5)):
                pass
        assert refused.value.errno == errno.EOPNOTSUPP
        far.recovered = False
        async with h.subscribe("job.", since=7) as events:
            assert resumes(far)[0]["epoch"] == "e1"
            with pytest.raises(Missed, match="cannot give all of what was published since"):
                await anext(events)

    play(work)


def test_a_prefix_that_is_denied_is_told_to_who_iterates():
    async def work(h, far):
        far.denied = ["job."]
        async with h.subscribe("job.", since=("e1", 42)) as events:
            with pytest.raises(RpcError) as denied:
                while True:
                    await anext(events)
            assert denied.value.errno == errno.EPERM

    play(work)


def test_a_link_that_is_lost_before_events_of_before_have_come_fails_it():
    class Mute(Far):
        async def _control(self, connection, obj):
            await self._note(self.controls, obj)

    async def work(h, far):
        entering = soon(h.subscribe("job.", since=("e1", 42)).__aenter__())
        await far.until(lambda: resumes(far))
        await far.lose()
        with pytest.raises(LinkError):
            await entering

    play(work, far=Mute)


def test_a_subscription_begins_behind_its_answer():
    async def work(h, far):
        async with h.subscribe("job."):
            await far.lose()
            await far.until(lambda: resumes(far))
            assert resumes(far)[0]["sequence"] == 42, "what was before the subscription is not missed"

    play(work)


@for_each("overflow", ["raise", "mark"])
def test_what_cannot_be_replayed_is_named(overflow):
    async def work(h, far):
        far.recovered = False
        async with h.subscribe("job.", overflow=overflow) as events:
            await far.lose()
            await far.until(lambda: resumes(far))
            await far.connections[1].send(event("job.b", sequence=51).framed())
            if overflow == "raise":
                with pytest.raises(Missed, match="cannot give all"):
                    await anext(events)
            found = await anext(events)
            assert (found.sequence, bool(found.missed)) == (51, overflow == "mark")

    play(work)


def test_what_the_gateway_lost_is_named():
    async def work(h, far):
        async with h.subscribe("job.") as events:
            for said in (
                {"type": "gap", "lost": 3, "from": 1, "to": 9},
                {"type": "upstream", "joined": True, "epoch": "e1", "lost": None},
            ):
                await far.connections[0].send(say(said))
                with pytest.raises(Missed):
                    await anext(events)

    play(work)


def test_without_an_epoch_prefixes_are_asked_for_anew_and_the_gap_is_named():
    async def work(h, far):
        async with h.subscribe("job.") as events:
            await far.lose()
            with pytest.raises(Missed):
                await anext(events)
            await far.until(lambda: [topic for topic, _ in far.asked] == ["event.subscribe"] * 2)
            assert not resumes(far)

    play(work, lambda: Far(epoch=None))


def test_a_prefix_that_is_not_given_any_more():
    async def work(h, far):
        far.denied = ["job."]
        async with h.subscribe("job.") as events, h.subscribe("log.") as others:
            await far.lose()
            with pytest.raises(RpcError) as caught:
                while True:
                    await anext(events)
            assert caught.value.errno == errno.EPERM
            await far.connections[1].send(event("log.b", sequence=51).framed())
            assert (await anext(others)).sequence == 51

    play(work)


def test_calls_that_wait_fail_and_later_ones_wait():
    async def work(h, far):
        waiting = soon(h.rpc("odd.hang"))
        await far.until(lambda: far.asked)
        far.refuse = [Refusal(503, "Busy", far.connections[0].request.headers, b"")]
        await far.lose()
        with pytest.raises(LinkError) as caught:
            await waiting
        assert caught.value.errno == errno.ECONNRESET
        assert h.ended is None
        with pytest.raises(LinkEnded, match="not there yet"):
            h.publish_nowait("job.x")
        assert (await h.rpc("echo.run", timeout_s=PATIENCE_S)).errnum == 0
        assert len(far.connections) == 2

    play(work)


def test_requests_that_are_held_are_bounded_and_those_nobody_wants_stay_here():
    async def work(h, far):
        waiting = soon(h.rpc("odd.hang"))
        await far.until(lambda: far.asked)
        far.asked.clear()
        await far.lose()
        with pytest.raises(LinkError):
            await waiting
        message = broker.wire.message.request
        held = [h.request(message("held.one")) for _ in range(broker.client.connection.HELD_MAX)]
        held[0].cancel()
        beyond = await h.request(message("held.one"))
        assert beyond.errnum == errno.EAGAIN
        async with h.stream("held.stream") as stream:
            await stream.cancel()
        assert {(await each).errnum for each in held[1:]} == {0}
        assert [topic for topic, _ in far.asked] == ["held.one"] * (len(held) - 1)

    play(work)


def test_services_are_registered_again_also_when_the_name_is_free_later_only(monkeypatch):
    monkeypatch.setattr(broker.client.service, "TAKEN_S", 0.001)

    async def work(h, far):
        far.taken = 0
        async with h.service("calc", {"add": lambda request: {}}):
            far.taken = 2
            await far.lose()
            await far.until(lambda: [topic for topic, _ in far.asked].count("service.add") == 4)
            assert h.ended is None

    play(work)


class Names:
    """A link on which names are registered, as services see it."""

    ended = None

    def __init__(self):
        self.asked = []

    def send(self, message):
        raise AssertionError("nobody asks here")

    def request(self, message):
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]


def test_a_name_is_not_asked_for_twice_when_the_link_is_lost_before_the_next_try(monkeypatch):
    """The second answer was EEXIST, by ourselves, and after all tries the service heard nothing any more."""
    monkeypatch.setattr(broker.client.service, "TAKEN_S", 0.0)

    async def work():
        link = Names()
        services = broker.client.service.Services(link)
        service = Service("calc", link, 1, 1)
        services.attach(service)
        service.registered = True
        services.restore()
        link.asked[0].set_result(response(request("service.add"), errnum=errno.EEXIST))
        await asyncio.sleep(0)
        services.link_ended()
        services.restore()
        await settle()
        assert len(link.asked) == 2

    asyncio.run(work())


@for_each("code", [4500, 4506, 1000])
def test_the_gateway_is_believed_when_it_says_never(code):
    async def work(h, far):
        await far.lose(code)
        assert f"close code {code}" in str(await h.wait_ended())
        with pytest.raises(LinkEnded):
            await h.rpc("echo.run")

    play(work)


def test_a_refusal_at_the_door_is_the_end_when_another_attempt_would_be_refused_too():
    async def work(h, far):
        headers = far.connections[0].request.headers
        far.refuse = [Refusal(503, "Busy", headers, b""), Refusal(401, "Who", headers, b"")]
        await far.lose()
        error = await h.wait_ended()
        assert isinstance(error, LinkRefused)
        assert "401" in str(error)

    play(work)


def test_it_can_be_turned_off():
    async def work(h, far):
        await far.lose(4000)
        assert (await h.wait_ended()).errno == errno.ESHUTDOWN

    play(work, reconnect=False)


def test_leaving_while_away_ends_the_attempts():
    async def work(h, far):
        waiting = soon(h.rpc("odd.hang"))
        await far.until(lambda: far.asked)
        await far.lose()
        with pytest.raises(LinkError):
            await waiting
        await h.close()
        assert len(far.connections) == 1

    play(work, reconnect=Reconnect(min_s=600, max_s=600))


def test_both_sides_mean_the_same_close_codes():
    assert {code: reconnects(code) for code in MEANINGS} == {
        code: meaning.reconnect for code, meaning in MEANINGS.items()
    }


async def _refused(h, match="first subscription"):
    with pytest.raises(HeadgateError, match=match):
        async with asyncio.timeout(2), h.subscribe("job.", since=("e1", 42)):
            pass


def test_events_of_before_are_refused_where_the_gateway_was_asked_for_something_already():
    """Asked all the same, a gateway ends the connection for good, and a link that is lost never answers."""

    class Slow(Far):
        async def _answer(self, connection, message):
            await asyncio.sleep(0.05)
            await super()._answer(connection, message)

    async def work(h, far):
        first = h.subscribe("log.")
        entering = soon(first.__aenter__())
        await settle()
        await _refused(h)
        await entering
        await first.__aexit__(None, None, None)

    play(work, far=Slow)

    async def lost(h, far):
        await far.lose()
        while not h._lost:
            await asyncio.sleep(0)
        await _refused(h, "without a close frame")
        await far.until(lambda: resumes(far))
        await _refused(h)
        assert len(resumes(far)) == 1
        await h.close()
        await _refused(h, "client is done")

    play(lost)
