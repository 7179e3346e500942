"""How requests and services end: cancel, disconnect, bounds, a lost link, leaving (RFC 6)."""

import asyncio
import errno

import pytest

from broker.client import Limits
from broker.errors import ProtocolError, RpcError
from broker.wire import message as wire
from broker.wire.payload import any_text
from tests.unit.client.peer import GUEST, asked, settle, soon, talk

S = wire.STREAMING


def wait_handler(events):
    async def wait(request):
        try:
            await asyncio.sleep(60)
        finally:
            events.append(("ended", request.matchtag))

    return wait


def watch_handler(events):
    async def watch(request):
        try:
            yield "first"
            await asyncio.sleep(60)
        finally:
            events.append(("ended", request.matchtag))

    return watch


def test_cancel_ends_one_request_of_the_same_sender_only():
    async def script(h, peer):
        events = []
        async with h.service("x", {"wait": wait_handler(events), "watch": watch_handler(events)}):
            peer.call("x.wait", tag=1)
            peer.call("x.wait", tag=2)
            peer.call("x.wait", tag=1, sender=(b"hop", b"client", b"inner"))
            peer.call("x.watch", tag=3, flags=S)
            assert (await peer.next()).payload == b"first\0"
            for payload in (None, b"junk", {"matchtag": 77}, {"matchtag": "1"}, {}):
                peer.call("x.cancel", payload, flags=wire.NORESPONSE)
            peer.call("x.cancel", {"matchtag": 1}, sender=(b"other",), flags=wire.NORESPONSE)
            await settle()
            assert events == []
            peer.call("x.cancel", {"matchtag": 1}, flags=wire.NORESPONSE)
            answer = await peer.next()
            assert (answer.matchtag, answer.errnum) == (1, errno.ECANCELED)
            assert answer.routes == [b"hop", b"client"]
            peer.call("x.cancel", {"matchtag": 3}, flags=wire.NORESPONSE, rolemask=GUEST)
            answer = await peer.next()
            assert (answer.matchtag, answer.errnum) == (3, errno.ENODATA)
            await settle()
            assert events == [("ended", 1), ("ended", 3)]
            assert not peer.seen
        # leaving answers what still runs
        left = [await peer.next() for _ in range(2)]
        assert sorted(a.matchtag for a in left) == [1, 2]
        assert all((a.errnum, any_text(a.payload)) == (errno.ECANCELED, "service x is leaving") for a in left)

    talk(script)


def test_disconnect_ends_everything_of_that_sender_without_a_word():
    async def script(h, peer):
        events = []
        async with h.service("x", {"a.wait": wait_handler(events), "watch": watch_handler(events)}):
            peer.call("x.a.wait", tag=1)
            peer.call("x.watch", tag=2, flags=S)
            peer.call("x.a.wait", tag=3, sender=(b"hop", b"other"))
            await peer.next()
            peer.call("x.a.disconnect", flags=wire.NORESPONSE)
            await settle()
            assert sorted(events) == [("ended", 1), ("ended", 2)]
            assert not peer.seen

    talk(script)


def test_cancelled_before_it_began_is_answered_once():
    async def script(h, peer):
        events = []
        async with h.service("x", {"wait": wait_handler(events)}):
            peer.call("x.wait", tag=1)
            peer.call("x.cancel", {"matchtag": 1}, flags=wire.NORESPONSE)  # in the same read
            assert (await peer.next()).errnum == errno.ECANCELED
            await settle()
            assert not peer.seen
            assert not events

    talk(script)


def test_own_cancel_and_disconnect_methods_run_as_well():
    async def script(h, peer):
        events, notices = [], []
        methods = {
            "wait": wait_handler(events),
            "cancel": lambda r: notices.append(r.topic),
            "disconnect": lambda r: notices.append(r.topic),
        }
        async with h.service("x", methods):
            peer.call("x.wait", tag=1)
            await settle()
            peer.call("x.cancel", {"matchtag": 1}, flags=wire.NORESPONSE)
            peer.call("x.disconnect", flags=wire.NORESPONSE)
            assert (await peer.next()).errnum == errno.ECANCELED
            assert notices == ["x.cancel", "x.disconnect"]

    talk(script)


def test_handler_that_cancels_itself_is_answered():
    async def gone(request):
        raise asyncio.CancelledError

    async def script(h, peer):
        async with h.service("x", {"gone": gone}):
            assert (await asked(peer, "x.gone"))[0] == errno.ECANCELED

    talk(script)


