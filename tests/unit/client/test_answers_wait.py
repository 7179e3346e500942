"""Answers wait for their link: a provider that answers faster than its broker reads keeps it, and the order."""

import asyncio
import errno
import threading

import pytest

from broker.client import Limits, blocking, connect
from broker.transport.link import Options
from broker.transport.outbox import OutboxLimits
from broker.wire import message as wire
from tests.tables import for_each
from tests.unit.client.peer import OWNER, settle, soon, talk
from tests.unit.client.tiny_broker import running
from tests.unit.node.desk import Desk, Door, ask, run, until

ANSWER = bytes(10_000)
SMALL = OutboxLimits(high_bytes=100_000, cap_bytes=1_000_000)
S = wire.STREAMING


def few_bytes():
    return Options(limits=OutboxLimits(high_bytes=100_000, cap_bytes=1_000_000))


async def answered(request):
    await asyncio.sleep(0)
    return ANSWER


def at_once(request):
    return ANSWER


@pytest.mark.parametrize("handler", [answered, at_once])
def test_a_service_answers_more_at_once_than_its_link_may_hold(rundir, handler):
    """7 000 calls with answers of 10 kB cut the provider's link at 64 MiB; here in a tenth of the size."""

    async def script():
        desk = Desk(OutboxLimits(cap_bytes=100 << 20))
        limits = Limits(service_tasks=500)
        async with (
            Door(desk, rundir / "s", owner=64 << 20) as door,
            connect(door.uri, options=few_bytes(), limits=limits) as h,
        ):
            await until(lambda: len(door.clients) == 1)
            service = h.service("big", {"get": handler})
            h.attach(service)
            service._release()
            desk.broker.router.services.add(b"big", door.clients[0])
            caller = await door.dial()
            caller.say(*(ask("big.get", tag) for tag in range(1, 701)))
            await until(lambda: len(caller.of(wire.RESPONSE)) == 700)
            assert h.ended is None
            answers = caller.of(wire.RESPONSE)
            assert [each.matchtag for each in answers] == list(range(1, 701))
            assert all(each.payload == ANSWER for each in answers)

    run(script())


def small(script, **limits):
    """``talk`` with little room on the handle's link."""
    talk(script, Limits(**limits), options=Options(limits=SMALL))


async def all_answers(peer, count):
    return [await peer.next() for _ in range(count)]


async def paused(peer):
    """A peer that does not read; its window of 1024 messages is full."""
    peer.link.pause()
    await settle()


@for_each("handler", [answered, at_once])
def test_nothing_is_answered_beyond_high_water_and_then_all_in_order(handler):
    calls = []

    def counted(request):
        calls.append(request.matchtag)
        return handler(request)

    async def counted_too(request):
        calls.append(request.matchtag)
        return await handler(request)

    async def script(h, peer):
        async with h.service("x", {"get": counted if handler is at_once else counted_too}):
            await paused(peer)
            for tag in range(1, 3001):
                peer.call("x.get", tag=tag)
            await settle(200)
            assert h.link.ended is None
            assert h.link.outbox.choked
            assert h.link.outbox.queued_bytes < SMALL.high_bytes + (256 << 10) + 2 * len(ANSWER)
            assert len(calls) < 3000, "not even the handlers ran"
            peer.link.resume()
            answers = await all_answers(peer, 3000)
            assert [each.matchtag for each in answers] == list(range(1, 3001))
            assert {each.errnum for each in answers} == {0}

    small(script, service_tasks=100)


def test_streams_wait_too_and_from_their_first_item():
    async def count(request):
        for number in range(3):
            yield bytes([number]) * 10_000

    async def script(h, peer):
        async with h.service("x", {"count": count}):
            await paused(peer)
            for tag in range(1, 1501):
                peer.call("x.count", tag=tag, flags=S)
            await settle(200)
            assert h.link.ended is None
            assert h.link.outbox.queued_bytes < SMALL.high_bytes + (256 << 10) + 2 * len(ANSWER)
            peer.link.resume()
            seen = {}
            for each in await all_answers(peer, 4 * 1500):
                seen.setdefault(each.matchtag, []).append(each.errnum or each.payload[0])
            assert all(seen[tag] == [0, 1, 2, errno.ENODATA] for tag in range(1, 1501))

    small(script)


