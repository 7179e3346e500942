"""Publishing and subscribing: reference counts, overlaps, overflow, the end of the link."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client import Limits
from broker.client.subscriptions import distinct
from broker.errors import LinkEnded, Overrun, RpcError
from broker.wire import message as wire
from broker.wire.payload import decode_json, encode_json
from tests.unit.client.peer import settle, soon, talk


def topics_of(peer):
    return [topic for kind, topic in peer.log]


def test_publish_asks_rank_0_and_returns_the_sequence():
    async def script(h, peer):
        for payload, private, flags in (({"a": 1}, False, 0), (None, True, 32)):
            call = soon(h.publish("t.x", payload, private=private))
            sent = await peer.next()
            assert (sent.topic, sent.nodeid) == ("event.publish", 0)
            content = decode_json(sent.payload)
            assert content.pop("payload", None) == (
                base64.b64encode(b'{"a":1}\0').decode() if payload else None
            )
            assert content == {"topic": "t.x", "flags": flags}
            peer.answer(sent, encode_json({"seq": 7}))
            assert await call == 7

    talk(script)


def test_publish_without_delivery_is_an_event_message_sent_when_there_is_room():
    async def script(h, peer):
        h.link_choked(h.link, True)
        call = soon(h.publish("t.x", "hi", private=True, delivered=False))
        await settle()
        assert not peer.seen
        h.link_choked(h.link, False)
        sent = await peer.next()
        assert (sent.type, sent.topic, sent.payload, sent.flags & wire.PRIVATE) == (
            wire.EVENT, "t.x", b"hi\0", wire.PRIVATE,
        )  # fmt: skip
        assert await call == 0

    talk(script)


def test_who_waits_for_a_delivery_hears_that_the_way_is_lost():
    async def script(h, peer):
        call = soon(h.publish("t.x", delivered=True))
        peer.answer(await peer.next(), errnum=113)
        with pytest.raises(RpcError) as caught:
            await call
        assert caught.value.errno == 113

    talk(script)


def test_publish_nowait_is_an_event_message():
    async def script(h, peer):
        h.publish_nowait("t.x", "hi", private=True)
        sent = await peer.next()
        assert (sent.type, sent.topic, sent.payload, sent.sequence) == (wire.EVENT, "t.x", b"hi\0", 0)
        assert sent.flags & wire.PRIVATE

    talk(script)


def test_events_reach_every_subscription_that_matches_once():
    async def script(h, peer):
        async with h.subscribe("a.") as short, h.subscribe("a.b") as long, h.subscribe("a.") as again:
            assert topics_of(peer) == ["event.subscribe", "event.subscribe"]
            peer.event("a.b", encode_json({"n": 1}), sequence=9, flags=wire.PRIVATE)
            peer.event("a.c", b"two\0", sequence=10)
            peer.event("b.a", sequence=11)
            await settle()
            assert (short.ready, long.ready, again.ready) == (2, 1, 2)
            event = await anext(long)
            assert (event.topic, event.sequence, event.json(), event.userid, event.rolemask, event.private) == (
                "a.b", 9, {"n": 1}, 7, 5, True,
            )  # fmt: skip
            assert (await anext(short)).sequence == 9
            assert (await anext(short)).text == "two"
        await settle()
        assert topics_of(peer)[2:] == ["event.unsubscribe", "event.unsubscribe"]

    talk(script)


def test_events_of_several_prefixes_come_once_and_in_order():
    async def script(h, peer):
        async with h.subscribe("o1", "o3", "o2", "o1.more") as events, h.subscribe("o3") as other:
            assert topics_of(peer) == ["event.subscribe"] * 3
            seen = []
            for number in range(1, 31):
                peer.event(f"o{number % 3 + 1}.more", sequence=number)
                if number % 4 == 0:  # whoever waits is woken while others come
                    seen.append((await anext(events)).sequence)
            await settle()
            seen += [(await anext(events)).sequence for _ in range(events.ready)]
            assert seen == list(range(1, 31))
            assert other.ready == 10
        await settle()
        assert topics_of(peer)[3:] == ["event.unsubscribe"] * 3

    talk(script)


def test_one_refused_prefix_of_several_leaves_nothing():
    async def script(h, peer):
        entering = soon(h.subscribe("a", "b", "c").__aenter__())
        asked = [await peer.next() for _ in range(3)]
        for request, errnum in zip(asked, (0, 12, 0), strict=True):
            peer.answer(request, errnum=errnum)
        with pytest.raises(RpcError) as caught:
            await entering
        assert (caught.value.errno, caught.value.topic) == (12, "event.subscribe 'b'")
        await settle()
        left = [decode_json(request.payload)["topic"] for request in peer.seen]
        assert sorted(left) == ["a", "c"]
        assert not h._subscriptions._by_prefix

    talk(script, auto=())


def test_the_last_one_out_unsubscribes():
    async def script(h, peer):
        async with h.subscribe("a"):
            async with h.subscribe("a"):
                pass
            await settle()
            assert topics_of(peer) == ["event.subscribe"]
        async with h.subscribe("a") as events:
            assert topics_of(peer) == ["event.subscribe", "event.unsubscribe", "event.subscribe"]
            peer.event("abc")
            assert (await anext(events)).topic == "abc"

    talk(script)


def test_two_tasks_that_subscribe_at_once_share_one_request():
    async def script(h, peer):
        first, second = h.subscribe("a"), h.subscribe("a")
        entering = [soon(s.__aenter__()) for s in (first, second)]
        request = await peer.next()
        await settle()
        assert not any(task.done() for task in entering)
        entering[0].cancel()
        await settle()
        assert not entering[1].done()
        peer.answer(request)
        await entering[1]
        peer.event("ab")
        assert (await anext(second)).topic == "ab"
        await second.__aexit__(None, None, None)
        peer.answer(await peer.next())
        await settle()
        assert topics_of(peer) == ["event.subscribe", "event.unsubscribe"]

    talk(script, auto=())


def test_refused_subscription_raises_and_leaves_nothing():
    async def script(h, peer):
        for _ in range(2):
            entering = soon(h.subscribe("a").__aenter__())
            peer.answer(await peer.next(), errnum=71)
            with pytest.raises(RpcError) as caught:
                await entering
            assert caught.value.errno == 71
        assert topics_of(peer) == ["event.subscribe"] * 2
        assert not h._subscriptions._by_prefix

    talk(script, auto=())


def test_overflow_raises_where_the_gap_is_and_goes_on():
    async def script(h, peer):
        async with h.subscribe("", buffer_msgs=2) as events, h.subscribe("") as all_events:
            for n in range(1, 6):
                peer.event("a", sequence=n)
            await settle()
            assert (await anext(events)).sequence == 1
            peer.event("a", sequence=6)
            await settle()
            assert (await anext(events)).sequence == 2
            with pytest.raises(Overrun, match="3 events") as caught:
                await anext(events)
            assert caught.value.lost == 3
            event = await anext(events)
            assert (event.sequence, event.lost) == (6, 3)
            assert events.lost == 3
            assert all_events.ready == 6
            assert all_events.lost == 0

    talk(script)


def test_overflow_is_told_even_when_nothing_follows():
    async def script(h, peer):
        async with h.subscribe("", buffer_msgs=1) as events:
            peer.event("a", sequence=1)
            peer.event("a", sequence=2)
            await settle()
            assert (await anext(events)).sequence == 1
            assert events.ready
            with pytest.raises(Overrun):
                await anext(events)
            assert not events.ready

    talk(script)


def test_overflow_can_be_marked_instead():
    async def script(h, peer):
        async with h.subscribe("", overflow="mark") as events:
            for n in range(1, 5):
                peer.event("a", sequence=n)
            await settle()
            assert [(await anext(events)).sequence for _ in range(2)] == [1, 2]
            peer.event("a", sequence=5)
            event = await anext(events)
            assert (event.sequence, event.lost) == (5, 2)

    talk(script, Limits(event_msgs=2))
    with pytest.raises(ValueError, match="overflow='drop'"):
        talk(lambda h, peer: h.subscribe("", overflow="drop"))


def test_link_end_reaches_subscribers_behind_what_came():
    async def script(h, peer):
        async with h.subscribe("a") as events:
            peer.event("a", sequence=1)
            await settle()
            peer.close()
            assert (await anext(events)).sequence == 1
            with pytest.raises(LinkEnded):
                await anext(events)
        with pytest.raises(LinkEnded):
            async with h.subscribe("a"):
                pass

    talk(script)


@given(st.lists(st.text("ab", max_size=4), min_size=1, max_size=8), st.text("ab", max_size=6))
def test_an_event_matches_one_prefix_at_most(prefixes, topic):
    kept = distinct(prefixes)
    matches = sum(topic.startswith(prefix) for prefix in kept)
    assert matches == any(topic.startswith(prefix) for prefix in prefixes)
