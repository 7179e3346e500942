"""A task that blocks the event loop: the log says which and where, and the broker goes on to hear of the worker."""

import asyncio
import logging
import time
from types import SimpleNamespace

from broker.nfp.names import Command
from broker.nfp.worker import shared_loop
from broker.nfp.worker.shared_loop import LoopWatch
from tests.tables import for_each
from tests.unit.nfp.worker.rig import PATIENCE_S, RawBroker, final, made, post, result, working


def test_a_task_that_blocks_is_named_while_the_heartbeat_goes_on(monkeypatch, caplog):
    monkeypatch.setattr(shared_loop, "LOOK_S", 0.01)
    monkeypatch.setattr(shared_loop, "BLOCKED_S", 0.03)

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
                session = worker._session
                enough, end = session.keepalives_sent + 3, time.monotonic() + PATIENCE_S
                while session.keepalives_sent < enough or "blocked" not in caplog.text:
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
                assert result(await final(broker))["result"] == {"n": 1}

    with caplog.at_level(logging.WARNING, "headgate"):
        asyncio.run(main())
    assert "by task blocks of job u1, " in caplog.text
    assert f"{__file__}:" in caplog.text
    assert "(blocks)" in caplog.text


@for_each(("left_s", "beats"), [(60.0, True), (0.0, False)])
def test_a_blocked_loop_has_a_heartbeat_for_the_time_of_its_job(monkeypatch, caplog, left_s, beats):
    monkeypatch.setattr(shared_loop, "LOOK_S", 0.01)
    monkeypatch.setattr(shared_loop, "BLOCKED_S", 0.03)

    async def main():
        beaten = []
        caplog.clear()
        job = SimpleNamespace(uuid="u1", task="x", left_s=left_s, running=asyncio.current_task())
        other = SimpleNamespace(uuid="u2", task="y", left_s=60.0 - left_s, running=None)
        running = {"u1": job, "u2": other}
        session = SimpleNamespace(worker="w1", running=running, beat_from_thread=lambda: beaten.append(1))
        watch = LoopWatch(session)
        watch.start()
        end = time.monotonic() + PATIENCE_S
        while "is blocked for" not in caplog.text:
            assert time.monotonic() < end
            time.sleep(0.005)  # noqa: ASYNC251 (that is the point)
        watch.stop()
        return bool(beaten)

    with caplog.at_level(logging.WARNING, "headgate"):
        assert asyncio.run(main()) is beats
    assert "by task x of job u1" in caplog.text
    assert ("no sign of life" in caplog.text) is not beats
