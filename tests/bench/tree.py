"""A tree of 131 072 routers in one process: in-process links, no I/O, the routing room as it is.

A link is an entry in one FIFO queue: what a router sends is handed to the neighbour's router in order. Every
hand-over between two routers is counted, so hops are what the messages really made.
"""

import gc
import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from broker.identity import Credentials, Role
from broker.routing.port import CHILD, CLIENT, OWN, PARENT, Port
from broker.routing.router import Router
from broker.routing.topology import Topology
from broker.wire.message import EVENT, REQUEST, Message, event, request, response
from tests.bench import processes
from tests.bench.targets import Row

if TYPE_CHECKING:
    from tests.bench.works import Bench

SIZE = 131_072
CALLS = 1024
WINDOW = 64
SAMPLED_RANKS = 500
OWNER = Credentials(1000, Role.OWNER)
CLIENT_OWNER = Credentials(1000, Role.OWNER | Role.LOCAL)
UNSTAMPED = Credentials().encode()


def stamp(port: Port, received: bytes) -> bytes:
    """The owner's clients are stamped; a tree link is believed and clears LOCAL."""
    stamped = CLIENT_OWNER.encode() if received == UNSTAMPED else received
    if port.kind != CLIENT:
        stamped = stamped[:7] + bytes((stamped[7] & ~Role.LOCAL,))
    port.stamps[received] = stamped
    return stamped


def never_congested(_origin: Port, _target: Port, _size: int) -> bool:
    return False


class Tree:
    """Routers and the queue that joins them.

    Attributes:
        hops: hand-overs between two routers so far. answers: what came back to the client at rank 0.
    """

    def __init__(self, size: int) -> None:
        self.topology = Topology(size, 2)
        self.queue: deque[tuple[Router, Port, Message]] = deque()
        self.hops = 0
        self.answers: list[Message] = []
        self.tags = 0
        self.routers = [self._router(rank) for rank in range(size)]
        for rank in range(1, size):
            self._join(self.routers[self.topology.parent(rank)], self.routers[rank])
        self.client = Port(CLIENT, uuid(size), self.answers.append, CLIENT_OWNER)
        self.routers[0].attach(self.client)

    def _router(self, rank: int) -> Router:
        own = Port(OWN, uuid(rank), self.answers.append, OWNER)
        return Router(rank, self.topology, uuid(rank), own, stamp, never_congested)

    def _join(self, parent: Router, child: Router) -> None:
        down = Port(CHILD, child.uuid, self.answers.append, OWNER, rank=child.rank)
        up = Port(PARENT, parent.uuid, self.answers.append, OWNER, rank=parent.rank)
        down.send = self._sender(child, up)
        up.send = self._sender(parent, down)
        parent.attach(down)
        child.attach(up)

    def _sender(self, to: Router, arriving_at: Port) -> Callable[[Message], None]:
        put = self.queue.append
        return lambda message: put((to, arriving_at, message.copy()))

    def serve(self, rank: int) -> None:
        """A provider of the service ``bench`` at ``rank``: it answers what it gets."""
        router = self.routers[rank]
        if router.services.find(b"bench") is None:
            provider = Port(CLIENT, uuid(SIZE + 1 + rank), self.answers.append, CLIENT_OWNER)
            provider.send = lambda message: self.queue.append((router, provider, response(message)))
            router.attach(provider)
            router.services.add(b"bench", provider)

    def run(self) -> None:
        """Hand over until nothing is left."""
        take = self.queue.popleft
        while self.queue:
            router, port, message = take()
            if port.kind != CLIENT:
                self.hops += 1
            kind = message.head[3]
            if kind == REQUEST:
                router.request(port, message)
            elif kind == EVENT:
                router.events.receive(port, message)
            else:
                router.response(port, message)

    def call(self, rank: int, count: int) -> None:
        """``count`` calls from rank 0, a window at a time.

        Raises:
            AssertionError: not every one was answered in order and without an error.
        """
        for first in range(0, count, WINDOW):
            tags = range(self.tags + 1, self.tags + 1 + min(WINDOW, count - first))
            self.tags += len(tags)
            self.queue.extend(
                (self.routers[0], self.client, request("bench.echo", b"x", nodeid=rank, matchtag=tag))
                for tag in tags
            )
            self.run()
            assert [(answer.aux1, answer.aux2) for answer in self.answers] == [(0, tag) for tag in tags]
            self.answers.clear()