def test_tasks_are_bounded_then_wait_then_are_refused():
    async def script(h, peer):
        running, gates = [], {}

        async def work(request):
            running.append(request.matchtag)
            gates[request.matchtag] = asyncio.Event()
            await gates[request.matchtag].wait()
            return str(request.matchtag)

        async with h.service("x", {"work": work}) as service:
            for tag in range(1, 7):
                peer.call("x.work", tag=tag)
            refused = await peer.next()
            assert (refused.matchtag, refused.errnum) == (6, errno.EAGAIN)
            assert "service x is busy: 3 requests wait" in any_text(refused.payload)
            assert service.refused == 1
            assert running == [1, 2]
            peer.call("x.cancel", {"matchtag": 3}, flags=wire.NORESPONSE)  # one that waits
            assert (await peer.next()).errnum == errno.ECANCELED
            gates[1].set()
            assert (await peer.next()).payload == b"1\0"
            await settle()
            assert running == [1, 2, 4]
            peer.call("x.disconnect", flags=wire.NORESPONSE)
            await settle()
            assert not peer.seen
            assert running == [1, 2, 4]
            peer.call("x.work", tag=8)
            await settle()
            assert running[-1] == 8
            assert not service._waiting

    talk(script, Limits(service_tasks=2, service_waiting=3))


def test_requests_of_the_same_read_as_the_registration_wait_for_the_methods():
    async def script(h, peer):
        peer.auto.clear()

        async def provide():
            async with h.service("x") as x:

                @x.method("run")
                def run(request):
                    return "ran"

                await asyncio.sleep(60)

        task = soon(provide())
        peer.answer(await peer.next())
        peer.call("x.run")
        assert (await peer.next()).payload == b"ran\0"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    talk(script)


def test_refused_registration_leaves_nothing():
    async def script(h, peer):
        opening = soon(h.serve("x", {}))
        peer.answer(await peer.next(), errnum=errno.EEXIST)
        with pytest.raises(RpcError) as caught:
            await opening
        assert (caught.value.errno, caught.value.topic) == (errno.EEXIST, "service.add")
        peer.auto.add("service.add")
        service = await h.serve("x", {"run": lambda r: None})
        with pytest.raises(ProtocolError, match="already"):
            await h.serve("x", {})
        await service.close()
        for name in ("", "a.b"):
            with pytest.raises(ProtocolError, match="one word"):
                h.service(name)

    talk(script, auto=("service.remove",))


def test_lost_link_stops_the_handlers_and_forgets_who_waits():
    async def script(h, peer):
        events = []
        async with h.service("x", {"wait": wait_handler(events)}) as service:
            for tag in range(1, 4):
                peer.call("x.wait", tag=tag)
            await settle()
            peer.close()
            await settle()
            assert events == [("ended", 1)]
            assert not service._senders

    talk(script, Limits(service_tasks=1))


def test_endless_generator_waits_for_a_slow_broker_and_lets_others_run():
    async def script(h, peer):
        produced = 0

        async def endless(request):
            nonlocal produced
            while True:
                produced += 1
                yield bytes(100)

        async with h.service("x", {"endless": endless}):
            peer.call("x.endless", tag=1, flags=S)
            await settle()
            peer.link.pause()
            await settle(2000)
            assert h.link.outbox.choked
            stopped_at = produced
            await settle(200)
            assert produced == stopped_at
            peer.link.resume()
            await settle(200)
            assert produced > stopped_at
            peer.call("x.cancel", {"matchtag": 1}, flags=wire.NORESPONSE)
            async with asyncio.timeout(5):
                while (await peer.next()).errnum != errno.ENODATA:
                    pass

    talk(script)


def test_leaving_does_not_wait_for_ever_for_a_handler_that_will_not_end(monkeypatch, caplog):
    monkeypatch.setattr("broker.client.service.LEAVE_S", 0.01)
    let_go = []

    async def stubborn(request):
        let_go.append(asyncio.Event())
        try:
            await let_go[0].wait()
        except asyncio.CancelledError:
            await let_go[0].wait()

    async def script(h, peer):
        async with h.service("x", {"run": stubborn}):
            peer.call("x.run", tag=1)
            await settle()
        assert "leaves 1 handlers" in caplog.text
        let_go[0].set()
        await settle()
        assert (await peer.next()).errnum == errno.ECANCELED

    talk(script)


def test_handler_may_close_its_own_service():
    async def script(h, peer):
        async def stop(request):
            request.respond("stopping")
            await service.close()

        service = await h.serve("x", {"stop": stop})
        peer.call("x.stop")
        assert (await peer.next()).payload == b"stopping\0"
        await settle()
        assert not service._tasks
        assert peer.log[-1] == ("request", "service.remove")

    talk(script)


def test_handle_end_closes_services():
    async def script(h, peer):
        events = []
        await h.serve("x", {"wait": wait_handler(events)})
        peer.call("x.wait", tag=5)
        await settle()
        script.events = events

    talk(script)
    assert script.events == [("ended", 5)]
