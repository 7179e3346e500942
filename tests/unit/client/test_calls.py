"""Calls and matchtags (RFC 6): one response, many calls at once, timeouts, the end of the link."""

import asyncio
import errno
import math
import weakref

import pytest

from broker.client import Limits
from broker.client.calls import PendingCalls, Single
from broker.errors import HeadgateError, LinkClosed, LinkEnded, LinkError, ProtocolError, RpcError
from broker.wire import message as wire
from broker.wire.payload import encode_json, encode_text
from tests.tables import for_each
from tests.unit.client.peer import settle, soon, talk


def test_rpc_sends_what_libflux_sends():
    async def script(h, peer):
        call = soon(h.rpc("attr.get", {"name": "rank"}, nodeid=3))
        sent = await peer.next()
        assert sent.parts()[:-1] == [b"", b"attr.get", b'{"name":"rank"}\0']
        assert sent.flags == wire.TOPIC | wire.PAYLOAD | wire.ROUTE
        assert (sent.type, sent.userid, sent.rolemask, sent.nodeid) == (wire.REQUEST, 0xFFFFFFFF, 0, 3)
        assert sent.matchtag != 0
        peer.answer(sent, encode_json({"value": "3"}))
        response = await call
        assert response.json() == {"value": "3"}
        assert response.payload == b'{"value":"3"}\0'
        assert response.text == '{"value":"3"}'
        assert response.topic == "attr.get"

    talk(script)


@for_each(
    ("bad", "error"),
    [
        ("a\0b", ProtocolError),
        ("\ud83d", ProtocolError),
        ("a.\ud83d", ProtocolError),
        (5, TypeError),
        (None, TypeError),
    ],
)
def test_a_topic_that_cannot_be_sent_fails_that_call_whatever_it_is(bad, error):
    async def subscribed(h):
        async with h.subscribe(bad):
            pass

    async def streamed(h):
        async with h.stream(bad):
            pass

    async def provided(h):
        async with h.service(f"x{bad}" if isinstance(bad, str) else 5, {}):
            pass

    async def script(h, peer):
        for work in (
            h.rpc(bad),
            h.publish(bad),
            h.publish(bad, delivered=False),
            *(each(h) for each in (subscribed, streamed, provided)),
        ):
            with pytest.raises(error) as caught:
                await work
            assert getattr(caught.value, "errno", errno.EPROTO) == errno.EPROTO
        call = soon(h.rpc("attr.get", {"name": "rank"}))
        peer.answer(await peer.next(), b"{}\0")
        assert (await call).json() == {}

    talk(script)


@for_each(
    ("payload", "sent"),
    [(None, None), ("text", b"text\0"), (b"raw", b"raw"), (b"", b""), ({}, b"{}\0")],
)
def test_payloads_follow_rfc3(payload, sent):
    async def script(h, peer):
        await h.rpc("a.b", payload, noresponse=True)
        message = await peer.next()
        assert message.payload == sent
        assert message.flags & wire.NORESPONSE
        assert message.matchtag == 0

    talk(script)


def test_payload_of_another_type_is_refused_here():
    async def script(h, peer):
        with pytest.raises(TypeError, match="list"):
            await h.rpc("a.b", [1])
        assert not peer.log

    talk(script)


def test_error_response_raises_with_the_service_text_or_the_systems():
    async def script(h, peer):
        for payload, text in (
            (encode_text("no such thing"), "no such thing"),
            (None, "No such file or directory"),
        ):
            call = soon(h.rpc("x.y"))
            peer.answer(await peer.next(), payload, errnum=errno.ENOENT)
            with pytest.raises(RpcError, match=text) as caught:
                await call
            assert (caught.value.errno, caught.value.topic) == (errno.ENOENT, "x.y")

    talk(script)


def test_responses_may_come_in_any_order():
    async def script(h, peer):
        calls = [soon(h.rpc("echo.run", b"%d" % n)) for n in range(50)]
        requests = [await peer.next() for _ in calls]
        assert len({r.matchtag for r in requests}) == 50
        for request in reversed(requests):
            peer.answer(request, request.payload)
        assert [(await call).payload for call in calls] == [b"%d" % n for n in range(50)]

    talk(script)


def test_a_timeout_that_is_no_number_is_refused_and_an_endless_one_waits():
    async def script(h, peer):
        with pytest.raises(ValueError, match="nan"):
            await h.rpc("never.sent", timeout_s=math.nan)
        call = soon(h.rpc("quick.one", timeout_s=math.inf))
        request = await peer.next()
        assert request.topic == "quick.one"
        peer.answer(request, b"quick")
        assert (await call).payload == b"quick"

    talk(script)


