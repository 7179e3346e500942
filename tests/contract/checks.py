"""What every transport must do: one set of checks, run against each.

For authors of a transport. Describe yours by a ``Harness`` and run every function of ``CHECKS`` on it::

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_mine(check):
        asyncio.run(check(Harness("mine", transport, "mine://somewhere/%d")))

A check raises AssertionError, or TimeoutError when something that must happen did not within ``PATIENCE_S``. It
leaves no link, listener or descriptor behind when it passes. The contract stands in ``broker/transport/link.py``.

A listener may learn of a link only from its first message (ZeroMQ does), so every pair of links made here begins with
one message from the dialer, which the checks do not see.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from broker.errors import ConfigError, LinkBroken, LinkClosed, LinkEnded, LinkError, LinkRefused
from broker.identity import PeerInfo
from broker.transport.link import Link, Listener, Options, Transport
from broker.transport.outbox import OutboxLimits
from broker.wire.message import (
    NORESPONSE,
    PRIVATE,
    STREAMING,
    UPSTREAM,
    USER1,
    Message,
    control,
    event,
    request,
    response,
)

PATIENCE_S = 15.0
"""How long a check waits for what must happen; generous, because it is only spent on failure."""
STALL_MSGS = 6000
STALL_BYTES = 16 << 10
"""94 MiB in all: more than any transport and its kernel hold for a reader that does not read."""
PART_SIZES = (0, 1, 254, 255, 256, 65535, 65536, 1 << 20)


@dataclass
class Harness:
    """A transport and how to use it.

    Attributes:
        name: for test ids.
        transport: the transport.
        address: where to listen; "%d" is replaced by a number that no other listener has.
        listen_extra, dial_extra: ``Options.extra`` of either side.
        refusal: errno that ``admit`` returned -> errno that a refused dialer sees.
        prepare: called with both links before the check proper, e.g. to switch something on.
        stranger: opens a raw connection to a contact address that says nothing; returns how to send bytes on it
            and how to close it. None where there is no such thing.
    """

    name: str
    transport: Transport
    address: str
    listen_extra: dict[str, Any] = field(default_factory=dict)
    dial_extra: dict[str, Any] = field(default_factory=dict)
    refusal: Callable[[int], int] = lambda number: number
    prepare: Callable[[Link, Link], None] = lambda _near, _far: None
    stranger: Callable[[str], Awaitable[asyncio.StreamWriter]] | None = None
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    def new_address(self) -> str:
        return self.address % next(self.numbers) if "%d" in self.address else self.address

    def options(self, extra: dict[str, Any], **settings: Any) -> Options:
        return Options(extra=dict(extra), connect_timeout_s=PATIENCE_S, **settings)


class Recorder:
    """A receiver that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.ends: list[LinkError] = []
        self.choked: list[bool] = []
        self._changed = asyncio.Event()

    def received(self, link: Link, messages: list[Message]) -> None:
        assert messages, "received() with no messages"
        assert not self.ends, "received() after link_ended()"
        self.messages += messages
        self._changed.set()

    def link_ended(self, link: Link, error: LinkError) -> None:
        assert link.ended is error
        self.ends.append(error)
        self._changed.set()

    def link_choked(self, link: Link, choked: bool) -> None:
        self.choked.append(choked)
        self._changed.set()

    async def until(self, condition: Callable[[Recorder], object]) -> None:
        """Wait until ``condition(self)`` holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    async def count(self, number: int) -> list[Message]:
        await self.until(lambda self: len(self.messages) >= number or self.ends)
        assert len(self.messages) >= number, f"link ended after {len(self.messages)} of {number}: {self.ends}"
        return self.messages

    async def end(self) -> LinkError:
        """How the link ended; fails when it ends a second time soon after."""
        await self.until(lambda self: self.ends)
        await asyncio.sleep(0.05)
        assert len(self.ends) == 1, f"ended {len(self.ends)} times: {self.ends}"
        return self.ends[0]


@dataclass
class Pair:
    """Two connected links: ``near`` was dialled, ``far`` accepted; ``near_in`` and ``far_in`` record."""

    near: Link
    far: Link
    near_in: Recorder
    far_in: Recorder
    listener: Listener


class Accepting:
    """A listener's other half: starts every link with a recorder of its own."""

    def __init__(self) -> None:
        self.links: list[tuple[Link, Recorder]] = []
        self._more = asyncio.Event()

    def __call__(self, link: Link) -> None:
        recorder = Recorder()
        self.links.append((link, recorder))
        link.start(recorder)
        self._more.set()

    async def link(self, number: int) -> tuple[Link, Recorder]:
        """The link accepted as ``number``-th, from 0, and its recorder."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.links) <= number:
                self._more.clear()
                await self._more.wait()
        return self.links[number]


async def dial_pair(harness: Harness, listener: Listener, accepting: Accepting, options: Options) -> Pair:
    """Dial ``listener`` and let the dialer say the first word."""
    known = len(accepting.links)
    near, near_in = await harness.transport.dial(listener.contact_address, options), Recorder()
    near.start(near_in)
    near.send(control(0))
    near.flush()
    far, far_in = await accepting.link(known)
    await far_in.count(1)
    far_in.messages.clear()
    harness.prepare(near, far)
    return Pair(near, far, near_in, far_in, listener)


@contextlib.asynccontextmanager
async def connected(harness: Harness, listen: Options | None = None) -> AsyncIterator[Pair]:
    """A pair of links; closes whatever is left of it."""
    accepting = Accepting()
    listener = await harness.transport.listen(
        harness.new_address(), accepting, listen or harness.options(harness.listen_extra)
    )
    pair = None
    try:
        pair = await dial_pair(harness, listener, accepting, harness.options(harness.dial_extra))
        yield pair
    finally:
        for link, _recorder in accepting.links:
            link.abort(LinkClosed("check over"))
        if pair is not None:
            pair.near.abort(LinkClosed("check over"))
        await listener.stop()


async def failure_of(harness: Harness, listener: Listener, options: Options) -> LinkError | None:
    """Why ``listener`` cannot be dialled; None when it could."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            link = await harness.transport.dial(listener.contact_address, options)
    except LinkError as error:
        return error
    link.abort(LinkClosed("check over"))
    return None


