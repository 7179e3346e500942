"""Tasks that somebody looks after."""

import asyncio
import logging

import pytest

from broker.tasks import Tasks

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
