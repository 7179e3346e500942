"""What happens in a turn is committed and flushed once."""

import asyncio
from math import inf

from broker.nfp.server.turns import Turns


class Sender:
    def __init__(self, log, name, turns=None):
        self.log, self.name, self.turns = log, name, turns

    def flush(self):
        self.log.append(self.name)
        if self.turns is not None and self.turns.committed < 5:
            self.turns.hold(self)


def made(log, tick=lambda now: inf):
    return Turns(
        asyncio.get_running_loop(),
        commit=lambda: log.append("commit"),
        tick=tick,
        sent=lambda: log.append("sent"),
        overtaking=lambda: False,
    )


def test_one_commit_and_one_flush_for_a_turn():
    async def story():
        log = []
        turns = made(log)
        one, other = Sender(log, "one"), Sender(log, "other")
        for sender in (one, other, one):
            turns.touch(sender)
        assert log == []
        await asyncio.sleep(0)
        assert log == ["commit", "one", "other", "sent"]
        await asyncio.sleep(0)
        turns.soon()
        turns.finish()
        await asyncio.sleep(0)
        assert log[4:] == ["commit"]
        turns.close()

    asyncio.run(story())


def test_who_waits_for_a_commit_is_flushed_after_it():
    async def story():
        log = []
        turns = made(log)
        gated = Sender(log, "gated", turns)
        turns.touch(gated)
        turns.finish()
        turns.finish()
        assert log.count("gated") == 1
        turns.commit_done(4)
        assert log.count("gated") == 2
        turns.commit_done(5)
        assert log.count("gated") == 3
        turns.commit_done(6)
        assert log.count("gated") == 3
        turns.close()

    asyncio.run(story())


def test_forgotten_senders_are_left_alone():
    async def story():
        log = []
        turns = made(log)
        gated = Sender(log, "gated", turns)
        turns.touch(gated)
        turns.forget(gated)
        turns.finish()
        turns.hold(gated)
        turns.forget(gated)
        turns.commit_done(1)
        assert "gated" not in log
        turns.close()

    asyncio.run(story())


def test_timers_run_when_they_are_due_and_never_late():
    async def story():
        loop = asyncio.get_running_loop()
        begin, ticks, log = loop.time(), [], []

        def tick(now):
            ticks.append(now - begin)
            return begin + 0.05 if now < begin + 0.05 else inf

        turns = made(log, tick)
        for _ in range(5):
            turns.finish()
        async with asyncio.timeout(5):
            while ticks[-1] < 0.05:
                await asyncio.sleep(0.005)
        assert len(ticks) == 6
        turns.close()

    asyncio.run(story())


def test_a_timer_that_fails_is_tried_again(caplog):
    async def story():
        log, calls = [], []

        def tick(now):
            calls.append(now)
            raise ValueError("broken")

        turns = made(log, tick)
        turns.finish()
        assert log == ["commit"]
        turns.close()
        assert "a timer of the dispatcher failed" in caplog.text

    asyncio.run(story())