def numbered(count: int, size: int = 0) -> list[Message]:
    return [event(f"n.{number}", b"x" * size if size else None) for number in range(count)]


def topics(messages: list[Message]) -> list[str | None]:
    return [message.topic for message in messages]


def send_all(link: Link, messages: list[Message]) -> None:
    for message in messages:
        link.send(message)
    link.flush()


# -- what arrives ---------------------------------------------------------------------------------


async def check_order(harness: Harness) -> None:
    """5 000 messages of mixed sizes and types, flushed at odd places, arrive in order in both directions at once."""
    async with connected(harness) as pair:
        sent: dict[Link, list[str | None]] = {pair.near: [], pair.far: []}
        for number in range(5000):
            for link in (pair.near, pair.far):
                payload = b"p" * (number % 7 * 300) if number % 97 else b"q" * 70_000
                kind = event if number % 3 else request
                message = kind(f"n.{number}", payload)
                sent[link].append(message.topic)
                link.send(message)
                if number % 41 == 0:
                    link.flush()
            if number % 50 == 0:
                await asyncio.sleep(0)
        pair.near.flush()
        pair.far.flush()
        assert topics(await pair.far_in.count(5000)) == sent[pair.near]
        assert topics(await pair.near_in.count(5000)) == sent[pair.far]


async def check_part_boundaries(harness: Harness) -> None:
    """Routes of 0 to 16 hops of 1 to 254 bytes, topics of every length class, payloads that look like other things."""
    messages = []
    for hops in (0, 1, 2, 16):
        for length in (1, 36, 254):
            message = request("t", b"p")
            for hop in range(hops):
                message.push_route(bytes([65 + hop]) * length)
            messages.append(message)
    messages += [event("t" * length, None) for length in (1, 253, 254, 255, 256, 300)]
    tricky = (
        b"\x00",
        b"\x8e\x01" + bytes(18),
        b"\xff\xee\x00\x12" * 5,
        b"\x12\x00\xee\xff" + bytes(30),
        b"\xff" * 260,
    )
    messages += [request("t", payload) for payload in tricky]
    async with connected(harness) as pair:
        for link, recorder in ((pair.near, pair.far_in), (pair.far, pair.near_in)):
            send_all(link, messages)
            arrived = await recorder.count(len(messages))
            assert [message.parts() for message in arrived] == [message.parts() for message in messages]


async def check_payload_sizes(harness: Harness) -> None:
    """Payloads of every length class up to 1 MiB, the empty one told apart from none."""
    messages = [request("size", os.urandom(size)) for size in PART_SIZES]
    messages.append(request("none", None))
    async with connected(harness) as pair:
        for link, recorder in ((pair.near, pair.far_in), (pair.far, pair.near_in)):
            send_all(link, messages)
            arrived = await recorder.count(len(messages))
            assert [message.payload for message in arrived] == [message.payload for message in messages]


