"""Links of their own for sessions that stream, in front of a stand-in for a flux-core."""

import asyncio

import pytest

from broker.errors import LinkBroken, LinkEnded
from broker.transport import registry
from broker.wire import message as wire
from broker.wire.parts import encode_part
from broker.wire.payload import encode_json as wire_json
from gateway.upstream import flux_core as module
from tests.unit.gateway.upstream.recorder import Recorder, hop, session_request, until
from tests.unit.gateway.upstream.standin import StandIn, joined

A, B = hop("a"), hop("b")
FRONT = A + wire.DELIMITER
STREAM = wire.STREAMING


class Cutting(Recorder):
    def __init__(self):
        super().__init__()
        self.cuts = []

    def fail_calls(self, front):
        self.cuts.append(front)


class Flux(StandIn):
    """Remembers by which link a request came."""

    def __init__(self):
        super().__init__(headgate=False)
        self.came = []

    def requested(self, link, message):
        if len(message.routes) > 1:
            self.came.append((message.routes[-1][:1].decode(), message.topic, message.routes[0]))
        super().requested(link, message)

    def ways(self, who):
        return [way for name, _topic, way in self.came if name == who]

    def topics(self, who):
        return [topic for name, topic, _way in self.came if name == who]


def run(script, **options):
    async def main():
        async with (
            asyncio.timeout(20),
            joined(Flux(), centre=Cutting(), **options) as (flux, centre, upstream),
        ):
            await script(flux, centre, upstream)

    asyncio.run(main())


def test_a_session_that_streams_gets_a_link_and_keeps_its_order():
    async def script(flux, centre, upstream):
        upstream.send(session_request(A, "odd.first"))
        upstream.send(session_request(B, "odd.other"))
        await until(lambda: len(flux.came) == 2, "the first calls")
        for topic, flags in (("groups.get", STREAM), ("odd.second", 0), ("odd.third", STREAM)):
            upstream.send(session_request(A, topic, matchtag=5, flags=flags))
        await until(lambda: len(flux.came) == 5, "all calls")
        assert flux.topics("a") == ["odd.first", "groups.get", "odd.second", "odd.third"]
        shared, *own = flux.ways("a")
        assert flux.ways("b") == [shared]
        assert len(set(own)) == 1
        assert own[0] != shared
        answer = await until(
            lambda: next((one for one in centre.answers if one.topic == "groups.get"), None), "it"
        )
        assert (answer.front, answer.matchtag) == (FRONT, 5)

    run(script)


def test_two_sessions_that_stream_have_two_links_and_end_alone():
    async def script(flux, centre, upstream):
        for who in (A, B):
            upstream.send(session_request(who, "groups.get", flags=STREAM))
        await until(lambda: len(flux.came) == 2, "both streams")
        (mine,), (other,) = flux.ways("a"), flux.ways("b")
        upstream.send(session_request(A, "groups.disconnect", flags=wire.NORESPONSE))
        upstream.forget(FRONT)
        await until(lambda: mine not in flux.links, "the end of the link")
        assert flux.topics("a")[-1] == "groups.disconnect"
        assert other in flux.links
        assert upstream.joined
        assert centre.cuts == []
        upstream.forget(FRONT)

    run(script)


def test_a_session_that_ends_while_its_link_is_dialled_still_says_its_notices(monkeypatch):
    async def script(flux, centre, upstream):
        upstream.send(session_request(A, "groups.get", flags=STREAM))
        upstream.send(session_request(A, "groups.disconnect", flags=wire.NORESPONSE))
        upstream.forget(FRONT)
        await until(lambda: flux.topics("a") == ["groups.get", "groups.disconnect"], "the notice")
        await until(lambda: flux.ways("a")[0] not in flux.links, "the end of the link")

    run(script)


def test_events_answers_and_plain_calls_take_the_shared_link():
    async def script(flux, centre, upstream):
        upstream.send(session_request(A, "groups.get", flags=STREAM))
        links = len(flux.links)
        upstream.send(wire.event("t.x", userid=5, rolemask=2))
        upstream.send(session_request(B, "odd.plain"))
        await until(lambda: "t.x" in centre.topics(), "the event")
        await until(lambda: len(flux.links) == links + 1, "one more link")

    run(script)


def test_what_a_session_that_streams_publishes_is_answered_behind_its_event():
    async def script(flux, centre, upstream):
        upstream.send(session_request(B, "odd.plain"))
        upstream.send(session_request(A, "groups.get", flags=STREAM))
        await until(lambda: len(flux.came) == 2, "a link of its own")
        asked = wire_json({"topic": "t.x", "flags": 0})
        upstream.send(session_request(A, "event.publish", asked, matchtag=4))
        await until(lambda: ("answered", "event.publish") in centre.told, "the answer")
        assert flux.ways("a")[1] == flux.ways("b")[0] != flux.ways("a")[0]
        assert centre.told[-2:] == [("published", [2]), ("answered", "event.publish")]

    run(script)


def test_a_link_that_ends_by_itself_cuts_its_session_only():
    async def script(flux, centre, upstream):
        upstream.send(session_request(A, "groups.get", flags=STREAM))
        await until(lambda: centre.answers, "the stream")
        flux.links[flux.ways("a")[0]].abort(LinkEnded("gone"))
        await until(lambda: centre.cuts, "the cut")
        assert centre.cuts == [FRONT]
        assert upstream.joined
        upstream.send(session_request(A, "groups.get", flags=STREAM))
        await until(lambda: len(centre.answers) == 2, "another stream")
        assert len(set(flux.ways("a"))) == 2

    run(script)