def test_timeout_keeps_the_tag_until_its_late_response():
    async def script(h, peer):
        with pytest.raises(TimeoutError, match=r"slow.one: no response within 0.01 s"):
            await h.rpc("slow.one", timeout_s=0.01)
        late = await peer.next()
        call = soon(h.rpc("quick.one"))
        quick = await peer.next()
        assert quick.matchtag != late.matchtag
        peer.answer(late, b"late")
        peer.answer(quick, b"quick")
        assert (await call).payload == b"quick"
        assert len(h._calls) == 0
        assert h._calls.unmatched == 0

    talk(script)


def test_cancelled_caller_is_forgotten_at_its_response():
    async def script(h, peer):
        call = soon(h.rpc("x.y"))
        request = await peer.next()
        call.cancel()
        await settle()
        assert len(h._calls) == 1
        peer.answer(request)
        await settle()
        assert len(h._calls) == 0

    talk(script)


def test_response_nobody_waits_for_is_counted():
    async def script(h, peer):
        peer.answer(wire.request("x.y", matchtag=4711))
        peer.answer(wire.request("x.y", matchtag=0))
        await settle()
        assert h._calls.unmatched == 2

    talk(script)


def test_tags_wrap_skip_those_in_use_and_are_never_zero():
    async def main():
        calls = PendingCalls(10)
        busy = wire.request("a.b")
        calls.add(Single(asyncio.get_running_loop().create_future()), busy)
        assert busy.matchtag == 1
        calls._last = 0xFFFFFFFE
        tags = []
        for _ in range(3):
            message = wire.request("a.b")
            calls.add(Single(asyncio.get_running_loop().create_future()), message)
            tags.append(message.matchtag)
        assert tags == [0xFFFFFFFF, 2, 3]

    asyncio.run(main())


def test_streaming_answer_to_a_single_call_keeps_the_tag():
    async def script(h, peer):
        call = soon(h.rpc("x.y"))
        request = await peer.next()
        request.set_flags(request.flags | wire.STREAMING)
        peer.answer(request, b"one")
        assert (await call).payload == b"one"
        assert len(h._calls) == 1  # RFC 6: more may come until STREAMING is clear or errnum nonzero
        peer.answer(request, errnum=errno.ENODATA)
        await settle()
        assert len(h._calls) == 0

    talk(script)


def test_too_many_calls_are_refused_here():
    async def script(h, peer):
        futures = [h.request(wire.request("x.y")) for _ in range(3)]
        with pytest.raises(HeadgateError) as caught:
            await h.rpc("x.y")
        assert caught.value.errno == errno.EAGAIN
        for _ in futures:
            peer.answer(await peer.next())
        await asyncio.gather(*futures)
        assert not len(h._calls)

    talk(script, Limits(pending_calls=3))


def test_raw_request_returns_the_error_response_itself():
    async def script(h, peer):
        future = h.request(wire.request("x.y", b"data", nodeid=2, flags=wire.USER1))
        sent = await peer.next()
        assert (sent.payload, sent.nodeid, sent.flags & wire.USER1) == (b"data", 2, wire.USER1)
        peer.answer(sent, errnum=5)
        assert (await future).errnum == 5
        for flags in (wire.NORESPONSE, wire.STREAMING):
            with pytest.raises(ValueError, match="exactly one response"):
                h.request(wire.request("x.y", flags=flags))
        with pytest.raises(ValueError, match="exactly one response"):
            h.request(wire.event("x.y"))

    talk(script)


def test_upstream_fills_in_our_own_rank():
    async def script(h, peer):
        call = soon(h.rpc("groups.get", upstream=True))
        peer.answer(await peer.next(), encode_json({"value": "2", "flags": 1}))
        sent = await peer.next()
        assert sent.flags & wire.UPSTREAM
        assert sent.nodeid == 2
        peer.answer(sent)
        await call

    talk(script)


NO_RANKS = pytest.mark.parametrize("nodeid", [0xFFFFFFFE, 1 << 32, -1])


@NO_RANKS
def test_what_is_no_rank_is_never_sent(nodeid):
    """RFC 3, "Rank Assignment": 0xFFFFFFFE SHALL NOT appear in an encoded message."""

    async def script(h, peer):
        for ask in (h.rpc, h.attr):
            with pytest.raises(ValueError, match=f"nodeid {nodeid} is no rank"):
                await ask("a.b", nodeid=nodeid)
        for flags in ({"noresponse": True}, {"upstream": True}, {"timeout_s": 1}):
            with pytest.raises(ValueError, match="is no rank"):
                await h.rpc("a.b", nodeid=nodeid, **flags)
        with pytest.raises(ValueError, match="is no rank"):
            h.stream("a.b", nodeid=nodeid)
        assert not peer.log

    talk(script)


