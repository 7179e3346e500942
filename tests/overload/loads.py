"""Loads that are messages, for every kind of line. Each one is valid, and within what a guest may do."""

import contextlib
import itertools
import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

from broker.wire.framing import Splitter
from broker.wire.message import REQUEST, STREAMING, event, request, response
from broker.wire.payload import encode_json
from tests.overload.ground import REFUSED, Ground, goodbye, numbered, service_add, subscription
from tests.overload.lines import Line, StreamLine

CHUNK = 250
KIB = b"x" * 1024


def forever(chunk: Any) -> Iterator[Any]:
    return itertools.repeat(chunk)


def disconnects(ground: Ground) -> None:
    """Four links with many open calls each, and then pairs of a call and the notice that its caller is gone."""
    mutes, (name,) = ground.mute()
    call = request(f"{name}.x", nodeid=ground.nodeid)
    other = f"{name}.disconnect"

    def work(line: Line) -> Iterator[Any]:
        for first in range(1, 30_000, CHUNK):
            yield line.prepare(numbered(call, first, CHUNK))
        bye = request(other, nodeid=ground.nodeid, flags=4)
        yield from forever(line.prepare([each for one in numbered(call, 1, 128) for each in (one, bye)]))

    ground.flood({line: work(line) for line in ground.open(4)}, *mutes)


def departures(ground: Ground) -> None:
    """Providers that leave together, each with calls that wait for it, again and again."""
    while not ground.over:
        mutes, names = ground.mute(100)
        callers = ground.open(2)

        def work(line: Line, names: list[str] = names) -> Iterator[Any]:
            for name in names:
                yield line.prepare(numbered(request(f"{name}.x", nodeid=ground.nodeid), 1, 400))

        ground.flood({line: work(line) for line in callers}, *mutes)
        ground.close(mutes)
        ground.close(callers)


def _events(payload: bytes, links: int, many: int) -> Callable[[Ground], None]:
    def load(ground: Ground) -> None:
        lines = ground.open(links)
        ground.flood({line: forever(line.prepare([event("load.x", payload)] * many)) for line in lines})

    return load


events_large = _events(KIB * 100, 1, 1)
"""Events of 100 kB as fast as they are taken."""
events_huge = _events(KIB * 256, 1, 1)
"""Events as large as a guest's may be."""
events_refused = _events(KIB * 8192, 1, 1)
"""Events of 8 MiB, which nobody is sent."""
events_small = _events(b"x", 8, CHUNK)
"""Events of one byte from eight links."""


def names(ground: Ground) -> None:
    """Names of services, no end of them."""

    def work(line: Line) -> Iterator[Any]:
        for number in itertools.count(0, CHUNK):
            yield line.prepare([service_add(f"n{os.getpid()}-{number + each}") for each in range(CHUNK)])

    ground.flood({line: work(line) for line in ground.open(1)})