def uuid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def measure(bench: "Bench") -> list[Row]:
    """131 072 ranks: hops that messages make, and what a hop costs near and far."""
    gc.disable()
    try:
        began = time.monotonic()
        tree = Tree(SIZE)
        built = time.monotonic() - began
        gc.freeze()
        rows = [_hops(tree), _flat(tree, bench.rounds)]
        rows[0].figures["headgate"] = f"depth {tree.topology.max_depth()}"
        _event(tree)  # the first one teaches every router whose stamp to believe
        rows[0].raw |= {
            "built_s": built,
            "rss_bytes": processes.rss_bytes(os.getpid()),
            "event": _event(tree),
        }
        _say(f"built in {built:.1f} s, {rows[0].raw['rss_bytes'] / 2**20:.0f} MiB; {rows[0].raw['event']}")
        return rows
    finally:
        gc.unfreeze()
        gc.enable()


def _hops(tree: Tree) -> Row:
    """How far above twice its depth a call to a rank came: every hop beyond is one too many."""
    row = Row("tree_hops")
    extra = []
    for rank in [SIZE - 1, *random.Random(1).sample(range(1, SIZE), SAMPLED_RANKS)]:
        tree.serve(rank)
        before = tree.hops
        tree.call(rank, 1)
        extra.append(tree.hops - before - 2 * tree.topology.depth(rank))
    row.settle([float(max(extra, key=abs))])
    return row


def _flat(tree: Tree, rounds: int) -> Row:
    """Microseconds a hop costs, by depth; what a call costs besides its hops is taken off."""
    deepest = tree.topology.max_depth()
    depths = [2, 4, 8, deepest]
    costs: dict[int, list[float]] = {depth: [] for depth in depths}
    for depth in (0, *depths):
        tree.serve(2**depth - 1)
        tree.call(2**depth - 1, WINDOW)
    for _ in range(rounds):
        local = _timed(tree, 0)
        for depth in depths:
            costs[depth].append((_timed(tree, depth) - local) / (2 * depth))
    row = Row(
        "tree_flat", raw={"us_per_hop": {depth: [1e6 * cost for cost in costs[depth]] for depth in depths}}
    )
    row.settle([far / near for far, near in zip(costs[deepest], costs[2], strict=True)])
    texts = {depth: f"{1e6 * median(values):.2f} µs" for depth, values in costs.items()}
    row.figures["headgate"] = texts[deepest] + " a hop"
    _say("a hop costs " + ", ".join(f"{text} at depth {depth}" for depth, text in texts.items()))
    return row


def _timed(tree: Tree, depth: int) -> float:
    began = time.perf_counter()
    tree.call(2**depth - 1, CALLS)
    return (time.perf_counter() - began) / CALLS


def _event(tree: Tree) -> str:
    """One event from the deepest rank reaches every rank once."""
    publisher = Port(CLIENT, uuid(3 * SIZE), tree.answers.append, CLIENT_OWNER)
    deepest = tree.routers[-1]
    deepest.attach(publisher)
    before, began = tree.hops, time.perf_counter()
    tree.queue.append((deepest, publisher, event("bench.tick", b"x")))
    tree.run()
    elapsed, hops = time.perf_counter() - began, tree.hops - before
    assert hops == tree.topology.max_depth() + SIZE - 1
    assert all(router.events.sequence == tree.routers[0].events.sequence for router in tree.routers)
    cost = f"{1e6 * elapsed / hops:.2f} µs a link"
    return f"one event reached {SIZE} ranks over {hops} links in {elapsed:.2f} s, {cost}"


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