def test_the_brokers_end_fails_pending_calls_and_later_ones():
    async def script(h, peer):
        calls = [soon(h.rpc("x.y")) for _ in range(3)]
        await peer.next()
        peer.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [LinkEnded] * 3
        assert len({id(result) for result in results}) == 3
        with pytest.raises(LinkEnded):
            await h.rpc("x.y")
        with pytest.raises(LinkEnded):
            await h.rpc("x.y", noresponse=True)
        with pytest.raises(LinkEnded):
            h.publish_nowait("x.y")
        assert isinstance(h.ended, LinkEnded)
        assert await h.wait_ended() is h.ended

    talk(script)


def test_leaving_fails_what_others_wait_for_and_tells_the_broker():
    async def script(h, peer):
        call = soon(h.rpc("x.y"))
        raw = h.request(wire.request("x.y"))
        await peer.next()
        await h.close()
        with pytest.raises(LinkClosed):
            await call
        with pytest.raises(LinkError):
            await raw
        await h.close()
        await settle()
        assert isinstance(peer.ended, LinkEnded)

    talk(script)


def test_raw_futures_nobody_awaits_make_no_noise_at_the_end():
    async def script(h, peer):
        future = weakref.ref(h.request(wire.request("x.y")))
        peer.close()
        await settle()
        # with its end "exception was never retrieved" would have reached the loop's handler, which talk() checks
        assert future() is None

    talk(script)


def test_what_was_sent_last_is_handed_over_before_leaving():
    async def script(h, peer):
        script.peer = peer
        for n in range(3000):  # more than the far side's window of 1024
            h.publish_nowait("a.b", b"%d" % n)

    talk(script)
    assert len(script.peer.log) == 3000


def test_slow_broker_makes_callers_wait_instead_of_queueing():
    async def script(h, peer):
        peer.link.pause()
        for n in range(6000):
            h.send(wire.event("a.b", b"%d" % n))
        await settle()
        assert h.link.outbox.choked
        call = soon(h.rpc("x.y"))
        await settle()
        assert not call.done()
        assert len(h._calls) == 0
        with pytest.raises(TimeoutError):
            await h.rpc("x.z", timeout_s=0.01)
        peer.link.resume()
        for n in range(6000):
            assert (await peer.next()).payload == b"%d" % n
        peer.answer(await peer.next())
        await call

    talk(script)


def test_attributes_are_cached_when_they_cannot_change():
    async def script(h, peer):
        async def answer(value, flags):
            peer.answer(await peer.next(), encode_json({"value": value, "flags": flags}))

        for name, flags, asked in (("size", 1, 1), ("version", 0, 2)):
            for _ in range(asked):
                got, _none = await asyncio.gather(h.attr(name), answer("4", flags))
                assert got == "4"
        assert await h.size() == 4
        got, _none = await asyncio.gather(h.attr("size", nodeid=2), answer("5", 1))  # another broker's
        assert got == "5"
        assert await h.size() == 4
        assert not peer.seen

    talk(script)


def test_broken_answers_of_a_broker_are_protocol_errors():
    async def script(h, peer):
        for call in (h.attr("size"), h.publish("a.b")):
            task = soon(call)
            peer.answer(await peer.next(), encode_json({"value": 4, "seq": "x"}))
            with pytest.raises(ProtocolError, match="payload of"):
                await task

    talk(script)


def test_log_line_is_sent_as_deployed_clients_do():
    async def script(h, peer):
        logged = soon(h.log("err", "disk\n", app="my app"))
        peer.answer(await peer.next(), encode_json({"value": "3", "flags": 1}))
        await logged
        sent = await peer.next()
        assert sent.topic == "log.append"
        assert sent.payload.startswith(b"<24>1 2")
        assert b"Z 3 myapp " in sent.payload
        assert sent.payload.endswith(b" - - disk")
        await h.log("err", "two\nlines\ud800" + "x" * 9000)
        sent = await peer.next()
        assert b" - - two lines?x" in sent.payload
        assert len(sent.payload) == 2048
        with pytest.raises(ProtocolError, match="severity 'loud'"):
            await h.log("loud", "x")
        with pytest.raises(ProtocolError, match="severity 8"):
            await h.log(8, "x")

    talk(script)


def test_json_into_a_typed_shape():
    import msgspec

    class Attr(msgspec.Struct):
        value: str

    async def script(h, peer):
        for content, fails in (({"value": "3"}, False), ({"value": 3}, True), ({}, True)):
            call = soon(h.rpc("attr.get"))
            peer.answer(await peer.next(), encode_json(content))
            response = await call
            if fails:
                with pytest.raises(ProtocolError, match=r"payload of attr.get"):
                    response.json(Attr)
            else:
                assert response.json(Attr) == Attr("3")

    talk(script)
