"""Leaving without cutting anybody short: open calls get their answers, queued messages their readers, for so long.

Only calls that were open when the broker was told to leave are waited for: what comes later is served as long as the
broker is there, and does not keep it. Streams have no end of their own, so nobody waits for one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from broker.routing.port import OWN, Decision, Port

if TYPE_CHECKING:
    from broker.node.broker import Broker

CHILDREN_S: Final = 5.0
"""How long a leaving broker waits for its children to leave first, at least."""
FOLLOW_S: Final = 2.0
"""Children drain for as long as we do; so much later the last has said goodbye."""
QUEUES_S: Final = 5.0
"""How long a leaving broker waits for its clients to read what is queued for them."""
STALL_S: Final = 0.5
"""It waits no longer when none of them has taken a byte for so long."""
OTHERS_S: Final = 5.0
"""For what runs beside the broker, and the goodbye to the parent."""
_LOOK_S: Final = 0.01
Call = tuple[bytes, list[Decision]]
"""Open calls of one sender and matchtag: their key, and what was decided about them."""


def children_s(drain_s: float) -> float:
    """Seconds for the children of a broker that drains ``drain_s``."""
    return max(CHILDREN_S, drain_s + FOLLOW_S)


def bound_s(drain_s: float) -> float:
    """Seconds that leaving takes at the very most."""
    return children_s(drain_s) + QUEUES_S + OTHERS_S


async def finish_calls(broker: Broker, seconds: float) -> int:
    """Wait until the calls that are open now are answered; returns how many are not after ``seconds``."""
    end = asyncio.get_running_loop().time() + seconds
    waiting = _open_calls(broker)
    broker.router.invalidate()  # calls to come get decisions of their own, even where a matchtag is used again
    while waiting and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(_LOOK_S)
        waiting = {port: calls for port, calls in waiting.items() if port.live and not _are_over(port, calls)}
    return sum(_is_open(port, call) for port, calls in waiting.items() for call in calls)


def _open_calls(broker: Broker) -> dict[Port, list[Call]]:
    """The calls that end with an answer, by the port that made them; the broker's own are left out: nobody else loses
    them.
    """
    found: dict[Port, list[Call]] = {}
    for port in broker.router.ports:
        if port.kind != OWN:
            single = [
                (key, [call for call in _having(port, key) if call.single_response]) for key in port.pending
            ]
            if calls := [(key, decisions) for key, decisions in single if decisions]:
                found[port] = calls
    return found


def _having(port: Port, key: bytes) -> list[Decision]:
    entry = port.pending.get(key)
    return [] if entry is None else entry.decisions(key)


def _are_over(port: Port, calls: list[Call]) -> bool:
    """Take those that are answered off the end; one that is not is all that has to be known of the others."""
    while calls and not _is_open(port, calls[-1]):
        calls.pop()
    return not calls


def _is_open(port: Port, call: Call) -> bool:
    key, decisions = call
    return any(now in decisions for now in _having(port, key))


async def empty_queues(broker: Broker) -> None:
    """Wait until the clients have taken what is queued for them, while any of them still takes some."""
    loop = asyncio.get_running_loop()
    # behind this, services have answered the last change of state, and what waited for its turn is queued
    await asyncio.sleep(0)
    end = loop.time() + QUEUES_S
    moved, seen = loop.time(), -1
    broker.flusher.flush()
    while loop.time() < min(end, moved + STALL_S):
        links = [port.link for port in broker.router.ports if port.link is not None]
        waiting = [link.outbox for link in links if link.outbox.queue]
        if not waiting:
            return
        progress = sum(outbox.progress for outbox in waiting)
        if progress != seen:
            moved, seen = loop.time(), progress
        await asyncio.sleep(_LOOK_S)
