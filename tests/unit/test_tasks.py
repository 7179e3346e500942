"""Tasks that somebody looks after."""

import asyncio
import logging

import pytest

from broker.tasks import Tasks, first_of

pytestmark = pytest.mark.interpreter


def test_a_fault_is_logged_and_all_end_together(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("headgate"), "propagate", True)

    async def fails():
        raise ValueError("of ours")

    async def script():
        tasks = Tasks()
        waits = tasks.spawn("waits", asyncio.Event().wait())
        tasks.spawn("fails", fails())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(tasks) == 1
        await tasks.stop()
        assert waits.cancelled()
        assert not tasks
        await tasks.stop()

    asyncio.run(script())
    assert [record.getMessage() for record in caplog.records] == ["task fails failed"]


def test_the_first_of_several_ends_the_wait_and_the_others():
    ended = []

    async def waits(name, seconds):
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append(name)

    async def fails():
        raise ValueError("no")

    async def script():
        assert await first_of(waits("a", 0), waits("b", 60)) is True
        assert await first_of(waits("c", 60), waits("d", 0)) is False
        assert await first_of(waits("e", 60), seconds=0.01) is False
        assert ended == ["a", "b", "d", "c", "e"]
        with pytest.raises(ValueError, match="no"):
            await first_of(waits("f", 60), fails())
        assert ended[-1] == "f"

    asyncio.run(script())
