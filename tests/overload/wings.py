"""Loads on the brokers of other protocols: clients and workers of NFP, clients and servers of oslo.messaging."""

import itertools
import os
import secrets
from collections.abc import Iterator
from typing import Any

import zmq

from broker.nfp import frames
from broker.nfp.frames import Packet
from broker.nfp.names import Command
from broker.oslo.frames import Kind, encode, new_id
from broker.oslo.node import NodeConfig
from broker.oslo.records import Opening, Record, to_json
from tests.live.nfp import ready, reply, request
from tests.overload.ground import Ground
from tests.overload.lines import Line, ZmqLine

CHUNK = 100
_names = itertools.count(1)


def packed(packets: list[Packet]) -> list[list[bytes]]:
    return [[bytes(each) for each in frames.encode(packet)] for packet in packets]


def _peer(ground: Ground) -> ZmqLine:
    name = f"load-{os.getpid()}-{next(_names)}"
    return ground.connected(zmq.DEALER, ground.place.nfp, name.encode())


def _posts(service: str, body: bytes) -> Iterator[list[list[bytes]]]:
    for first in itertools.count(0, CHUNK):
        uuids = [f"load-{os.getpid()}-{next(_names)}-{first + each}" for each in range(CHUNK)]
        yield packed([request(Command.POST, uuid, service, body=body) for uuid in uuids])


def nfp_jobs(ground: Ground) -> None:
    """Jobs for a worker that takes them all and does none."""
    worker = _peer(ground)
    worker.push(packed([ready("load")]))
    work: dict[Line, Any] = {_peer(ground): _posts("load", b'{"task":"x"}') for _ in range(4)}
    ground.flood(work, worker)


def nfp_nobody(ground: Ground) -> None:
    """Jobs and questions for services that nobody offers."""
    ask = packed([request(Command.GET, f"no-{number}", "nobody") for number in range(CHUNK)])
    work: dict[Line, Any] = {_peer(ground): itertools.repeat(ask)}
    work |= {_peer(ground): _posts("nobody", bytes(10_000)) for _ in range(2)}
    ground.flood(work)


def nfp_workers(ground: Ground) -> None:
    """Workers that come, each with a service of its own, say things about jobs that never were, and leave."""
    while not ground.over:
        lines = [_peer(ground) for _ in range(20)]
        work: dict[Line, Any] = {}
        for line in lines:
            name = f"s{next(_names)}"
            strange = reply(request(Command.POST, f"never-{name}", name), service=name)
            work[line] = iter([packed([*[strange] * CHUNK, ready(name)])])
        ground.flood(work)
        ground.close(list(lines))


def _oslo(ground: Ground, kind: int, socket: str) -> ZmqLine:
    return ground.connected(
        kind, "ipc://" + NodeConfig(ground.place.oslo).path(socket).removeprefix("ipc://")
    )


def _asked(kind: Kind, topic: str, body: bytes) -> Iterator[list[list[bytes]]]:
    while True:
        yield [[encode(kind, "x", topic, "", (), id=new_id()), body] for _ in range(CHUNK)]


def oslo_calls(ground: Ground) -> None:
    """Calls of a topic that nobody serves, small ones and large ones."""
    work: dict[Line, Any] = {
        _oslo(ground, zmq.DEALER, "call.in"): _asked(Kind.CALL, "nobody", bytes(size))
        for size in (2, 2, 50_000)
    }
    ground.flood(work)


def oslo_casts(ground: Ground) -> None:
    """Casts to a topic that nobody serves."""
    work: dict[Line, Any] = {
        _oslo(ground, zmq.PUSH, "cast.in"): _asked(Kind.CAST, "nobody", bytes(size)) for size in (2, 5_000)
    }
    ground.flood(work)


def oslo_servers(ground: Ground) -> None:
    """Servers that open topics, no end of them."""

    def work() -> Iterator[list[list[bytes]]]:
        while True:
            yield [[encode(Kind.OPEN, id=new_id()), _opening()] for _ in range(10)]

    ground.flood({_oslo(ground, zmq.DEALER, "call.ctl"): work() for _ in range(2)})


def _opening() -> bytes:
    listener = secrets.token_hex(12)
    return to_json(Opening(listener, (Record("x", f"t{next(_names)}", "s", listener),)))


LOADS = {
    "nfp.jobs": nfp_jobs,
    "nfp.nobody": nfp_nobody,
    "nfp.workers": nfp_workers,
    "oslo.calls": oslo_calls,
    "oslo.casts": oslo_casts,
    "oslo.servers": oslo_servers,
}
