"""A task that blocks the event loop: the log says which and where, and the broker goes on to hear of the worker."""

import asyncio
import logging
import time

from broker.nfp.names import Command
from broker.nfp.worker import loop_watch
from tests.unit.nfp.worker.rig import PATIENCE_S, RawBroker, made, post, result, working


def test_a_task_that_blocks_is_named_while_the_heartbeat_goes_on(monkeypatch, caplog):
    monkeypatch.setattr(loop_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(loop_watch, "BLOCKED_S", 0.03)

    async def main():
        with RawBroker(opens=True) as broker:
            broker.keepalive_ms = 30
            broker.multiplier = 600
            worker = made(broker, store=False)
            entered = []

            @worker.task
            async def blocks(job):
                entered.append(job.uuid)
                job.progress("before")
                heartbeat = worker._session.consumer.heartbeat
                enough, end = heartbeat.sent + 3, time.monotonic() + PATIENCE_S
                while heartbeat.sent < enough or "blocked" not in caplog.text:
                    assert time.monotonic() < end
                    time.sleep(0.005)  # noqa: ASYNC251 (that is the point)

            async with working(worker, broker):
                post(broker, "u1", "blocks")
                kinds = []
                while "final" not in kinds:
                    _name, packet = await broker.take()
                    ended = packet.command is Command.RESPONSE and packet.status != 201
                    kinds.append("final" if ended else packet.command)
                assert not result(packet)["failed"]
                assert kinds.count(Command.KEEPALIVE) >= 3
                assert entered == ["u1"]
                post(broker, "u2", "ping")
                packet = await broker.take_only(Command.RESPONSE, Command.KEEPALIVE)
                assert result(packet)["result"] == {"n": 1}

    with caplog.at_level(logging.WARNING, "headgate"):
        asyncio.run(main())
    assert "by task blocks of job u1, " in caplog.text
    assert f"{__file__}:" in caplog.text
    assert "(blocks)" in caplog.text
