"""Subscriptions that begin with events of before, at a broker of this process."""

import asyncio
import base64
import errno
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest

import broker.client
from broker.client.past_events import past_page
from broker.errors import Missed, ProtocolError, RpcError
from broker.services import event as service
from broker.transport.link import Options
from broker.wire import message as wire
from broker.wire.event_history import FrameHistory
from broker.wire.payload import decode_json, encode_json
from tests.live.gateways import live, node, run
from tests.unit.client.peer import soon, talk

URI = "inproc://of-before"


def play(script, **connecting):
    async def main():
        with tempfile.TemporaryDirectory(prefix="hg-", dir="/tmp") as folder:
            async with (
                asyncio.timeout(20),
                node(Path(folder), URI) as running,
                broker.client.connect(URI, **connecting) as h,
            ):
                await script(h, running.broker.router.events)

    asyncio.run(main())


async def publish(h, count, topic="t.x"):
    return [await h.publish(topic, {"n": number}) for number in range(count)]


async def read(events, count):
    return [(await anext(events)).sequence for _ in range(count)]


def test_what_was_published_before_comes_first_and_what_comes_then_behind_it():
    async def script(h, _):
        before = await publish(h, 3)
        await h.publish("other", {})
        async with h.subscribe("t.", since=before[0]) as events:
            live = await publish(h, 2)
            assert await read(events, 4) == before[1:] + live
            assert events.epoch == await h.attr("broker.uuid")
            assert events.lost == 0

    play(script)


def test_pages_are_had_as_they_are_read_and_live_events_that_found_no_room_are_asked_for(monkeypatch):
    monkeypatch.setattr(service, "PAGE_MSGS", 4)

    async def script(h, _):
        before = await publish(h, 10)
        async with h.subscribe("t.", since=before[0] - 1, buffer_msgs=5) as events:
            live = await publish(h, 30)
            assert await read(events, 40) == before + live
            assert events.lost == 0
            again = await publish(h, 2)
            assert await read(events, 2) == again

    play(script)


def test_an_event_that_is_larger_than_an_answer_comes_in_pieces(monkeypatch):
    monkeypatch.setattr(service, "PAGE_BYTES", 1000)

    async def script(h, _):
        numbers = [await h.publish("t.x", {"pad": "x" * size}) for size in (10, 5000, 20)]
        async with h.subscribe("t.", since=numbers[0] - 1) as events:
            got = [await anext(events) for _ in numbers]
            assert [one.sequence for one in got] == numbers
            assert [len(one.json()["pad"]) for one in got] == [10, 5000, 20]

    play(script)


def test_pieces_of_what_is_kept_no_more_are_no_event_and_that_is_told():
    large = wire.event("t", b"x" * 3000, sequence=1).framed()
    small = wire.event("t", sequence=2).framed()

    async def script(h, peer):
        asked = soon(past_page(h, {"sequence": 0}))
        told = {"epoch": "one", "last": 2, "behind": 0, "missing": False, "rest": 2000}
        first = base64.b64encode(large[:-2000]).decode()
        peer.answer(await peer.next(), encode_json({**told, "events": first}))
        next_one = await peer.next()
        assert decode_json(next_one.payload) == {"epoch": "one", "sequence": 0, "offset": len(large) - 2000}
        told |= {"behind": 1, "missing": True, "rest": 0}
        peer.answer(next_one, encode_json({**told, "events": base64.b64encode(small).decode()}))
        page = await asked
        assert ([event.sequence for event in page.events], page.behind, page.missing) == ([2], 1, True)

    talk(script)


def test_the_last_seconds_and_positions_of_an_epoch():
    async def script(h, routing):
        before = await publish(h, 3)
        routing.history.mark(asyncio.get_running_loop().time())
        await asyncio.sleep(0.4)
        after = await publish(h, 2)
        async with h.subscribe("t.", since=timedelta(seconds=0.2)) as events:
            assert await read(events, 2) == after
            position = (events.epoch, before[1])
        async with h.subscribe("t.", since=position) as events:
            assert await read(events, 3) == [before[2], *after]

    play(script)


