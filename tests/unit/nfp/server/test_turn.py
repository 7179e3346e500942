"""What happens in a turn is committed and flushed once."""

import asyncio
from math import inf

from broker.nfp.server.turn import Turn


class Sender:
    def __init__(self, log, name, turn=None):
        self.log, self.name, self.turn = log, name, turn

    def flush(self):
        self.log.append(self.name)
        if self.turn is not None and self.turn.committed < 5:
            self.turn.hold(self)


def made(log, tick=lambda now: inf):
    return Turn(
        asyncio.get_running_loop(),
        commit=lambda *, waited: log.append("commit at once" if waited else "commit"),
        tick=tick,
        gate_is_stuck=lambda: False,
    )


def test_one_commit_and_one_flush_for_a_turn():
    async def story():
        log = []
        turn = made(log)
        one, other = Sender(log, "one"), Sender(log, "other")
        for sender in (one, other, one):
            turn.touch(sender)
        assert log == []
        await asyncio.sleep(0)
        assert log == ["commit", "one", "other"]
        await asyncio.sleep(0)
        turn.soon()
        turn.finish()
        await asyncio.sleep(0)
        assert log[3:] == ["commit"]
        turn.close()

    asyncio.run(story())


def test_what_a_timer_says_leaves_in_the_same_turn():
    async def story():
        log = []

        def tick(now):
            turn.touch(Sender(log, "late"))
            return inf

        turn = made(log, tick)
        turn.finish()
        assert log == ["commit", "late"]
        await asyncio.sleep(0)
        assert len(log) == 2
        turn.close()

    asyncio.run(story())


def test_who_waits_for_a_commit_is_flushed_after_it():
    async def story():
        log = []
        turn = made(log)
        gated = Sender(log, "gated", turn)
        turn.touch(gated)
        turn.finish()
        turn.finish()
        assert log.count("gated") == 1
        turn.commit_done(4)
        assert log.count("gated") == 2
        turn.commit_done(5)
        assert log.count("gated") == 3
        turn.commit_done(6)
        assert log.count("gated") == 3
        turn.close()

    asyncio.run(story())


def test_a_commit_that_nobody_waits_for_may_come_later():
    async def story():
        log = []
        turn = made(log)
        sender = Sender(log, "one")
        turn.touch(sender, 1)
        turn.finish()
        turn.commit_done(1)
        turn.touch(sender, 1)
        turn.finish()
        assert [each for each in log if each.startswith("commit")] == ["commit at once", "commit", "commit"]
        turn.close()

    asyncio.run(story())


def test_forgotten_senders_are_left_alone():
    async def story():
        log = []
        turn = made(log)
        gated = Sender(log, "gated", turn)
        turn.touch(gated)
        turn.forget(gated)
        turn.finish()
        turn.hold(gated)
        turn.forget(gated)
        turn.commit_done(1)
        assert "gated" not in log
        turn.close()

    asyncio.run(story())


def test_timers_run_when_they_are_due_and_never_late():
    async def story():
        loop = asyncio.get_running_loop()
        begin, ticks, log = loop.time(), [], []

        def tick(now):
            ticks.append(now - begin)
            return begin + 0.05 if now < begin + 0.05 else inf

        turn = made(log, tick)
        for _ in range(5):
            turn.finish()
        async with asyncio.timeout(5):
            while ticks[-1] < 0.05:
                await asyncio.sleep(0.005)
        assert len(ticks) == 6
        turn.close()

    asyncio.run(story())


def test_a_timer_that_fails_is_tried_again(caplog):
    async def story():
        log, calls = [], []

        def tick(now):
            calls.append(now)
            raise ValueError("broken")

        turn = made(log, tick)
        turn.finish()
        assert log == ["commit"]
        turn.close()
        assert "a timer of the dispatcher failed" in caplog.text

    asyncio.run(story())


def test_a_sender_that_fails_costs_no_other_one_its_turn(caplog):
    async def story():
        log = []
        turn = made(log)

        class Broken(Sender):
            def flush(self):
                raise ValueError("broken")

        for sender in (Broken(log, "first"), Sender(log, "second")):
            turn.touch(sender)
        turn.finish()
        assert log == ["commit", "second"]
        for sender in (Broken(log, "first"), Sender(log, "third")):
            turn.hold(sender)
        turn.commit_done(1)
        assert log[-1:] == ["third"]
        assert caplog.text.count("could not be flushed") == 2
        turn.close()

    asyncio.run(story())


def test_a_commit_that_cannot_begin_does_not_end_the_turns(caplog):
    async def story():
        log = []

        def commit(**_):
            raise ValueError("broken")

        turn = Turn(
            asyncio.get_running_loop(),
            commit=commit,
            tick=lambda now: inf,
            gate_is_stuck=lambda: False,
        )
        turn.touch(Sender(log, "one"))
        turn.finish()
        turn.touch(Sender(log, "two"))
        await asyncio.sleep(0)
        assert log == ["one", "two"]
        turn.close()

    asyncio.run(story())
