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
        commit=lambda *, waited: log.append("commit at once" if waited else "commit"),
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


def test_within_a_turn_nobody_asks_for_its_end():
    async def story():
        log = []
        turns = made(log)
        turns.begin()
        turns.touch(Sender(log, "one"))
        turns.soon()
        await asyncio.sleep(0)
        assert log == []
        turns.finish()
        assert log == ["commit", "one", "sent"]
        turns.soon()
        await asyncio.sleep(0)
        assert log[3:] == ["commit"]
        turns.close()

    asyncio.run(story())


def test_what_a_timer_says_leaves_in_the_same_turn():
    async def story():
        log = []

        def tick(now):
            turns.touch(Sender(log, "late"))
            return inf

        turns = made(log, tick)
        turns.finish()
        assert log == ["commit", "late", "sent"]
        await asyncio.sleep(0)
        assert len(log) == 3
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


def test_a_commit_that_nobody_waits_for_may_come_later():
    async def story():
        log = []
        turns = made(log)
        sender = Sender(log, "one")
        turns.touch(sender, 1)
        turns.finish()
        turns.commit_done(1)
        turns.touch(sender, 1)
        turns.finish()
        assert [each for each in log if each.startswith("commit")] == ["commit at once", "commit", "commit"]
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


def test_a_sender_that_fails_costs_no_other_one_its_turn(caplog):
    async def story():
        log = []
        turns = made(log)

        class Broken(Sender):
            def flush(self):
                raise ValueError("broken")

        for sender in (Broken(log, "first"), Sender(log, "second")):
            turns.touch(sender)
        turns.finish()
        assert log == ["commit", "second", "sent"]
        for sender in (Broken(log, "first"), Sender(log, "third")):
            turns.hold(sender)
        turns.commit_done(1)
        assert log[-2:] == ["third", "sent"]
        assert caplog.text.count("could not be flushed") == 2
        turns.close()

    asyncio.run(story())


def test_a_commit_that_cannot_begin_does_not_end_the_turns(caplog):
    async def story():
        log = []

        def commit(**_):
            raise ValueError("broken")

        turns = Turns(
            asyncio.get_running_loop(),
            commit=commit,
            tick=lambda now: inf,
            sent=lambda: None,
            overtaking=lambda: False,
        )
        turns.touch(Sender(log, "one"))
        turns.finish()
        turns.touch(Sender(log, "two"))
        await asyncio.sleep(0)
        assert log == ["one", "two"]
        turns.close()

    asyncio.run(story())
