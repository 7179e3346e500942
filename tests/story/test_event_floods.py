"""Who publishes as fast as the socket takes it costs itself only: no link ends, nothing is lost, others get answers."""

from collections.abc import Iterator

import pytest

from broker.wire.message import event, request
from broker.wire.payload import encode_json
from tests.live.brokers import eventually, one_broker, tree
from tests.live.load import Party, Subscriber, numbered, stop_all
from tests.live.speaker import provide

pytestmark = [pytest.mark.story, pytest.mark.patient]

BLOCK_BYTES = 64 << 10
EVENTFUL_S = 90.0
OVERTAKEN_MAX = 10_000
"""Events that may arrive while a ping crosses the tree and comes back; there are some hundreds, and were 100 000."""


class Flood(Party):
    """``count`` numbered events, as fast as the socket takes them; from a provider, if it has a ``service``."""

    def __init__(self, uri: str, who: int, count: int, pad: int = 0, service: str = "") -> None:
        super().__init__(uri, f"flood {who}")
        self.who, self.count, self.pad = who, count, pad
        if service:
            provide(self.speaker, service)
        self.blocks = self._blocks() if pad else list(self._blocks())  # the small ones, before it begins
        self.speaker.sock.settimeout(None)

    def _blocks(self) -> Iterator[bytes]:
        frames: list[bytes] = []
        for number in range(self.count):
            frames.append(event(f"flood.{self.who}", numbered(self.who, number, self.pad)).framed())
            if len(frames) * (self.pad + 50) >= BLOCK_BYTES:
                yield b"".join(frames)
                frames = []
        yield b"".join(frames)

    def act(self) -> None:
        for block in self.blocks:
            self.speaker.sock.sendall(block)
        assert self.speaker.ask(request("broker.ping", encode_json({}), matchtag=1), EVENTFUL_S).errnum == 0


class Pinger(Party):
    """Pings ``rank``, one after the other, until stopped; ``longest`` is what ``ear`` heard during one, at the most."""

    def __init__(self, uri: str, rank: int, ear: Subscriber) -> None:
        super().__init__(uri, f"pinger of {rank}")
        self.rank, self.ear, self.longest, self.done = rank, ear, 0, 0
        self.start()

    def act(self) -> None:
        while not self.stopping:
            heard = self.ear.received
            ping = request("broker.ping", encode_json({}), matchtag=self.done + 1, nodeid=self.rank)
            assert self.speaker.ask(ping, EVENTFUL_S).errnum == 0
            self.longest = max(self.longest, self.ear.received - heard)
            self.done += 1


def complaints(brokers) -> list[str]:
    words = (" ERROR ", "disconnected", "lost", "joined", "is gone")
    began = "listens at"
    return [
        line
        for broker in brokers
        for line in broker.lines()
        if began not in line and any(word in line for word in words)
    ]


@pytest.mark.parametrize(
    ("rank", "links", "count", "pad", "service"),
    [
        pytest.param(1, 1, 400, 100_000, "", id="large"),
        pytest.param(3, 8, 2500, 0, "mine", id="small-of-providers"),
        *(
            pytest.param(*each, id=name, marks=pytest.mark.slow)
            for name, each in {
                "very-large": (1, 1, 2000, 100_000, ""),
                "large-of-providers": (1, 4, 500, 100_000, "mine"),
                "many-small": (1, 8, 20_000, 0, ""),
                "many-small-of-providers": (3, 8, 20_000, 0, "mine"),
                "many-small-at-rank-0": (0, 8, 20_000, 0, ""),
            }.items()
        ),
    ],
)
def test_a_flood_through_the_tree_arrives_whole_while_others_are_answered(
    rundir, rank, links, count, pad, service
):
    with tree(rundir, 4) as running:
        uris = [each.uri for each in running.ranks]
        before = complaints(running.ranks)
        ears = [Subscriber(uri, "flood", f"ear at {uri}") for uri in uris[: 4 if pad else 1]]
        pingers = [Pinger(uris[at], of, ears[0]) for at, of in ((0, 3), (3, 0), (1, 2))]
        floods = [Flood(uris[rank], who, count, pad, service and f"{service}{who}") for who in range(links)]
        for flood in floods:
            flood.start()
        eventually(lambda: {ear.received for ear in ears}, {links * count}, EVENTFUL_S)
        stop_all([*floods, *pingers, *ears])
        assert complaints(running.ranks) == before
        longest = [pinger.longest for pinger in pingers]
        assert max(longest) <= OVERTAKEN_MAX, longest


def test_a_subscriber_slower_than_a_publisher_loses_nothing(rundir):
    """Found here: it was disconnected at 16 MiB, however fast it read."""
    with one_broker(rundir) as broker:
        ears = [Subscriber(broker.uri, "flood", f"ear {number}") for number in range(10)]
        flood = Flood(broker.uri, 1, 400, 100_000)
        flood.start()
        eventually(lambda: [ear.received for ear in ears], [400] * 10, EVENTFUL_S)
        stop_all([flood, *ears])
        assert not any("disconnected" in line for line in broker.lines())