def streams(ground: Ground) -> None:
    """As many streams of built-in services as there may be, and more."""
    asked = [
        request("groups.get", encode_json({"name": "broker.online"}), nodeid=0, flags=STREAMING),
        request("overlay.health", nodeid=0, flags=STREAMING),
        request("state-machine.wait", nodeid=0, flags=STREAMING),
    ]

    def work(line: Line) -> Iterator[Any]:
        for first in itertools.count(1, CHUNK):
            yield line.prepare(numbered(asked[first // CHUNK % len(asked)], first, CHUNK))

    ground.flood({line: work(line) for line in ground.open(4)})


def toggles(ground: Ground) -> None:
    """One subscription after the other is taken and given back, the victims' own prefix among them."""
    pairs = [
        subscription(topic, word)
        for topic in ("victim", "v", "other.")
        for word in ("subscribe", "unsubscribe")
    ]
    ground.flood({line: forever(line.prepare(pairs * 20)) for line in ground.open(2)})


def prefixes(ground: Ground) -> None:
    """Subscriptions to prefixes, no end of them, all of which the victims' events have to be held against."""

    def work(line: Line) -> Iterator[Any]:
        for number in itertools.count(0, CHUNK):
            yield line.prepare([subscription(f"victim.{number + each:x}") for each in range(CHUNK)])

    ground.flood({line: work(line) for line in ground.open(4)})


def deaf(ground: Ground) -> None:
    """Calls with answers that nobody reads, from links that are opened anew when they end."""
    ping = request("broker.ping", encode_json({"pad": "p" * 4096}), nodeid=ground.nodeid, matchtag=1)
    while not ground.over:
        lines = ground.open(4)
        ground.flood({line: forever(line.prepare([ping] * 32)) for line in lines}, deaf=frozenset(lines))
        ground.close(lines)


def listeners(ground: Ground) -> None:
    """Links that subscribe to everything and do not read, while one publishes."""
    deaf_ones = ground.open(8)
    for line in deaf_ones:
        line.push(line.prepare([subscription("")]))
        with contextlib.suppress(*REFUSED):
            line.settle()
    ground.flood({line: forever(line.prepare([event("load.x", KIB)] * 50)) for line in ground.open(1)})


def pings(ground: Ground) -> None:
    """Calls as fast as they are answered, from eight links to every rank."""

    def work(line: Line) -> Iterator[Any]:
        body = encode_json({"pad": ""})
        yield from forever(
            line.prepare([request("broker.ping", body, nodeid=rank, matchtag=1) for rank in range(4)] * 16)
        )

    ground.flood({line: work(line) for line in ground.open(8)})


def large_calls(ground: Ground) -> None:
    """Calls of 1 MiB, answered with as much."""
    ping = request("broker.ping", encode_json({"pad": "p" * (1 << 20)}), nodeid=ground.nodeid, matchtag=1)
    ground.flood({line: forever(line.prepare([ping])) for line in ground.open(2)})


def nobody(ground: Ground) -> None:
    """Calls to services that do not exist, answers to calls that nobody made, notices of callers that never were."""
    ask = request("no.such.service", KIB, nodeid=ground.nodeid, matchtag=1)
    mixed = [ask, response(ask, KIB), goodbye("groups", 0), goodbye("no-such", 0)]
    ground.flood({line: forever(line.prepare(mixed * 50)) for line in ground.open(4)})


def big_answers(ground: Ground) -> None:
    """Thousands of calls at once, whose provider answers each with 10 kB as soon as it comes."""
    (provider,), (name,) = ground.mute()
    callers = ground.open(2)
    assert isinstance(provider, StreamLine)
    call = request(f"{name}.x", nodeid=ground.nodeid)
    splitter, waiting = Splitter(), []
    drop, provider.drain = provider.drain, lambda: b""  # type: ignore[method-assign]

    def answers() -> Iterator[bytes]:
        while True:
            waiting.extend(splitter.feed(drop()))
            asked, waiting[:] = [one for one in waiting if one.type == REQUEST], []
            yield provider.prepare([response(one, KIB * 10) for one in asked])
            if not asked:
                time.sleep(0.0005)

    def work(line: Line) -> Iterator[Any]:
        yield from forever(line.prepare(numbered(call, 1, 7000)))

    ground.flood({provider: answers(), **{line: work(line) for line in callers}})


def descriptors(ground: Ground) -> None:
    """Connections until there is no room, held for a moment, again and again."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    while not ground.over:
        held = ground.open(hard - 100)
        ground.sent += len(held)
        time.sleep(0.1)
        ground.close(held)


def churn(ground: Ground) -> None:
    """Connections that ask one thing and leave before the answer."""
    ping = request("broker.ping", encode_json({"seq": 1}), nodeid=ground.nodeid, matchtag=1)
    while not ground.over:
        for line in (lines := ground.open(10)):
            line.push(line.prepare([subscription("victim"), ping]))
        ground.sent += len(lines)
        ground.close(lines)


EVERYWHERE: dict[str, Callable[[Ground], None]] = {
    each.__name__: each
    for each in (
        disconnects, departures, names, streams, toggles, prefixes, deaf, listeners, pings, nobody, churn,
    )
} | {
    "events-large": events_large,
    "events-huge": events_huge,
    "events-refused": events_refused,
    "events-small": events_small,
    "calls-large": large_calls,
}  # fmt: skip
ON_SOCKETS: dict[str, Callable[[Ground], None]] = {"answers-large": big_answers, "descriptors": descriptors}