def test_requests_that_wait_for_the_link_are_bounded_cancelled_and_forgotten():
    async def script(h, peer):
        async with h.service("x", {"get": at_once, "disconnect": lambda request: left.append(1)}) as service:
            left = []
            await paused(peer)
            while h.is_writable:
                h.send(wire.event("filler", ANSWER))
            for tag in range(1, 6):
                peer.call("x.get", tag=tag)
            peer.call("x.get", tag=6, sender=(b"hop", b"other"))
            await settle()
            assert len(service._postponed) == 5
            assert service.refused == 1
            peer.call("x.cancel", {"matchtag": 2}, flags=wire.NORESPONSE)
            peer.call("x.get", tag=7, flags=wire.NORESPONSE)
            await settle()
            peer.call("x.disconnect", flags=wire.NORESPONSE)
            await settle()
            assert left == [1], "a notice answers nobody and waits for nothing"
            peer.link.resume()
            answers = []
            while len(answers) < 2:
                each = await peer.next()
                answers += [each] if each.type == wire.RESPONSE else []
            assert [(each.matchtag, each.errnum) for each in answers] == [
                (6, errno.EAGAIN),
                (2, errno.ECANCELED),
            ]
            await settle()
            assert not service._senders
            assert not service._postponed
            assert not service._tasks

    small(script, service_waiting=5)


def test_who_catches_up_takes_no_place_of_a_handler():
    """With one place, a request that came meanwhile was never begun."""

    async def script(h, peer):
        async with h.service("x", {"get": at_once, "later": answered}):
            await paused(peer)
            while h.is_writable:
                h.send(wire.event("filler", ANSWER))
            peer.call("x.get", tag=1)
            await settle()
            peer.call("x.later", tag=2)
            await settle()
            peer.link.resume()
            tags = set()
            while len(tags) < 2:
                each = await peer.next()
                tags |= {each.matchtag} if each.type == wire.RESPONSE else set()

    small(script, service_tasks=1)


def test_leaving_while_requests_wait_answers_them():
    async def script(h, peer):
        async with h.service("x", {"get": at_once}):
            await paused(peer)
            while h.is_writable:
                h.send(wire.event("filler", ANSWER))
            peer.call("x.get", tag=1)
            await settle()
            soon(release(peer))
        while (each := await peer.next()).type != wire.RESPONSE:
            pass
        assert (each.matchtag, each.errnum) == (1, errno.ECANCELED)

    async def release(peer):
        await settle()
        peer.link.resume()

    small(script)


def test_a_link_that_ends_while_answers_wait_leaves_nothing():
    async def script(h, peer):
        service = await h.serve("x", {"get": at_once, "later": answered})
        await paused(peer)
        for tag in range(1, 2001):
            peer.call("x.get" if tag % 2 else "x.later", tag=tag)
        await settle(50)
        peer.link.resume()
        peer.close()
        await settle(50)
        assert h.ended is not None
        assert not service._tasks
        assert not service._postponed

    small(script)


def test_a_link_that_ends_in_the_same_read_as_a_request_that_waits_stops_no_later_one():
    async def script(h, peer):
        async with h.service("x", {"get": at_once}) as service:
            await settle()
            await paused(peer)
            while h.is_writable:
                h.send(wire.event("filler", ANSWER))
            service.requested(wire.request("x.get", matchtag=1, userid=7, rolemask=OWNER))
            service.link_ended()  # and another one follows, which is full as well
            peer.call("x.get", tag=2)
            await settle()
            peer.link.resume()
            while (each := await peer.next()).type != wire.RESPONSE:
                pass
            assert (each.matchtag, each.errnum) == (2, 0)

    small(script)


def test_many_callers_at_once_wait_too():
    """``rpc`` asked for room before anybody had sent, and all of them found some."""

    async def script(h, peer):
        await paused(peer)
        calls = [soon(h.rpc("x.put", ANSWER)) for _ in range(3000)]
        await settle(100)
        assert h.link.ended is None
        assert h.link.outbox.queued_bytes < SMALL.high_bytes + (256 << 10) + 2 * len(ANSWER)
        peer.link.resume()
        tags = []
        for _ in range(3000):
            message = await peer.next()
            tags.append(message.matchtag)
            peer.answer(message)
        await asyncio.gather(*calls)
        assert tags == sorted(tags), "who came first went first"

    small(script)


def test_a_caller_that_gives_up_leaves_its_place(monkeypatch):
    async def script(h, peer):
        await paused(peer)
        while h.is_writable:
            h.send(wire.event("filler", ANSWER))
        waiting = [soon(h.writable()) for _ in range(200)]
        await settle()
        for task in waiting[::2]:
            task.cancel()
        await settle()
        peer.link.resume()
        await asyncio.gather(*waiting[1::2])
        assert h.is_writable

    small(script)


def test_a_thread_that_responds_waits_for_the_link(rundir):
    """A handler in a thread may stream by ``respond``; it goes on when its link takes more."""
    uri = f"local://{rundir}/s"
    done = threading.Event()

    def flood(request):
        for number in range(400):
            request.respond(bytes([number % 256]) * 10_000)
        done.set()

    with (
        running(uri),
        blocking.connect(uri, options=few_bytes()) as provider,
        blocking.connect(uri) as caller,
    ):
        with provider.service("x", {"flood": flood}), caller.stream("x.flood") as items:
            got = [item.payload[0] for item in items]
        assert got == [number % 256 for number in range(400)]
        assert done.is_set()
        assert provider.ended is None