async def check_message_types(harness: Harness) -> None:
    """Every type with its words, credentials and flags arrives byte for byte."""
    flags = STREAMING | UPSTREAM | USER1
    asked = request("svc.do", b"{}\0", nodeid=7, matchtag=0xFFFFFFFE, flags=flags, userid=5, rolemask=2)
    asked.push_route(b"0f8fad5b-d9cb-469f-a165-70867728950e")
    messages = [
        asked,
        request("svc.quiet", None, flags=NORESPONSE),
        response(asked, b"{}\0", userid=0, rolemask=5),
        response(asked, b"no\0", errnum=38),
        event("heartbeat.pulse", None, sequence=0xFFFFFFFF),
        event("secret", b"\0", flags=PRIVATE, userid=1000, rolemask=1),
        control(1, 0xFFFFFFFF),
    ]
    async with connected(harness) as pair:
        for link, recorder in ((pair.near, pair.far_in), (pair.far, pair.near_in)):
            send_all(link, messages)
            assert await recorder.count(len(messages)) == messages


async def check_message_may_be_patched_after_send(harness: Harness) -> None:
    """What was sent is what was said at the time: a route pushed onto a copy afterwards does not travel."""
    async with connected(harness) as pair:
        message = request("t", b"p")
        pair.near.send(message)
        later = message.copy()
        later.push_route(b"hop")
        pair.near.send(later)
        pair.near.flush()
        first, second = await pair.far_in.count(2)
        assert first.routes == []
        assert second.routes == [b"hop"]


# -- pressure -------------------------------------------------------------------------------------


async def check_stalled_reader(harness: Harness) -> None:
    """A reader that pauses makes the sender's outbox fill and say so; afterwards everything arrives, in order."""
    limits = OutboxLimits(cap_bytes=256 << 20, event_bytes=256 << 20)
    async with connected(harness, harness.options(harness.listen_extra, limits=limits)) as pair:
        pair.near.pause()
        await asyncio.sleep(0)
        messages = numbered(STALL_MSGS, STALL_BYTES)
        for start in range(0, STALL_MSGS, 100):
            send_all(pair.far, messages[start : start + 100])
            await asyncio.sleep(0)
        await pair.far_in.until(lambda seen: seen.choked)
        assert pair.far_in.choked[0] is True
        assert pair.far.outbox.parked_bytes > limits.high_bytes
        assert not pair.near_in.messages
        pair.near.resume()
        assert topics(await pair.near_in.count(STALL_MSGS)) == topics(messages)
        await pair.far_in.until(lambda seen: seen.choked[-1] is False)
        assert pair.far.outbox.parked is None
        assert pair.far.outbox.parked_bytes == 0


async def check_stall_costs_nobody_else(harness: Harness) -> None:
    """While one reader of a listener stalls, another gets its messages."""
    limits = OutboxLimits(cap_bytes=256 << 20, event_bytes=256 << 20)
    accepting = Accepting()
    listener = await harness.transport.listen(
        harness.new_address(), accepting, harness.options(harness.listen_extra, limits=limits)
    )
    stalled = await dial_pair(harness, listener, accepting, harness.options(harness.dial_extra))
    lively = await dial_pair(harness, listener, accepting, harness.options(harness.dial_extra))
    stalled.near.pause()
    messages = numbered(STALL_MSGS, STALL_BYTES)
    for start in range(0, STALL_MSGS, 100):
        send_all(stalled.far, messages[start : start + 100])
    await stalled.far_in.until(lambda seen: seen.choked)
    for number in range(200):
        send_all(lively.far, [event(f"n.{number}")])
        await lively.near_in.count(number + 1)
    for pair in (stalled, lively):
        pair.near.abort(LinkClosed("check over"))
        pair.far.abort(LinkClosed("check over"))
    await listener.stop()


async def check_overflow_ends_the_link(harness: Harness) -> None:
    """Beyond its cap the outbox ends its link, as broken, once; the other side sees the end."""
    limits = OutboxLimits(cap_bytes=1 << 20)
    async with connected(harness, harness.options(harness.listen_extra, limits=limits)) as pair:
        pair.near.pause()
        await asyncio.sleep(0)
        for number in range(STALL_MSGS):
            send_all(pair.far, [request(f"n.{number}", b"x" * STALL_BYTES)])
            if number % 100 == 0:
                await asyncio.sleep(0)
        assert isinstance(await pair.far_in.end(), LinkBroken)
        assert pair.far.outbox.discarded > 0
        assert pair.far.outbox.parked_bytes == 0
        pair.near.resume()
        assert isinstance(await pair.near_in.end(), LinkEnded | LinkBroken)
        assert topics(pair.near_in.messages) == [
            f"n.{number}" for number in range(len(pair.near_in.messages))
        ]


