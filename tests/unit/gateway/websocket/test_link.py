"""The link on a live connection: readers that do not read, floods of pings, and ends that the peer can see."""

import asyncio
import struct

import msgspec
import pytest

from broker.errors import LinkBroken, LinkClosed
from broker.wire.framing import Splitter
from broker.wire.message import event, request, response
from gateway.closes import NORMAL, SHUTDOWN, SLOW
from gateway.events.run import Run
from gateway.websocket import frames
from gateway.websocket import link as links
from tests.unit.gateway.websocket.house import is_full, is_gone, masked

BINARY, TEXT, CLOSE, PING, PONG = 2, 1, 8, 9, 10


def numbered(number: int, size: int = 1000):
    made = event("e", bytes(size))
    made.set_aux1(number)
    return made


async def heard(peer, last) -> list:
    """What the peer reads until ``last`` says so of a decoded message or object; filler left out."""
    out = []
    while not (out and last(out[-1])):
        first, payload = await peer.frame()
        assert first in (0x81, 0x82, 0x8A), f"the end came first, after {len(out)}"
        if first == 0x82:
            out += Splitter().feed(payload)
        elif first == 0x81:
            obj = msgspec.json.decode(payload)
            out += [obj] if obj["type"] != "filler" else []
        else:
            out.append(payload)
    return out


# -- one write a flush -------------------------------------------------------------------------


async def test_what_one_tick_sends_is_one_write(house):
    peer = await house.connect()
    link = house.sessions.opened[0].link
    progress = link.outbox.progress
    for number in range(1, 4):
        link.send(numbered(number))
    link.send_run(Run([numbered(4), numbered(5)]))
    link.tell({"type": "pong"})
    link.ping()
    assert await heard(peer, lambda each: each == {"type": "pong"}) == [
        *(numbered(number) for number in range(1, 6)),
        {"type": "pong"},
    ]
    assert await peer.frame() == (0x89, b"")
    assert link.outbox.progress == progress + 1


async def test_a_burst_above_the_write_size_arrives_whole(house):
    peer = await house.connect()
    link = house.sessions.opened[0].link
    sent = [numbered(number, 10_000) for number in range(1, 200)]
    for message in sent:
        link.send(message)
    assert await heard(peer, lambda each: each.sequence == 199) == sent
    assert link.outbox.queued_bytes == 0
    assert not link.outbox.choked


async def test_runs_share_their_bytes_while_they_wait(house):
    (_, near), (_, far) = await house.stalled(), await house.stalled()
    run = Run([numbered(1), numbered(2)])
    near.send_run(run)
    far.send_run(run)
    assert near.outbox.queue[-1][0] is far.outbox.queue[-1][0]


# -- slow readers ------------------------------------------------------------------------------


async def test_slow_reader_with_policy_disconnect_is_told_why(open_house):
    house = await open_house(outbox_bytes=20_000)
    peer, link = await house.stalled()
    for number in range(1, 40):
        link.send(numbered(number))
    (error,) = house.sessions.opened[0].ends
    assert isinstance(error, LinkBroken)
    assert link.code == 4002
    assert link.outbox.queued_bytes == 0
    assert house.sessions.options.budget.used_bytes == 0
    link.send(numbered(40))
    link.tell({"type": "pong"})
    peer.read_again()
    before, code, reason = await peer.closing()
    assert code == 4002
    assert "does not read" in reason
    told = msgspec.json.decode(before[-1][1])
    assert (told["type"], told["code"], told["reconnect"]) == ("error", 4002, True)
    # on a busy machine the kernel takes the first ones after all
    taken = [each.sequence for first, payload in before if first == 0x82 for each in Splitter().feed(payload)]
    assert taken == list(range(1, len(taken) + 1)), "no event after those that had to wait were discarded"


@pytest.mark.parametrize("subprotocol", ["flux.v1", "flux.v1.json"])
async def test_slow_reader_with_policy_drop_hears_of_the_gap_in_order(open_house, subprotocol):
    house = await open_house(outbox_bytes=20_000)
    peer, link = await house.stalled(subprotocol, query="?overflow=drop")
    for number in range(1, 101):
        link.send_run(Run([numbered(number)]))
    link.send(response(request("r", matchtag=3), b"answer\0"))
    assert link.ended is None
    dropped = link.outbox.dropped_events
    assert 50 < dropped < 100
    peer.read_again()
    await house.until(lambda: not is_full(link))
    link.send(numbered(101))
    if subprotocol == "flux.v1":
        out = await heard(peer, lambda each: getattr(each, "sequence", 0) == 101)
        events = [each.sequence for each in out if getattr(each, "type", 0) == 4]
        (gap,) = (each for each in out if isinstance(each, dict))
        assert out.index(gap) == len(out) - 2, "the notice is right before the next event"
        assert [each.matchtag for each in out if getattr(each, "type", 0) == 2] == [3]
    else:
        objects = await heard(peer, lambda each: each.get("sequence") == 101)
        events = [each["sequence"] for each in objects if each["type"] == "event"]
        (gap,) = (each for each in objects if each["type"] == "gap")
        assert objects.index(gap) == len(objects) - 2
    kept = 100 - dropped
    assert events == [*range(1, kept + 1), 101]
    assert gap == {"type": "gap", "lost": dropped, "from": kept + 1, "to": 100}


