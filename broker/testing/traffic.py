"""Checks of what passes a link: order, boundaries, and what a reader that does not read costs whom."""

from __future__ import annotations

import asyncio
import os

from broker.errors import LinkBroken, LinkClosed, LinkEnded
from broker.testing.harness import (
    SOON_S,
    Accepting,
    Harness,
    Recorder,
    connected,
    dial_pair,
    numbered,
    send_all,
    topics,
)
from broker.transport.link import Link
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

STALL_MSGS = 6000
STALL_BYTES = 16 << 10
"""94 MiB in all: more than any transport and its kernel hold for a reader that does not read."""
STALLED_BYTES = 40 << 20
"""So much is not in the outbox of a link because its transport had no time yet to take it off."""
PART_SIZES = (0, 1, 254, 255, 256, 65535, 65536, 1 << 20)


# -- what arrives ---------------------------------------------------------------------------------


async def check_order(harness: Harness) -> None:
    """2 000 messages of mixed sizes and types, flushed at odd places, arrive in order in both directions at once."""
    async with connected(harness) as pair:
        sent: dict[Link, list[str | None]] = {pair.near: [], pair.far: []}
        for number in range(2000):
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
        assert topics(await pair.far_in.count(2000)) == sent[pair.near]
        assert topics(await pair.near_in.count(2000)) == sent[pair.far]


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


async def send_until_stalled(link: Link) -> list[Message]:
    """Send until much more waits here than the transport will take off it; returns what was sent."""
    sent: list[Message] = []
    while len(sent) < STALL_MSGS and link.outbox.queued_bytes < STALLED_BYTES:
        more = [event(f"n.{len(sent) + number}", bytes(STALL_BYTES)) for number in range(100)]
        send_all(link, more)
        sent += more
        await asyncio.sleep(0)
    return sent


async def check_stalled_reader(harness: Harness) -> None:
    """A reader that pauses makes the sender's outbox fill and say so; afterwards everything arrives, in order."""
    limits = OutboxLimits(cap_bytes=256 << 20, event_bytes=256 << 20)
    async with connected(harness, harness.listening(limits=limits)) as pair:
        pair.near.pause()
        await asyncio.sleep(0)
        messages = await send_until_stalled(pair.far)
        await pair.far_in.until(lambda seen: seen.choked)
        assert pair.far_in.choked[0] is True
        assert pair.far.outbox.queued_bytes > limits.high_bytes
        assert not pair.near_in.messages
        pair.near.resume()
        assert topics(await pair.near_in.count(len(messages))) == topics(messages)
        await pair.far_in.until(lambda seen: seen.choked[-1] is False)
        assert pair.far.outbox.queue is None
        assert pair.far.outbox.queued_bytes == 0


async def check_stall_costs_nobody_else(harness: Harness) -> None:
    """While one reader of a listener stalls, another gets its messages."""
    limits = OutboxLimits(cap_bytes=256 << 20, event_bytes=256 << 20)
    accepting = Accepting()
    listener = await harness.transport.listen(
        harness.new_address(), accepting, harness.listening(limits=limits)
    )
    stalled = await dial_pair(harness, listener, accepting, harness.dialling())
    lively = await dial_pair(harness, listener, accepting, harness.dialling())
    stalled.near.pause()
    await send_until_stalled(stalled.far)
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
    async with connected(harness, harness.listening(limits=limits)) as pair:
        pair.near.pause()
        await asyncio.sleep(0)
        for number in range(STALL_MSGS):
            send_all(pair.far, [request(f"n.{number}", b"x" * STALL_BYTES)])
            if number % 100 == 0:
                await asyncio.sleep(0)
        assert isinstance(await pair.far_in.end(), LinkBroken)
        assert pair.far.outbox.discarded > 0
        assert pair.far.outbox.queued_bytes == 0
        pair.near.resume()
        assert isinstance(await pair.near_in.end(), LinkEnded | LinkBroken)
        assert topics(pair.near_in.messages) == [
            f"n.{number}" for number in range(len(pair.near_in.messages))
        ]


async def check_one_message_of_any_size(harness: Harness) -> None:
    """A message far beyond every limit passes, whatever small ones wait in front of it; so does an event beside it."""
    limits = OutboxLimits(high_bytes=100_000, event_bytes=1 << 20, cap_bytes=1 << 20)
    big = b"x" * (5 << 20)
    call = [request("before"), request("big", big), request("after")]
    news = [event("news.before"), event("news.big", big), event("news.after")]
    async with connected(harness, harness.listening(limits=limits)) as pair:
        for sender, reader, recorder, messages in (
            (pair.far, pair.near, pair.near_in, call + news),
            (pair.near, pair.far, pair.far_in, call),  # what is held back for a reader knows no events
        ):
            reader.pause()
            await asyncio.sleep(0)
            send_all(sender, messages)
            await asyncio.sleep(SOON_S)
            assert (pair.far.ended, pair.near.ended) == (None, None)
            reader.resume()
            assert topics(await recorder.count(len(messages))) == topics(messages)
            assert [message.size for message in recorder.messages] == [message.size for message in messages]


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
                await asyncio.sleep(SOON_S)
                assert len(recorder.messages) == (turn - 1) * 50
                reader.resume()
                assert topics(await recorder.count(turn * 50)) == topics(numbered(50)) * turn


async def check_messages_wait_for_start(harness: Harness) -> None:
    """What arrives before ``start`` is delivered after it."""
    accepting = Accepting()
    listener = await harness.transport.listen(harness.new_address(), accepting, harness.listening())
    near = await harness.transport.dial(listener.contact_address, harness.dialling())
    send_all(near, numbered(1))
    far, far_in = await accepting.link(0)
    await far_in.count(1)
    send_all(far, numbered(20))
    await asyncio.sleep(SOON_S)
    near_in = Recorder()
    near.start(near_in)
    assert topics(await near_in.count(20)) == topics(numbered(20))
    near.close()
    await far_in.end()
    await listener.stop()


async def check_peer_that_leaves_while_paused(harness: Harness) -> None:
    """What a peer sent before it left is delivered, and only then the end is told.

    Whether a paused link notices at once that its peer has left, and then is paused no longer, or not before it is read
    again, is up to the transport. Nothing is lost either way.
    """
    for leaves in ("near", "far"):
        async with connected(harness) as pair:
            near, far = (pair.near, pair.near_in), (pair.far, pair.far_in)
            (leaver, _), (reader, recorder) = (near, far) if leaves == "near" else (far, near)
            reader.pause()
            await asyncio.sleep(0)
            send_all(leaver, numbered(50, 1000))
            leaver.close("gone")
            await asyncio.sleep(2 * SOON_S)
            assert bool(recorder.messages) is bool(recorder.ends)
            reader.resume()
            await recorder.end()
            assert topics(recorder.messages) == topics(numbered(50))
