"""A thousand rpc-servers of one topic on twenty nodes of this machine: who finds them, who is called, what each takes.

A node is a loopback address of its own with a proxy and one application that has fifty servers. Two nodes' directories
are what all others announce to and read from. A client without a proxy of its own asks one of them, too.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from statistics import mean
from typing import TYPE_CHECKING, Self

import zmq

from broker.oslo.directory import wire
from broker.oslo.directory.peer import PULSE_S
from broker.oslo.directory.wire import DirectoryKind
from tests.bench import processes
from tests.bench.oslo_contenders import Fake, Peer, Pipelines, stopping
from tests.bench.targets import Row
from tests.bench.works import say
from tests.live.oslo_wire import hear

if TYPE_CHECKING:
    from tests.bench.works import Bench

NODES = 20
SERVERS = 50
CROWD = NODES * SERVERS
CENTRAL = 2
TOPIC = "crowd"
FOUND_S = 60.0
DELIVERED_S = 30.0
SETTLE_S = 2.0
RUN = 1


class Watch:
    """A reader of a directory by hand: which listeners of the CALL pipeline it has been told of, and when."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._sock = self._context.socket(zmq.DEALER)
        self._sock.linger = 0
        self._sock.connect(endpoint)
        self._sock.send_multipart(wire.encode(DirectoryKind.HELLO, wire.Hello(want=True)))
        self._beat_s = time.monotonic()
        self._of_node: dict[str, set[str]] = {}
        self.found: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._sock.close(0)
        self._context.term()

    def until(self, count: int, within_s: float) -> float:
        """The monotonic time at which ``count`` listeners were known.

        Raises:
            RuntimeError: they were not, within that time.
        """
        end = time.monotonic() + within_s
        while len(self.found) < count:
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise RuntimeError(f"{len(self.found)} of {count} servers known after {within_s:.0f} s")
            if time.monotonic() >= self._beat_s:  # or it is taken for somebody who is gone
                self._beat_s = time.monotonic() + PULSE_S
                self._sock.send_multipart(wire.encode(DirectoryKind.BEAT, ()))
            if self._sock.poll(round(1000 * min(left_s, PULSE_S))):
                self._take(*hear(self._sock))
        return time.monotonic()

    def _take(self, head: bytes, body: bytes) -> None:
        said = json.loads(body or b"{}")
        if head[4] != DirectoryKind.STATES:
            return
        for state in said["states"]:
            if state["pipeline"] == "call":
                listeners = {record[3] for record in state.get("records", ()) if record[1] == TOPIC}
                self.found -= self._of_node.get(state["node"], set())
                self._of_node[state["node"]] = listeners
                self.found |= listeners


def measure(bench: Bench) -> list[Row]:
    """oslo.messaging: a thousand servers on twenty nodes: registration, strict round robin, memory of each."""
    keys = ("oslo_crowd_ready", "oslo_crowd_found", "oslo_crowd_wrong", "oslo_crowd_memory")
    if why := Pipelines.missing():
        return [Row(key, note=why) for key in keys]
    with ExitStack() as stack:
        nodes = _nodes(stack)
        apps = [node.side(node.server_url, "servers") for node in nodes]
        client = nodes[1].side(nodes[1].client_url, "client")
        stack.enter_context(stopping([client, *apps]))
        for peer in (client, *apps):
            peer.hear()
        empty = memory(nodes, apps)
        ready = register(nodes[0], apps)
        time.sleep(SETTLE_S)
        full = memory(nodes, apps)
        began = time.monotonic()
        with Watch(nodes[0].directory) as fresh:
            found = fresh.until(CROWD, FOUND_S) - began
        called = everybody_called(client)
        cast = everybody_cast(client, apps)
    return _rows(keys, ready, found, [called, cast], empty, full)


def _nodes(stack: ExitStack) -> list[Pipelines]:
    """The first ``CENTRAL`` are the directories of all, of each other as well."""
    nodes = [Pipelines(f"127.0.0.{number + 2}") for number in range(NODES)]
    central = [node.directory for node in nodes[:CENTRAL]]
    for node in nodes:
        stack.callback(node.stop)
        node.directories = tuple(each for each in central if each != node.directory)
        node.launch()
    for node in nodes:
        node.await_ready()
    return nodes