def test_with_the_upstream_all_links_end_and_no_session_is_told_twice():
    async def script(flux, centre, upstream):
        for who in (A, B):
            upstream.send(session_request(who, "groups.get", flags=STREAM))
        await until(lambda: len(centre.answers) == 2, "both streams")
        upstream.handle.link.abort(LinkEnded("cut"))
        assert not upstream.send(session_request(A, "odd.more", flags=STREAM))
        assert await upstream.wait_joined(10)
        await until(lambda: len(flux.links) == 1, "one link")
        assert (centre.cuts, centre.kinds().count("lost")) == ([], 1)

    run(script)


def test_where_no_link_can_be_had_the_shared_one_serves(monkeypatch):
    async def script(flux, centre, upstream):
        async def refuse(uri, options):
            raise LinkBroken("no more descriptors")

        monkeypatch.setattr(module, "dial", refuse)
        for topic in ("groups.get", "odd.second"):
            upstream.send(session_request(A, topic, flags=STREAM))
        await until(lambda: len(flux.came) == 2, "both calls")
        assert flux.topics("a") == ["groups.get", "odd.second"]
        assert len(flux.links) == 1
        upstream.forget(FRONT)
        assert upstream.joined

    run(script)


def test_what_a_connector_answers_without_hops_finds_its_session(monkeypatch):
    """And never meets a call of our own that happens to have the same matchtag."""

    async def script(flux, centre, upstream):
        def back(message, plain=flux.back):
            if message.topic.startswith("service."):
                message.front = encode_part(message.routes[0]) + wire.DELIMITER
            plain(message)

        monkeypatch.setattr(flux, "back", back)
        mine = asyncio.get_running_loop().create_task(upstream.handle.rpc("odd.hang"), name="mine")
        await until(lambda: "odd.hang" in flux.seen, "our own call")
        tag = max(int.from_bytes(tag, "big") for tag in upstream.handle._calls._waiting)
        for topic in ("service.add", "service.remove"):
            payload = wire_json({"service": "web"})
            upstream.send(session_request(A, topic, payload, matchtag=tag))
        await until(lambda: len(centre.answers) == 2, "both answers")
        assert [(m.front, m.matchtag, m.topic) for m in centre.answers] == [
            (FRONT, tag, "service.add"),
            (FRONT, tag, "service.remove"),
        ]
        upstream.send(session_request(A, "service.remove", payload, flags=wire.NORESPONSE))
        await upstream.handle.attr("size")
        assert not mine.done()
        mine.cancel()
        await asyncio.gather(mine, return_exceptions=True)

    run(script)


def test_links_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "LINKS_MAX", 1)

    async def script(flux, centre, upstream):
        for who in (A, B):
            upstream.send(session_request(who, "groups.get", flags=STREAM))
        await until(lambda: len(centre.answers) == 2, "both streams")
        assert len(flux.links) == 2
        assert flux.ways("a") != flux.ways("b")

    run(script)


@pytest.mark.parametrize(("bound", "most"), [("WAITING_MAX", 3), ("WAITING_MAX_BYTES", 200)])
def test_what_waits_for_a_link_is_bounded(monkeypatch, bound, most):
    monkeypatch.setattr(module, bound, most)
    ready = asyncio.Event()

    async def slowly(uri, options):
        await ready.wait()
        return await registry.dial(uri, options)

    monkeypatch.setattr(module, "dial", slowly)

    async def script(flux, centre, upstream):
        for number in range(6):
            upstream.send(session_request(A, f"odd.{number}", flags=STREAM))
        await until(lambda: len(flux.came) == 6, "all calls")
        assert flux.topics("a") == [f"odd.{number}" for number in range(6)]
        ready.set()
        await until(lambda: not upstream._deployed._dials, "the dialling")
        await until(lambda: len(flux.links) == 1, "one link")

    run(script)


def test_what_waits_for_all_links_together_is_bounded(monkeypatch):
    """Each of a thousand sessions could keep four megabytes while its link was dialled."""
    small = session_request(A, "odd.a", flags=STREAM)
    monkeypatch.setattr(module, "WAITING_MAX_BYTES", 2 * small.size - 1)
    ready = asyncio.Event()

    async def slowly(uri, options):
        await ready.wait()
        return await registry.dial(uri, options)

    monkeypatch.setattr(module, "dial", slowly)

    async def script(flux, centre, upstream):
        upstream.send(small)
        upstream.send(session_request(B, "odd.b", flags=STREAM))
        await until(lambda: flux.came, "the second session's call")
        assert [*flux.topics("a"), *flux.topics("b")] == ["odd.b"]
        ready.set()
        await until(lambda: len(flux.came) == 2, "both calls")
        assert not upstream._deployed.waiting_bytes

    run(script)


def test_a_headgate_needs_none_of_it():
    async def main():
        async with joined() as (standin, centre, upstream):
            upstream.send(session_request(A, "groups.get", flags=STREAM))
            await until(lambda: centre.answers, "the stream")
            assert len(standin.links) == 1
            upstream.forget(FRONT)

    asyncio.run(main())
