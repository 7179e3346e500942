"""Checks of how links begin and end: closed, aborted, refused, lost, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import time
import weakref

from broker.errors import ConfigError, LinkBroken, LinkClosed, LinkEnded, LinkError, LinkRefused
from broker.identity import PeerInfo
from broker.schemes import Capabilities
from broker.testing.harness import (
    PATIENCE_S,
    SOON_S,
    Accepting,
    Harness,
    Recorder,
    connected,
    dial_pair,
    failure_of,
    numbered,
    send_all,
    topics,
)
from broker.transport.batching import form_type
from broker.transport.link import Link
from broker.transport.stream import StreamLink
from broker.wire.message import (
    EVENT,
    Message,
    event,
)

# -- the ends -------------------------------------------------------------------------------------


async def check_close_delivers_what_was_flushed(harness: Harness) -> None:
    """Messages flushed before ``close`` arrive, then the other side sees that the peer ended; either side may close."""
    for closer in ("near", "far"):
        async with connected(harness) as pair:
            sides = ((pair.near, pair.near_in, pair.far_in), (pair.far, pair.far_in, pair.near_in))
            mine, mine_in, theirs_in = sides[closer == "far"]
            send_all(mine, numbered(100, 1000))
            mine.close("enough")
            assert isinstance(await mine_in.end(), LinkClosed)
            assert isinstance(await theirs_in.end(), LinkEnded)
            assert topics(theirs_in.messages) == topics(numbered(100))


async def check_close_sends_what_was_only_queued(harness: Harness) -> None:
    """``close`` flushes by itself."""
    async with connected(harness) as pair:
        pair.near.send(event("last.words"))
        pair.near.close()
        await pair.far_in.end()
        assert topics(pair.far_in.messages) == ["last.words"]


async def check_abort(harness: Harness) -> None:
    """``abort`` ends this side with the error it was given and the other with an end or a break; either side may."""
    for aborter in ("near", "far"):
        async with connected(harness) as pair:
            sides = ((pair.near, pair.near_in, pair.far_in), (pair.far, pair.far_in, pair.near_in))
            mine, mine_in, theirs_in = sides[aborter == "far"]
            error = LinkBroken("for a test")
            mine.send(event("never.flushed"))
            mine.abort(error)
            assert await mine_in.end() is error
            assert mine.ended is error
            assert mine.outbox.discarded == 1
            assert isinstance(await theirs_in.end(), LinkEnded | LinkBroken)


async def check_an_ended_link_is_let_go(harness: Harness) -> None:
    """A link that has ended is part of no cycle: those that crowds leave would wait long for a collection."""
    gc.disable()
    try:
        for aborter in ("near", "far"):
            async with connected(harness) as pair:
                links = {"near": weakref.ref(pair.near), "far": weakref.ref(pair.far)}
                send_all(pair.near, numbered(3))
                await pair.far_in.count(3)
                getattr(pair, aborter).abort(LinkBroken("for a test"))
                await pair.near_in.end()
                await pair.far_in.end()
            del pair
            for _ in range(round(PATIENCE_S / SOON_S)):
                if left := [side for side, link in links.items() if link()]:
                    await asyncio.sleep(SOON_S)
            assert not left, "part of a cycle"
    finally:
        gc.enable()


async def check_end_is_told_once(harness: Harness) -> None:
    """Ending what has ended changes nothing, and both sides ending at once is one end each."""
    async with connected(harness) as pair:
        pair.near.close("first")
        pair.near.close("second")
        pair.near.abort(LinkBroken("third"))
        pair.far.close("at the same time")
        assert isinstance(await pair.near_in.end(), LinkClosed)
        assert isinstance(await pair.far_in.end(), LinkClosed)


async def check_send_after_end(harness: Harness) -> None:
    """On an ended link ``send`` and the rest raise nothing; what was sent is counted."""
    async with connected(harness) as pair:
        pair.near.close()
        await pair.far_in.end()
        for link in (pair.near, pair.far):
            before = link.outbox.discarded
            link.send(event("too.late"))
            link.flush()
            link.flusher.flush()
            link.pause()
            link.resume()
            link.close()
            assert link.outbox.discarded == before + 1


async def check_close_inside_received(harness: Harness) -> None:
    """A receiver may end the link it is hearing from; it hears no more from it."""

    class Closing(Recorder):
        def received(self, link: Link, messages: list[Message]) -> None:
            super().received(link, messages)
            link.close()

    accepting = Accepting()
    listener = await harness.transport.listen(harness.new_address(), accepting, harness.listening())
    pair = await dial_pair(harness, listener, accepting, harness.dialling())
    closing = Closing()
    pair.far.receiver = closing
    for message in numbered(2000):
        send_all(pair.near, [message])
    assert isinstance(await closing.end(), LinkClosed)
    assert isinstance(await pair.near_in.end(), LinkEnded | LinkBroken)
    await listener.stop()


# -- listening and dialling -----------------------------------------------------------------------


async def check_refusal(harness: Harness) -> None:
    """``admit`` decides: a refused dialer is told, no link is made, and the next one may be admitted."""
    answers = iter((errno.EACCES, 0))
    seen: list[PeerInfo] = []

    def admit(peer: PeerInfo) -> int:
        seen.append(peer)
        return next(answers)

    accepting = Accepting()
    listener = await harness.transport.listen(
        harness.new_address(), accepting, harness.listening(admit=admit)
    )
    error = await failure_of(harness, listener, harness.dialling())
    assert isinstance(error, LinkRefused)
    assert error.errno == harness.refusal(errno.EACCES)
    assert not accepting.links
    pair = await dial_pair(harness, listener, accepting, harness.dialling())
    assert len(seen) == 2
    assert pair.far.peer.address
    pair.near.close()
    await pair.far_in.end()
    await listener.stop()


async def check_address_in_use(harness: Harness) -> None:
    """Two listeners cannot have one address; when the first stops, the next can."""
    options = harness.listening()
    first = await harness.transport.listen(harness.new_address(), Accepting(), options)
    try:
        second = await harness.transport.listen(first.address, Accepting(), options)
    except ConfigError:
        pass
    else:
        await second.stop()
        raise AssertionError(f"two listeners at {first.address}")
    await first.stop()
    third = await harness.transport.listen(first.address, Accepting(), options)
    assert third.address == first.address
    await third.stop()


async def check_renew(harness: Harness) -> None:
    """A listener that has its files read again goes on, and its links stay."""
    async with connected(harness) as pair:
        pair.listener = pair.listener.renew({})
        assert await failure_of(harness, pair.listener, harness.dialling()) is None
        send_all(pair.near, numbered(3))
        assert topics(await pair.far_in.count(3)) == topics(numbered(3))


async def check_nobody_there(harness: Harness) -> None:
    """Dialling where nobody listens is a broken link, in time."""
    options = harness.listening()
    listener = await harness.transport.listen(harness.new_address(), Accepting(), options)
    await listener.stop()
    hasty = harness.dialling()
    hasty.connect_timeout_s = 0.1
    assert isinstance(await failure_of(harness, listener, hasty), LinkBroken)


async def check_no_time_limit(harness: Harness) -> None:
    """``connect_timeout_s`` = 0 is no limit."""
    async with connected(harness, dial=harness.dialling(connect_timeout_s=0.0)) as pair:
        assert pair.near.ended is None


async def check_stop_keeps_links(harness: Harness) -> None:
    """A listener that stops accepts nobody any more; its links go on."""
    async with connected(harness) as pair:
        await pair.listener.stop()
        hasty = harness.dialling()
        hasty.connect_timeout_s = 0.1
        assert isinstance(await failure_of(harness, pair.listener, hasty), LinkError)
        send_all(pair.near, numbered(10))
        send_all(pair.far, numbered(10))
        assert topics(await pair.far_in.count(10)) == topics(numbered(10))
        assert topics(await pair.near_in.count(10)) == topics(numbered(10))
        await pair.listener.stop()
        pair.near.close()
        assert isinstance(await pair.far_in.end(), LinkEnded)


async def check_many_links(harness: Harness) -> None:
    """Twenty links of one listener keep their messages apart."""
    accepting = Accepting()
    listener = await harness.transport.listen(harness.new_address(), accepting, harness.listening())
    pairs = [await dial_pair(harness, listener, accepting, harness.dialling()) for _ in range(20)]
    for number, pair in enumerate(pairs):
        send_all(pair.near, [event(f"up.{number}.{turn}") for turn in range(30)])
        send_all(pair.far, [event(f"down.{number}.{turn}") for turn in range(30)])
    for number, pair in enumerate(pairs):
        assert topics(await pair.far_in.count(30)) == [f"up.{number}.{turn}" for turn in range(30)]
        assert topics(await pair.near_in.count(30)) == [f"down.{number}.{turn}" for turn in range(30)]
    for pair in pairs[:10]:
        pair.near.close()
    await asyncio.gather(*(pair.far_in.end() for pair in pairs[:10]))
    for number, pair in enumerate(pairs[10:]):
        send_all(pair.far, [event(f"again.{number}")])
        assert (await pair.near_in.count(31))[30].topic == f"again.{number}"
        pair.far.close()
    await asyncio.gather(*(pair.near_in.end() for pair in pairs[10:]))
    await listener.stop()


async def check_half_open_peer(harness: Harness) -> None:
    """A connection that says nothing, or rubbish, costs the others nothing."""
    assert harness.stranger is not None
    async with connected(harness) as pair:
        silent = await harness.stranger(pair.listener.contact_address)
        rude = await harness.stranger(pair.listener.contact_address)
        rude.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(range(256)) * 40)
        with contextlib.suppress(ConnectionError):
            await rude.drain()
        send_all(pair.near, numbered(10))
        send_all(pair.far, numbered(10))
        assert topics(await pair.far_in.count(10)) == topics(numbered(10))
        assert topics(await pair.near_in.count(10)) == topics(numbered(10))
        assert not pair.far_in.ends
        assert not pair.near_in.ends
        for writer in (silent, rude):
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def check_capabilities(harness: Harness) -> None:
    """The transport declares what it can do, and who is at the other end is what it says that it proves."""
    can = harness.capabilities
    assert isinstance(can, Capabilities)
    async with connected(harness) as pair:
        uri, peer = pair.listener.contact_address, pair.far.peer
        assert can.check_address(uri) == ""
        assert isinstance(can.is_exposed(uri), bool)
        assert peer.address
        assert peer.rank is None or can.tree, "only a transport that may join brokers gives a rank"
        if isinstance(pair.near, StreamLink):
            said = form_type(pair.near.form(event("e")))
            assert said == EVENT, (
                f"the outbox reads the type of a form: {said}, of an event; change bytes in `encode`"
            )
        if peer.uid is not None:
            assert "uid" in can.proves
        if peer.user is not None and peer.key is None:
            assert "user" in can.proves, "a user without a key is one that the transport knows by itself"
        if peer.key is not None:
            assert "key" in can.proves
            assert can.check_key(peer.key) == ""
            assert peer.key in harness.listening().keys, "a key that nobody knows is refused"


async def check_no_descriptor_leaks(harness: Harness) -> None:
    """After links and listeners are gone, so are their descriptors."""

    async def once() -> None:
        async with connected(harness) as pair:
            pair.near.close()
            await pair.far_in.end()

    await once()  # what is made once per process stays
    before = await fewest_descriptors(0, 0.1)
    for _ in range(3):
        await once()
    after = await fewest_descriptors(before)
    assert after <= before, f"{before} descriptors before, {after} after"


async def fewest_descriptors(enough: int, patience_s: float = 1.0) -> int:
    """Descriptors of this process, given some time to close what closes in the background."""
    count, until_s = descriptors(), time.monotonic() + patience_s
    while count > enough and time.monotonic() < until_s:
        await asyncio.sleep(0.005)
        count = min(count, descriptors())
    return count


def descriptors() -> int:
    """Open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