def register(directory: Pipelines, apps: list[Peer]) -> float:
    """All begin to listen at the same time; seconds until a client's directory has told it of the last server."""
    with Watch(directory.directory) as watch:
        began = time.monotonic()
        for number, app in enumerate(apps):
            app.tell(do="serve", topic=TOPIC, servers=[f"{number}-{each}" for each in range(SERVERS)])
        try:
            seconds = watch.until(CROWD, FOUND_S) - began
        except RuntimeError as error:
            words = {app.log.read_text()[-300:] for app in apps} - {""}
            raise RuntimeError(f"{error}; their processes say {sorted(words)[:4]}") from error
    for app in apps:
        app.hear()
    say(f"{CROWD} servers on {NODES} nodes: all known {seconds:.1f} s after they began")
    return seconds


def everybody_called(client: Peer) -> int:
    """A call for each: how many servers had none, or more than one."""
    client.ask(do="reach", topic=TOPIC)
    answer = client.ask(do="round", topic=TOPIC, count=CROWD)
    once = list(answer["names"].values()).count(1)
    say(f"{CROWD} calls in {answer['seconds']:.1f} s: {once} servers had exactly one")
    return CROWD - once


def everybody_cast(client: Peer, apps: list[Peer]) -> int:
    """A cast for each: how many servers had none, or more than one."""
    for app in apps:
        app.ask(do="forget", run=RUN)
    client.ask(do="casts", topic=TOPIC, run=RUN, size=200, count=CROWD)
    for app in apps:
        app.tell(do="take", count=SERVERS, within_s=DELIVERED_S)
    taken = [app.hear() for app in apps]
    doubled = sum(int(each["twice"]) for each in taken)
    once = sum(list(each["each"].values()).count(1) for each in taken)
    say(f"{CROWD} casts: {once} servers had exactly one, {doubled} came twice")
    return CROWD - once + doubled


def memory(nodes: list[Pipelines], apps: list[Peer]) -> dict[str, float]:
    """Resident bytes of a proxy and of an application, on average."""
    return {
        "proxy": mean(processes.rss_bytes(node.pids[0]) for node in nodes),
        "application": mean(processes.rss_bytes(app.pid) for app in apps),
    }


def floor_kib() -> float:
    """What a server takes of an application with ``fake:``: oslo.messaging's own share."""
    with Fake() as fake:
        side = fake.side(fake.server_url, "servers")
        with stopping([side]):
            side.hear()
            before = processes.rss_bytes(side.pid)
            side.ask(do="serve", topic=TOPIC, servers=[str(number) for number in range(SERVERS)])
            return (processes.rss_bytes(side.pid) - before) / SERVERS / 1024


def _rows(
    keys: tuple[str, ...],
    ready: float,
    found: float,
    wrong: list[int],
    empty: dict[str, float],
    full: dict[str, float],
) -> list[Row]:
    grown = {part: (full[part] - empty[part]) / SERVERS / 1024 for part in full}
    own = floor_kib()
    say(
        f"memory of a server: {grown['proxy']:.0f} KiB of the proxy, {grown['application']:.0f} KiB of its process"
    )
    rows = [Row(key) for key in keys]
    values = (ready, found, float(sum(wrong)), sum(grown.values()))
    texts = (
        f"{ready:.1f} s",
        f"{1000 * found:.0f} ms",
        f"calls: {wrong[0]}, casts: {wrong[1]}",
        f"proxy {grown['proxy']:.0f}, its process {grown['application']:.0f} KiB",
    )
    for row, value, text in zip(rows, values, texts, strict=True):
        row.settle([value])
        row.figures["headgate"] = text
    rows[3].figures["fake:"] = f"its process {own:.0f} KiB"
    rows[3].raw = {"empty": empty, "full": full, "fake_kib": own}
    return rows