def test_what_is_not_kept_any_more_is_told_in_front_of_what_is():
    async def script(h, routing):
        await publish(h, 3)
        history = routing.history
        routing.history = FrameHistory(1 << 20, 0.0)
        routing.history.begin(history.epoch, history.last)
        kept = await publish(h, 2)
        async with h.subscribe("t.", since=0) as events:
            with pytest.raises(Missed, match="does not keep all"):
                await anext(events)
            assert await read(events, 2) == kept
        async with h.subscribe("t.", since=("another", kept[-1]), overflow="mark") as events:
            first = await anext(events)
            assert (first.sequence, "does not keep all" in first.missed) == (kept[0], True)

    play(script)


def test_a_rank_0_that_is_another_one_by_the_next_page_is_told(monkeypatch):
    monkeypatch.setattr(service, "PAGE_MSGS", 2)

    async def script(h, routing):
        before = await publish(h, 4)
        async with h.subscribe("t.", since=before[0] - 1) as events:
            routing.history = FrameHistory(1 << 20, 0.0)
            routing.history.begin("another", 0)
            routing.sequence = 0
            after = await publish(h, 3)
            assert await read(events, 2) == before[:2]
            with pytest.raises(Missed):
                await anext(events)
            assert await read(events, 3) == after == [1, 2, 3]

    play(script)


def test_who_keeps_none_refuses_at_the_beginning():
    async def script(h, routing):
        routing.history = None
        with pytest.raises(RpcError, match="history_bytes") as refused:
            async with h.subscribe("t.", since=0):
                pass
        assert refused.value.errno == errno.ENOSYS
        # and nothing is left behind
        async with h.subscribe("t.") as events:
            live = await publish(h, 1)
            assert await read(events, 1) == live

    play(script)


def test_numbers_that_do_not_follow_each_other_are_a_protocol_error():
    frames = b"".join(wire.event("t", sequence=number).framed() for number in (1, 2, 4))

    async def script(h, peer):
        asked = soon(past_page(h, {"sequence": 0}))
        told = {"epoch": "one", "last": 4, "behind": 0, "missing": False}
        peer.answer(await peer.next(), encode_json(told | {"events": base64.b64encode(frames).decode()}))
        with pytest.raises(ProtocolError, match="left out"):
            await asked

    talk(script)


@pytest.mark.parametrize("events", ["!", "AAAA", "EgDu/wAAACAA"])
def test_what_are_no_events_is_a_protocol_error(events):
    async def script(h, peer):
        asked = soon(past_page(h, {"sequence": 0}))
        answer = {"epoch": "one", "last": 3, "behind": 0, "missing": False, "events": events}
        peer.answer(await peer.next(), encode_json(answer))
        with pytest.raises(ProtocolError, match=r"event\.since"):
            await asked

    talk(script)


def test_over_a_gateway_they_are_what_its_user_may_have():
    async def main(folder):
        async with live(folder) as running:
            uri = running.url.replace("http", "ws", 1)
            async with broker.client.connect(f"inproc://{folder}") as owner:
                numbers = [await owner.publish(topic, {}) for topic in ("t.a", "secret.b", "t.c", "other")]
                numbers.append(await owner.publish("t.private", {}, private=True))
            for user, wanted in (("ada", [0, 1, 2, 4]), ("bob", [0, 2])):
                options = Options(extra={"token": running.tokens[user]})
                async with (
                    broker.client.connect(uri, options=options) as h,
                    h.subscribe("t.", *(["secret."] if user == "ada" else []), since=0) as events,
                ):
                    got = await read(events, len(wanted))
                    assert got == [numbers[place] for place in wanted], user
                    assert events.ready == 0

    run(main)


def page(last, numbers, behind):
    frames = b"".join(wire.event("t", sequence=number).framed() for number in numbers)
    told = {"epoch": "one", "last": last, "behind": behind, "missing": False}
    return encode_json(told | {"events": base64.b64encode(frames).decode()})


def test_who_gave_up_waiting_for_a_page_gets_it_with_the_next_try():
    async def script(h, peer):
        events = h.subscribe("t", since=0)
        entered = soon(events.__aenter__())
        peer.answer(await peer.next(), page(4, [1, 2], 0))
        await entered
        assert await read(events, 2) == [1, 2]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await anext(events)
        await peer.next()  # whose answer nobody waits for any more
        peer.event("t", sequence=5)
        again = soon(read(events, 3))
        asked = await peer.next()
        assert decode_json(asked.payload) == {"epoch": "one", "sequence": 2}
        peer.answer(asked, page(5, [3, 4, 5], 2))
        assert await again == [3, 4, 5]

    talk(script)