async def check_pause_and_resume(harness: Harness) -> None:
    """A paused link delivers nothing; resumed, everything in order; on either side, and again and again."""
    async with connected(harness) as pair:
        for sender, reader, recorder in (
            (pair.near, pair.far, pair.far_in),
            (pair.far, pair.near, pair.near_in),
        ):
            for turn in range(1, 4):
                reader.pause()
                await asyncio.sleep(0)
                send_all(sender, numbered(50))
                await asyncio.sleep(0.05)
                assert len(recorder.messages) == (turn - 1) * 50
                reader.resume()
                assert topics(await recorder.count(turn * 50)) == topics(numbered(50)) * turn


async def check_messages_wait_for_start(harness: Harness) -> None:
    """What arrives before ``start`` is delivered after it."""
    accepting = Accepting()
    listener = await harness.transport.listen(
        harness.new_address(), accepting, harness.options(harness.listen_extra)
    )
    near = await harness.transport.dial(listener.contact_address, harness.options(harness.dial_extra))
    send_all(near, numbered(1))
    far, far_in = await accepting.link(0)
    await far_in.count(1)
    send_all(far, numbered(20))
    await asyncio.sleep(0.05)
    near_in = Recorder()
    near.start(near_in)
    assert topics(await near_in.count(20)) == topics(numbered(20))
    near.close()
    await far_in.end()
    await listener.stop()


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
    listener = await harness.transport.listen(
        harness.new_address(), accepting, harness.options(harness.listen_extra)
    )
    pair = await dial_pair(harness, listener, accepting, harness.options(harness.dial_extra))
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
        harness.new_address(), accepting, harness.options(harness.listen_extra, admit=admit)
    )
    error = await failure_of(harness, listener, harness.options(harness.dial_extra))
    assert isinstance(error, LinkRefused)
    assert error.errno == harness.refusal(errno.EACCES)
    assert not accepting.links
    pair = await dial_pair(harness, listener, accepting, harness.options(harness.dial_extra))
    assert len(seen) == 2
    assert pair.far.peer.address
    pair.near.close()
    await pair.far_in.end()
    await listener.stop()


async def check_address_in_use(harness: Harness) -> None:
    """Two listeners cannot have one address; when the first stops, the next can."""
    options = harness.options(harness.listen_extra)
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


async def check_nobody_there(harness: Harness) -> None:
    """Dialling where nobody listens is a broken link, in time."""
    options = harness.options(harness.listen_extra)
    listener = await harness.transport.listen(harness.new_address(), Accepting(), options)
    await listener.stop()
    hasty = harness.options(harness.dial_extra)
    hasty.connect_timeout_s = 0.3
    assert isinstance(await failure_of(harness, listener, hasty), LinkBroken)


async def check_stop_keeps_links(harness: Harness) -> None:
    """A listener that stops accepts nobody any more; its links go on."""
    async with connected(harness) as pair:
        await pair.listener.stop()
        hasty = harness.options(harness.dial_extra)
        hasty.connect_timeout_s = 0.3
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
    listener = await harness.transport.listen(
        harness.new_address(), accepting, harness.options(harness.listen_extra)
    )
    pairs = [
        await dial_pair(harness, listener, accepting, harness.options(harness.dial_extra)) for _ in range(20)
    ]
    for number, pair in enumerate(pairs):
        send_all(pair.near, [event(f"up.{number}.{turn}") for turn in range(30)])
        send_all(pair.far, [event(f"down.{number}.{turn}") for turn in range(30)])
    for number, pair in enumerate(pairs):
        assert topics(await pair.far_in.count(30)) == [f"up.{number}.{turn}" for turn in range(30)]
        assert topics(await pair.near_in.count(30)) == [f"down.{number}.{turn}" for turn in range(30)]
    for pair in pairs[:10]:
        pair.near.close()
        await pair.far_in.end()
    for number, pair in enumerate(pairs[10:]):
        send_all(pair.far, [event(f"again.{number}")])
        assert (await pair.near_in.count(31))[30].topic == f"again.{number}"
        pair.far.close()
        await pair.near_in.end()
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


async def check_no_descriptor_leaks(harness: Harness) -> None:
    """After links and listeners are gone, so are their descriptors."""

    async def once() -> None:
        async with connected(harness) as pair:
            pair.near.close()
            await pair.far_in.end()

    await once()  # what is made once per process stays
    before = await fewest_descriptors(0)
    for _ in range(5):
        await once()
    after = await fewest_descriptors(before)
    assert after <= before, f"{before} descriptors before, {after} after"


async def fewest_descriptors(enough: int) -> int:
    """Descriptors of this process, given a second to close what closes in the background."""
    count = descriptors()
    for _ in range(50):
        if count <= enough:
            break
        await asyncio.sleep(0.02)
        count = min(count, descriptors())
    return count


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


CHECKS = [
    check
    for name, check in list(globals().items())
    if name.startswith("check_") and name != "check_half_open_peer"
]
"""Every check that needs nothing but the transport; ``check_half_open_peer`` needs ``Harness.stranger`` besides."""
