"""One thread beside the loop, answers remembered while the files stay, bounded waiting; what is said without any."""

import asyncio
import json
import sys
import threading

import pytest

from broker.extras import install
from gateway.history import reader
from gateway.history.files import Absent
from gateway.history.reader import WAITING_MAX, Busy, History, Question, TooWide
from gateway.history.tables import Warehouse
from gateway.pipeline import lake
from gateway.pipeline.schema import TABLES
from tests.live import warehouse as wh


@pytest.fixture
def house(tmp_path):
    wh.write(tmp_path, "slow", wh.slow())
    return tmp_path


WIDE = Question("slow", wh.FIRST, wh.LAST)


async def test_answers_are_remembered_until_a_file_changes(house, monkeypatch):
    read = []
    real = Warehouse.read

    def counting(self, *given, **more):
        read.append(threading.current_thread())
        return real(self, *given, **more)

    monkeypatch.setattr(Warehouse, "read", counting)
    history = History(str(house), 31)
    try:
        first = await history.ask(WIDE)
        assert await history.ask(WIDE) == first
        assert len(read) == 1
        assert read[0] is not threading.main_thread()
        wh.write(house, "slow", [{**row, "events": 1} for row in wh.slow()], "part-1")
        second = json.loads(await history.ask(WIDE))
        assert len(read) == 2
        assert second["total"] == json.loads(first)["total"] + 21
        at = lake.Snapshot(TABLES["slow"], house / "slow")
        at.commit([], removed=[file for file in at.files() if "part-1" in file.path])
        assert await history.ask(WIDE) == first
        assert len(read) == 2, "what is as it was is remembered, too"
    finally:
        history.close()


async def test_a_summary_from_memory_is_as_fresh_as_it_is(house, monkeypatch):
    wh.write(house, "_runs", wh.runs(wh.LAST))
    now = [wh.LAST + 100.0]
    monkeypatch.setattr(reader.time, "time", lambda: now[0])
    history = History(str(house), 31)
    asked = Question("summary", wh.FIRST, wh.LAST)
    try:
        first = json.loads(await history.ask(asked))
        now[0] += 50
        second = json.loads(await history.ask(asked))
        assert (first.pop("fresh_s"), second.pop("fresh_s")) == (100, 150)
        assert first == second
        assert len(history._kept) == 1
        wh.write(house, "_runs", wh.runs(wh.LAST + 120), "part-1")
        assert json.loads(await history.ask(asked))["fresh_s"] == 30
        wh.write(house, "traffic", wh.traffic())
        assert "traffic" in json.loads(await history.ask(asked))["tables"]
    finally:
        history.close()


async def test_what_is_remembered_is_bounded(house, monkeypatch):
    monkeypatch.setattr(reader, "KEPT_BYTES", 6000)
    history = History(str(house), 31)
    try:
        for hours in range(1, 30):
            await history.ask(Question("slow", wh.FIRST, wh.FIRST + hours * 3600))
        assert 0 < history._kept_bytes <= 6000
        assert history._kept_bytes == sum(map(len, history._kept.values()))
    finally:
        history.close()


async def test_too_many_that_wait_are_turned_away(house, monkeypatch):
    going = threading.Event()
    real = Warehouse.check

    def slowly(self):
        assert going.wait(20)
        real(self)

    monkeypatch.setattr(Warehouse, "check", slowly)
    history = History(str(house), 31)
    try:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(history.ask(WIDE)) for _ in range(WAITING_MAX)]
            await asyncio.sleep(0)
            with pytest.raises(Busy):
                await history.ask(WIDE)
            going.set()
        assert len({task.result() for task in asked}) == 1
        await history.ask(WIDE)
    finally:
        going.set()
        history.close()


async def test_a_time_that_is_too_long_is_refused(house):
    history = History(str(house), 1)
    try:
        with pytest.raises(TooWide, match=r"at most history\.max_days, 1 days"):
            await history.ask(Question("slow", wh.FIRST, wh.FIRST + 86402))
        await history.ask(Question("slow", wh.FIRST, wh.FIRST + 86400))
    finally:
        history.close()


async def test_what_is_missing_is_said_in_words(tmp_path, monkeypatch):
    async def said(directory):
        history = History(directory)
        try:
            text = await history.missing()
            with pytest.raises(Absent) as caught:
                await history.ask(WIDE)
            assert str(caught.value) == text
            return text
        finally:
            history.close()

    assert "--history DIR" in await said(None)
    assert "headgate pipeline batch" in await said(str(tmp_path / "not-yet"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert install("history") in await said(str(tmp_path))


async def test_a_closed_history_answers_nobody(house):
    history = History(str(house))
    await history.ask(WIDE)
    history.close()
    with pytest.raises(Absent, match="shutting down"):
        await history.ask(WIDE)
