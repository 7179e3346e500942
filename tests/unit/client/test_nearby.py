"""anywhere=True: whom it asks, which rank comes first, and what a dead provider leads to."""

import asyncio
import errno

import pytest

from broker.client.nearby import FRESH_S
from broker.errors import RpcError
from broker.wire.message import NODEID_ANY, NORESPONSE, STREAMING
from broker.wire.payload import decode_json, encode_json
from tests.tables import for_each
from tests.unit.client.peer import soon, talk


async def rank_is(peer, rank):
    asked = await peer.next()
    assert asked.topic == "attr.get"
    peer.answer(asked, encode_json({"value": str(rank), "flags": 1}))


async def told(peer, ranks, nearest, rank=5, nodeid=0):
    """The next request is for providers; answer it."""
    asked = await peer.next()
    assert (asked.topic, asked.nodeid) == ("service.providers", nodeid)
    assert decode_json(asked.payload) == {"service": "calc", "rank": rank}
    services = {"calc": ranks} if ranks else {}
    peer.answer(asked, encode_json({"services": services, "nearest": nearest}))


async def called(peer, rank, errnum=0):
    asked = await peer.next()
    assert (asked.topic, asked.nodeid, asked.payload) == ("calc.add", rank, b"x")
    peer.answer(asked, b"yes" if not errnum else None, errnum=errnum)
    return asked


def test_the_nearest_take_turns_and_are_asked_for_once():
    async def script(h, peer):
        first = soon(h.rpc("calc.add", b"x", anywhere=True))
        await rank_is(peer, 5)
        await told(peer, [1, 2, 7], 2)
        await called(peer, 1)
        assert (await first).payload == b"yes"
        for rank in (2, 1, 2):
            again = soon(h.rpc("calc.add", b"x", anywhere=True))
            await called(peer, rank)
            await again

    talk(script)


def test_what_was_told_is_asked_again_after_a_while():
    async def script(h, peer):
        now = [0.0]
        h.nearby._clock = lambda: now[0]
        for _ in range(2):
            call = soon(h.rpc("calc.add", b"x", anywhere=True))
            if not now[0]:
                await rank_is(peer, 5)
            await told(peer, [1], 1)
            await called(peer, 1)
            await call
            now[0] += FRESH_S

    talk(script)


def test_a_rank_that_no_longer_has_it_leads_to_the_next_and_to_a_new_question():
    async def script(h, peer):
        call = soon(h.rpc("calc.add", b"x", anywhere=True))
        await rank_is(peer, 5)
        await told(peer, [1, 2], 1)
        await called(peer, 1, errno.ENOSYS)
        await called(peer, 2, errno.ENOSYS)
        await told(peer, [2, 3], 1)
        await called(peer, 3)
        assert (await call).payload == b"yes"

    talk(script)


def test_what_died_under_way_is_not_sent_twice_but_asked_about():
    async def script(h, peer):
        call = soon(h.rpc("calc.add", b"x", anywhere=True))
        await rank_is(peer, 5)
        await told(peer, [1, 2], 2)
        await called(peer, 1, errno.EHOSTUNREACH)
        with pytest.raises(RpcError) as raised:
            await call
        assert raised.value.errno == errno.EHOSTUNREACH
        later = soon(h.rpc("calc.add", b"x", anywhere=True))
        await told(peer, [2], 1)
        await called(peer, 2)
        await later

    talk(script)


def test_without_an_answer_of_rank_0_the_own_broker_is_asked_and_then_any():
    async def script(h, peer):
        call = soon(h.rpc("calc.add", b"x", anywhere=True))
        await rank_is(peer, 5)
        peer.answer(await peer.next(), errnum=errno.ENOSYS)
        await told(peer, [], 0, nodeid=NODEID_ANY)
        await called(peer, NODEID_ANY)
        assert (await call).payload == b"yes"

    talk(script)


def test_a_broker_that_knows_nothing_of_this_is_no_hindrance():
    async def script(h, peer):
        call = soon(h.rpc("calc.add", b"x", anywhere=True, noresponse=True))
        await rank_is(peer, 5)
        peer.answer(await peer.next(), b"nonsense")
        peer.answer(await peer.next(), errnum=errno.ENOSYS)
        asked = await peer.next()
        assert (asked.nodeid, asked.flags & NORESPONSE) == (NODEID_ANY, NORESPONSE)
        assert await call is None

    talk(script)


def test_a_stream_goes_to_the_next_when_the_first_does_not_have_it_and_is_cancelled_there():
    async def script(h, peer):
        stream = h.stream("calc.add", b"x", anywhere=True)
        entering = soon(stream.__aenter__())
        await rank_is(peer, 5)
        await told(peer, [1, 2], 1)
        await entering
        await called(peer, 1, errno.ENOSYS)
        asked = await peer.next()
        assert (asked.nodeid, asked.flags & STREAMING) == (2, STREAMING)
        peer.answer(asked, b"one")
        assert (await anext(stream)).payload == b"one"
        await stream.cancel()
        cancel = await peer.next()
        assert (cancel.topic, cancel.nodeid) == ("calc.cancel", 2)
        assert decode_json(cancel.payload) == {"matchtag": asked.matchtag}
        peer.answer(asked, errnum=errno.ENODATA)
        await stream.__aexit__(None, None, None)

    talk(script)


def test_a_stream_that_nobody_has_ends_with_that():
    async def script(h, peer):
        stream = h.stream("calc.add", b"x", anywhere=True)
        entering = soon(stream.__aenter__())
        await rank_is(peer, 5)
        await told(peer, [1], 1)
        await entering
        await called(peer, 1, errno.ENOSYS)
        with pytest.raises(RpcError) as raised:
            await anext(stream)
        assert raised.value.errno == errno.ENOSYS
        await stream.__aexit__(None, None, None)

    talk(script)


@for_each("how", [{"nodeid": 1}, {"nodeid": 1, "upstream": True}])
def test_a_rank_beside_anywhere_makes_no_sense(how):
    async def script(h, peer):
        with pytest.raises(ValueError, match="anywhere=True chooses the rank"):
            await h.rpc("calc.add", anywhere=True, **how)
        with pytest.raises(ValueError, match="anywhere=True chooses the rank"):
            h.stream("calc.add", anywhere=True, **how)
        await asyncio.sleep(0)
        assert not peer.log

    talk(script)
