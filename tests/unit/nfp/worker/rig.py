"""A worker under test beside a broker by hand."""

from __future__ import annotations

import asyncio
import contextlib
import json

import msgspec

from broker.nfp import bodies
from broker.nfp.names import Command
from broker.nfp.worker import Worker
from tests.unit.nfp.peer.raw_broker import PATIENCE_S, RawBroker, until

__all__ = ["PATIENCE_S", "RawBroker", "body", "confirm", "made", "post", "result", "until", "working"]

SERVICE = "dummy"


def made(broker: RawBroker, **options) -> Worker:
    """A worker with a few tasks."""
    options.setdefault("open_timeout_s", PATIENCE_S if broker.opens else 0.02)
    options.setdefault("files", False)
    options.setdefault("drain_s", PATIENCE_S)
    worker = Worker(SERVICE, name="w1", broker=broker.endpoint, **options)

    @worker.task
    def ping(n=1):
        return {"n": n}

    @worker.task
    async def aping(n=1):
        return {"n": n}

    return worker


@contextlib.asynccontextmanager
async def working(worker: Worker, broker: RawBroker, *, ready: bool = True):
    """Run ``worker`` for the length of the block; its READY is taken."""
    running = asyncio.get_running_loop().create_task(worker.run())
    try:
        if ready:
            packet = await broker.take_only(Command.READY, Command.DISCONNECT)  # a former worker's goodbye
            assert packet.service == worker.service
        yield running
    finally:
        if worker._session is not None:
            worker.drain_s = 0.0
            worker.stop()
        elif not running.done():
            running.cancel()  # it has not even begun
        await asyncio.wait([running], timeout=PATIENCE_S)
        assert running.done()


def post(broker: RawBroker, uuid: str, task: str, /, *args, client: bytes = b"c#1", timeout=60, **kwargs):
    """Give the worker a job."""
    said = {"task": task, "args": list(args), "kwargs": kwargs, "timeout": timeout}
    broker.say("w1", Command.POST, client=client, uuid=uuid, body=msgspec.json.encode(said))


def confirm(broker, *uuids, state=bodies.CONFIRMED):
    """The broker's word that these jobs are the worker's; with RECORDED: that it has their results on its disk."""
    said = {"service": SERVICE, "uuid": uuids[0], "status": 200, "status_text": state}
    broker.say("w1", Command.RESPONSE, **said, body=bodies.uuids(uuids))


def body(packet):
    """Its JSON."""
    return json.loads(packet.data)


async def final(broker):
    """The next RESPONSE that is no promise (201), which a job gets that takes its time, as all do on a busy machine."""
    packet = await broker.take_only(Command.RESPONSE, Command.KEEPALIVE)
    while packet.status == 201:
        packet = await broker.take_only(Command.RESPONSE, Command.KEEPALIVE)
    return packet


def result(packet, status=200):
    """What the final RESPONSE says of worker w1."""
    assert packet.command is Command.RESPONSE, packet
    assert packet.status == status, packet
    return body(packet)["w1"]