async def test_each_gap_has_its_own_notice(open_house):
    house = await open_house(outbox_bytes=4_096, slow_policy="drop")
    peer, link = await house.stalled()
    lost = 0
    number = 0
    for _ in range(3):
        while not is_full(link) or link.outbox.gap is None or link.outbox.gap.lost < 5:
            number += 1
            link.send_run(Run([numbered(number)]))
            link.flush()
        lost += link.outbox.gap.lost
        peer.read_again()
        await heard(peer, lambda each: isinstance(each, dict))
        peer.writer.transport.pause_reading()
    assert link.outbox.dropped_events == lost >= 15
    assert link.ended is None


async def test_without_a_gap_notice_there_is_no_dropping(open_house):
    house = await open_house(slow_policy="drop")
    await house.connect("ZWS2.0")
    await house.connect("flux.v1")
    await house.connect("flux.v1", query="?overflow=disconnect")
    policies = [session.link.outbox._limits.event_policy for session in house.sessions.opened]
    assert policies == ["disconnect", "drop", "disconnect"]


async def test_responses_are_never_dropped_but_bounded(open_house):
    house = await open_house(response_bytes=50_000, outbox_bytes=10_000, slow_policy="drop")
    peer, link = await house.stalled()
    kept = [response(request("r", matchtag=tag), bytes(1000)) for tag in range(1, 31)]
    for message in kept:
        link.send(message)
    assert link.ended is None
    assert house.sessions.opened[0].choked == [True]
    peer.read_again()
    assert await heard(peer, lambda each: each.matchtag == 30) == kept
    assert house.sessions.opened[0].choked == [True, False]
    peer, link = await house.stalled()
    for tag in range(1, 200):
        link.send(response(request("r", matchtag=tag), bytes(1000)))
    assert link.ended is not None
    peer.read_again()
    _, code, _ = await peer.closing()
    assert code == 4002


async def test_one_budget_for_all(open_house):
    house = await open_house(budget_bytes=60_000)
    (_, worst), (_, other) = await house.stalled(), await house.stalled()
    for tag in range(1, 45):
        worst.send(response(request("r", matchtag=tag), bytes(1000)))
    for tag in range(1, 30):
        other.send(response(request("r", matchtag=tag), bytes(1000)))
    assert worst.ended is not None
    assert other.ended is None
    assert house.sessions.options.budget.used_bytes <= 60_000


# -- pings -------------------------------------------------------------------------------------


async def test_a_flood_of_pings_waits_nowhere(house):
    peer, link = await house.stalled()
    before = link.outbox.queued_bytes
    life = link.life
    flood = b"".join(
        masked(PING, b"%0125d" % number, mask=b"mask") for number in range(5_000)
    )  # more than fits
    peer.write(flood + masked(PING, b"newest"))
    await house.until(lambda: link._web.owed == [frames.pong(b"newest")])
    assert link.outbox.queued_bytes <= before
    assert link.life > life
    peer.read_again()
    assert b"newest" in await heard(peer, lambda each: each == b"newest")
    assert link._web.owed == []


async def test_no_ping_is_queued_behind_what_waits(house):
    _, link = await house.stalled()
    before = link.outbox.queued_bytes
    for _ in range(100):
        link.ping()
    assert link.outbox.queued_bytes == before
    assert link.outbox.unflushed == []


# -- pausing -----------------------------------------------------------------------------------


async def test_a_paused_link_is_not_read(house):
    peer = await house.connect()
    session = house.sessions.opened[0]
    session.link.pause()
    peer.write(masked(BINARY, request("a", matchtag=1).framed()))
    await asyncio.sleep(0.05)
    assert session.messages == []
    session.link.resume()
    assert (await peer.frame())[0] == 0x82


# -- ends --------------------------------------------------------------------------------------


async def test_close_sends_what_is_queued_then_a_plain_close(house):
    peer = await house.connect()
    link = house.sessions.opened[0].link
    link.send(numbered(1))
    link.close("that was all")
    assert isinstance(link.ended, LinkClosed)
    before, code, reason = await peer.closing()
    assert [first for first, _ in before] == [0x82]
    assert (code, reason) == (NORMAL, "that was all")
    peer.write(masked(CLOSE, struct.pack(">H", NORMAL)))
    assert await peer.ended()


