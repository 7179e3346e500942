"""Streaming calls (RFC 6, "Streaming Responses", "Cancellation")."""

import errno

import pytest

from broker.client import Limits
from broker.errors import LinkEnded, Overrun, RpcError
from broker.wire import message as wire
from broker.wire.payload import decode_json
from tests.tables import for_each
from tests.unit.client.peer import settle, soon, talk


async def collect(stream, into):
    async for response in stream:
        into.append(response.payload)


def test_stream_ends_normally_at_enodata():
    async def script(h, peer):
        got = []
        async with h.stream("log.dmesg", {"follow": False}, nodeid=1) as s:
            request = await peer.next()
            assert request.flags & wire.STREAMING
            assert request.nodeid == 1
            assert request.matchtag
            for n in range(3):
                peer.answer(request, b"%d" % n)
            peer.answer(request, errnum=errno.ENODATA)
            await collect(s, got)
            await collect(s, got)  # an ended stream stays ended
        assert got == [b"0", b"1", b"2"]
        await settle()
        assert not peer.seen, "a stream that has ended is not cancelled"
        assert not len(h._calls)

    talk(script)


@for_each("errnum", [errno.EPERM, errno.ECANCELED])
def test_stream_raises_other_errors_behind_what_came(errnum):
    async def script(h, peer):
        got = []
        async with h.stream("x.y") as s:
            request = await peer.next()
            peer.answer(request, b"one")
            peer.answer(request, b"no way\0", errnum=errnum)
            with pytest.raises(RpcError, match="no way") as caught:
                await collect(s, got)
            assert caught.value.errno == errnum
        assert got == [b"one"]

    talk(script)


@for_each("errnum", [errno.ENODATA, errno.ECANCELED])
def test_cancel_is_sent_as_rfc6_says_and_ends_the_stream(errnum):
    async def script(h, peer):
        async with h.stream("kvs.watch.lookup", nodeid=2) as s:
            request = await peer.next()
            await s.cancel()
            await s.cancel()
            cancel = await peer.next()
            assert cancel.topic == "kvs.cancel"
            assert decode_json(cancel.payload) == {"matchtag": request.matchtag}
            assert cancel.flags & wire.NORESPONSE
            assert (cancel.nodeid, cancel.matchtag) == (2, 0)
            peer.answer(request, b"on its way already")
            peer.answer(request, errnum=errnum)
            got = []
            await collect(s, got)
            assert got == [b"on its way already"]
        await settle()
        assert not peer.seen

    talk(script)


def test_cancel_topic_can_be_another():
    async def script(h, peer):
        async with h.stream("job-info.eventlog-watch", cancel_topic="job-info.eventlog-watch-cancel"):
            await peer.next()
        assert (await peer.next()).topic == "job-info.eventlog-watch-cancel"

    talk(script)


def test_leaving_early_cancels_and_late_responses_meet_nobody():
    async def script(h, peer):
        async with h.stream("x.y", nodeid=1, upstream=True) as s:
            request = await peer.next()
            peer.answer(request, b"one")
            assert (await anext(s)).payload == b"one"
        cancel = await peer.next()
        assert cancel.flags & wire.UPSTREAM
        peer.answer(request, b"late")
        await settle()
        assert len(h._calls) == 1
        call = soon(h.rpc("x.z"))
        other = await peer.next()
        assert other.matchtag != request.matchtag
        peer.answer(request, errnum=errno.ENODATA)
        peer.answer(other, b"mine")
        assert (await call).payload == b"mine"
        assert not len(h._calls)

    talk(script)


def test_upstream_stream_needs_a_rank():
    async def script(h, peer):
        with pytest.raises(ValueError, match="nodeid"):
            h.stream("x.y", upstream=True)

    talk(script)


def test_unflagged_answer_ends_a_stream():
    async def script(h, peer):
        got = []
        async with h.stream("x.y") as s:
            peer.answer(await peer.next(), b"all of it", streaming=False)
            await collect(s, got)
        assert got == [b"all of it"]

    talk(script)


@pytest.mark.parametrize("limits", [Limits(stream_msgs=5), Limits(stream_bytes=150)])
def test_slow_reader_is_told_and_others_are_not_stalled(limits):
    async def script(h, peer):
        async with h.stream("x.y") as s:
            request = await peer.next()
            for n in range(30):
                peer.answer(request, b"%d" % n)
            await settle()
            call = soon(h.rpc("other.call"))
            cancel = await peer.next()
            assert cancel.topic == "x.cancel"
            peer.answer(await peer.next(), b"quick")
            assert (await call).payload == b"quick"
            got = []
            with pytest.raises(Overrun, match=r"x.y") as caught:
                await collect(s, got)
            assert caught.value.errno == errno.ENOBUFS
            assert got == [b"%d" % n for n in range(len(got))]
            assert 1 <= len(got) <= 5
            assert len(got) + caught.value.lost == 30
        peer.answer(request, errnum=errno.ENODATA)
        await settle()
        assert not len(h._calls)

    talk(script, limits)


def test_one_response_larger_than_the_buffer_is_delivered():
    async def script(h, peer):
        async with h.stream("x.y") as s:
            request = await peer.next()
            peer.answer(request, bytes(1000))
            assert len((await anext(s)).payload) == 1000
            peer.answer(request, errnum=errno.ENODATA)

    talk(script, Limits(stream_bytes=100))


def test_link_end_ends_a_stream_behind_what_came():
    async def script(h, peer):
        async with h.stream("x.y") as s:
            peer.answer(await peer.next(), b"one")
            await settle()
            peer.close()
            got = []
            with pytest.raises(LinkEnded):
                await collect(s, got)
            assert got == [b"one"]
        with pytest.raises(LinkEnded):
            async with h.stream("x.y"):
                pass

    talk(script)


def test_two_readers_at_once_are_a_mistake():
    async def script(h, peer):
        async with h.stream("x.y") as s:
            request = await peer.next()
            first = soon(anext(s))
            await settle()
            with pytest.raises(RuntimeError, match="one consumer at a time"):
                await anext(s)
            peer.answer(request, b"one")
            assert (await first).payload == b"one"
            peer.answer(request, errnum=errno.ENODATA)

    talk(script)
