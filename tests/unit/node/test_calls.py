"""The broker's own calls: matchtags, streams, cancellation."""

import errno

from broker.wire.message import NODEID_ANY, NORESPONSE, STREAMING, UPSTREAM, response
from tests.unit.node.desk import Desk, run, ticks


def test_a_call_is_answered_once_and_its_tag_is_free_again():
    async def script():
        desk = Desk()
        service, got = desk.peer(services=["echo"]), []
        desk.broker.calls.call("echo.x", b"p", got.append, nodeid=NODEID_ANY)
        await ticks()
        (asked,) = service.requests
        assert (asked.payload, asked.userid, asked.rolemask) == (b"p", desk.broker.own.cred.userid, 5)
        service.say(response(asked, b"1"), response(asked, b"2"))
        assert [m.payload for m in got] == [b"1"]
        assert not desk.broker.calls._open

    run(script())


def test_a_stream_goes_on_until_an_error():
    async def script():
        desk = Desk()
        service, got = desk.peer(services=["echo"]), []
        desk.broker.calls.call("echo.x", None, got.append, nodeid=NODEID_ANY, flags=STREAMING)
        await ticks()
        asked = service.requests[0]
        service.say(response(asked), response(asked), response(asked, errnum=errno.ENODATA), response(asked))
        assert [m.errnum for m in got] == [0, 0, errno.ENODATA]

    run(script())


def test_nobody_listens_means_noresponse():
    async def script():
        desk = Desk()
        service = desk.peer(services=["echo"])
        desk.broker.calls.call("echo.x", None, None, nodeid=NODEID_ANY)
        await ticks()
        assert (service.requests[0].matchtag, service.requests[0].flags & NORESPONSE) == (0, NORESPONSE)

    run(script())


def test_cancelling_a_stream_tells_its_provider_the_way_the_call_went():
    """Found here: the cancel of a call to the parent (UPSTREAM) went to this broker's own service."""

    async def script():
        desk = Desk()
        service, got = desk.peer(services=["echo"]), []
        plain = desk.broker.calls.call("echo.x", None, got.append, nodeid=NODEID_ANY)
        stream = desk.broker.calls.call("echo.a.b", None, got.append, nodeid=7, flags=STREAMING | UPSTREAM)
        plain.cancel()
        stream.cancel()
        stream.cancel()
        await ticks()
        assert [m.topic for m in service.requests] == ["echo.x", "echo.a.b", "echo.a.cancel"]
        cancel = service.requests[2]
        assert cancel.payload == b'{"matchtag":%d}\0' % stream.matchtag
        assert (cancel.flags & UPSTREAM, cancel.nodeid, cancel.flags & NORESPONSE) == (
            UPSTREAM,
            7,
            NORESPONSE,
        )
        service.say(*(response(m) for m in service.requests))
        assert got == []

    run(script())


def test_tags_wrap_and_skip_what_is_open():
    async def script():
        desk = Desk()
        desk.peer(services=["echo"])
        calls = desk.broker.calls
        first = calls.call("echo.x", None, print, nodeid=NODEID_ANY)
        calls._last = 0xFFFFFFFE
        tags = [calls.call("echo.x", None, print, nodeid=NODEID_ANY).matchtag for _ in range(2)]
        assert (first.matchtag, tags) == (1, [0xFFFFFFFF, 2])
        await ticks()

    run(script())


def test_a_call_to_nobody_is_answered():
    async def script():
        desk = Desk(size=2)
        got = []
        desk.broker.calls.call("nope.x", None, got.append, nodeid=NODEID_ANY)
        desk.broker.calls.call("nope.x", None, got.append, nodeid=1)
        await ticks()
        assert [m.errnum for m in got] == [errno.ENOSYS, errno.EHOSTUNREACH]

    run(script())