@pytest.mark.parametrize("slow", [False, True])
async def test_a_message_that_has_begun_goes_to_its_end_before_the_close(open_house, slow):
    """Else the client would find the close frame inside a message; what waits behind goes nowhere."""
    house = await open_house(response_bytes=100_000 if slow else 32 << 20)
    peer = await house.connect()
    peer.writer.transport.pause_reading()
    link = house.sessions.opened[0].link
    sent = [response(request("r", matchtag=tag), bytes(8 << 20)) for tag in (1, 2)]
    link.send(sent[0])
    link.flush()
    assert link.outbox.queued_bytes > 0
    if slow:
        link.send(sent[1])
        link.send(sent[1])
    else:
        link.send(sent[1])
        link.close_with(SHUTDOWN)
    assert link.ended is not None
    peer.read_again()
    before, code, _ = await peer.closing()
    assert code == (SLOW if slow else SHUTDOWN)
    assert [first for first, _ in before] == [0x82, 0x81]
    assert Splitter().feed(before[0][1]) == sent[:1]


async def test_the_error_object_comes_before_the_close_frame_and_both_before_the_end(house):
    peer = await house.connect()
    link = house.sessions.opened[0].link
    peer.write(masked(BINARY, b"x" * 60_000) * 10)  # unread at the end, this would make a reset of it
    link.pause()
    await asyncio.sleep(0.02)
    link.close_with(SHUTDOWN, "restarting " + "é" * 100)
    link.close_with(NORMAL)
    before, code, reason = await peer.closing()
    assert code == SHUTDOWN
    assert reason.startswith("restarting ")
    assert len(reason.encode()) in (122, 123)
    told = msgspec.json.decode(before[-1][1])
    assert told["text"] == "restarting " + "é" * 100
    peer.write(masked(CLOSE, struct.pack(">H", SHUTDOWN)))
    assert await peer.ended()
    assert len(house.sessions.opened[0].ends) == 1


async def test_a_peer_that_does_not_answer_the_close_is_cut_off(house, monkeypatch):
    monkeypatch.setattr(links, "LINGER_S", 0.1)
    peer = await house.connect()
    link = house.sessions.opened[0].link
    link.close_with(SHUTDOWN)
    assert (await peer.closing())[1] == SHUTDOWN
    peer.write(masked(BINARY, b"nobody reads this"))
    assert await peer.ended()
    assert is_gone(link)
    assert house.sessions.opened[0].messages == []


@pytest.mark.parametrize("by_peer", [True, False])
async def test_a_peer_that_never_reads_is_cut_off_all_the_same(house, monkeypatch, by_peer):
    monkeypatch.setattr(links, "LINGER_S", 0.1)
    peer, link = await house.stalled()
    if by_peer:
        peer.write(masked(CLOSE))
    else:
        link.close_with(SHUTDOWN)
    await house.until(lambda: is_gone(link))
    assert len(house.sessions.opened[0].ends) == 1


async def test_abort_ends_at_once(house):
    peer, link = await house.stalled()
    link.send(response(request("r", matchtag=1), bytes(1000)))
    link.abort(LinkBroken("on purpose"))
    assert house.sessions.opened[0].ends == [link.ended]
    assert link.outbox.discarded > 0
    link.send(numbered(1))
    link.close()
    peer.read_again()
    assert (await peer.closing())[1] == 1006


async def test_a_reset_by_the_peer_ends_the_link_once(house):
    """And what it sent by half is not held any longer: links are cycles, and garbage for minutes."""
    peer = await house.connect()
    link = house.sessions.opened[0].link
    peer.writer.write(masked(BINARY, bytes(60_000))[:50_000])
    await house.until(lambda: link.reader.pending_bytes > 40_000)
    peer.writer.get_extra_info("socket").setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER 0: a reset
    peer.writer.transport.abort()
    session = house.sessions.opened[0]
    await house.until(lambda: session.ends)
    session.link.send(numbered(1))
    session.link.flush()
    await asyncio.sleep(0.02)
    assert len(session.ends) == 1
    assert len(house.endpoint.keepalive) == 0
    assert link.reader.pending_bytes == 0


async def test_a_client_that_reads_one_large_message_slowly_is_alive(house):
    """Found here: only a transport that was empty again was a sign of life, and a blob takes minutes on a slow line."""
    peer, link = await house.stalled()
    peer.read_again()
    await house.until(lambda: not is_full(link))
    peer.writer.transport.pause_reading()
    link.send(response(request("r", matchtag=1), bytes(4 << 20)))
    await house.until(lambda: is_full(link))
    before, size = link.life, link.outbox.queued_bytes
    assert link.life == before, "nobody reads"
    peer.read_again()  # as much as a reader holds that nobody asks
    await house.until(lambda: link.outbox.queued_bytes < size)
    peer.writer.transport.pause_reading()
    assert link.outbox.queued_bytes > 0
    assert link.life > before
