"""Loads that nobody thought of: drawn by seed from what a guest may say. The same seed gives the same load.

A load is one to twelve links of a way each. A link says a list of messages over and over, reads or does not, and may be
opened anew after so many rounds. Messages are drawn of all four kinds with any flags, topics that exist and that do
not, any rank, and payloads from nothing to 100 kB.
"""

import contextlib
import random
from typing import Any

from broker.wire.message import (
    NODEID_ANY,
    NORESPONSE,
    PRIVATE,
    STREAMING,
    UPSTREAM,
    Message,
    control,
    event,
    request,
    response,
)
from broker.wire.payload import encode_json
from tests.overload.ground import REFUSED, Ground, service_add, subscription
from tests.overload.lines import Line

NODES = [NODEID_ANY, NODEID_ANY, 0, 0, 1, 2, 3, 7]
FLAGS = [0, 0, 0, 0, STREAMING, NORESPONSE, UPSTREAM, STREAMING | NORESPONSE, PRIVATE]
METHODS = {
    "broker.ping": [{"seq": 1}, {"pad": "p" * 2000}],
    "broker.stats-get": [None],
    "attr.get": [{"name": "rank"}, {"name": "no"}],
    "attr.list": [None],
    "groups.get": [{"name": "broker.online"}, {"name": "no"}],
    "overlay.health": [None],
    "overlay.topology": [{"rank": 0}],
    "state-machine.get": [None],
    "state-machine.wait": [None],
    "event.subscribe": [{"topic": ""}, {"topic": "victim"}, {"topic": "load."}],
    "event.unsubscribe": [{"topic": "victim"}, {"topic": "load."}],
    "event.publish": [{"topic": "load.p", "flags": 0}],
    "service.add": [{"service": "random"}, {"service": "other"}],
    "service.remove": [{"service": "random"}],
    "log.dmesg": [{"follow": True}],
    "random.x": [None, {"x": 1}],
    "random.disconnect": [None],
    "groups.disconnect": [None],
    "overlay.cancel": [{"matchtag": 1}],
    "no.such": [None],
}


def payload(dice: random.Random) -> bytes | None:
    """None, or bytes whose length is drawn evenly by magnitude."""
    return None if dice.random() < 0.2 else bytes(int(10 ** dice.uniform(0, 5)))


def message(dice: random.Random) -> Message:
    """Any valid message."""
    kind = dice.choices(["method", "request", "event", "response", "control"], [8, 3, 4, 1, 0.2])[0]
    if kind == "event":
        flags = dice.choice([0, 0, 0, PRIVATE])
        return event(f"load.{dice.randrange(3)}", payload(dice), flags=flags)
    if kind == "control":
        return control(dice.randrange(4), dice.randrange(4))
    topic = dice.choice(sorted(METHODS))
    body: bytes | None = payload(dice)
    if kind == "method":
        told: Any = dice.choice(METHODS[topic])
        body = None if told is None else encode_json(told)
    flags, tag = dice.choice(FLAGS), dice.choice([0, 1, 1, 2, dice.randrange(1 << 20)])
    asked = request(topic, body, nodeid=dice.choice(NODES), flags=flags, matchtag=tag)
    for _ in range(dice.choice([0, 0, 0, 0, 1, 3])):
        asked.push_route(bytes(dice.choices(b"abcdef0123456789", k=8)))
    return asked if kind != "response" else response(asked, body, errnum=dice.choice([0, 1, 11]))


def script(dice: random.Random) -> list[Message]:
    """What one link says, over and over: at most a MiB."""
    said, room = [], 1 << 20
    few = [message(dice) for _ in range(dice.randrange(1, 9))]
    for _ in range(dice.choice([1, 10, 100, 300])):
        said.append(dice.choice(few))
        room -= said[-1].size
        if room < 0:
            break
    return said


def drawn(ground: Ground) -> None:
    """The load of the ground's seed."""
    dice = random.Random(ground.seed)
    scripts = [script(dice) for _ in range(dice.choice([1, 2, 4, 8, 12]))]
    reads = [dice.random() < 0.8 for _ in scripts]
    ways = [dice.choice(["unix", "child"]) if ground.way == "random" else ground.way for _ in scripts]
    rounds = dice.choice([50, 1000, 10**9, 10**9])
    provides = dice.random() < 0.6
    while not ground.over:
        work: dict[Line, Any] = {}
        deaf = set()
        for way, said, read in zip(ways, scripts, reads, strict=True):
            for line in ground.open(1, way):
                chunk = line.prepare(said)
                work[line] = (chunk for _ in range(rounds))
                if not read:
                    deaf.add(line)
                if provides and len(work) == 1:
                    with contextlib.suppress(*REFUSED):
                        line.push(line.prepare([service_add("random"), subscription("load.")]))
                        line.settle()
        ground.flood(work, deaf=frozenset(deaf))
        ground.close(list(work))
