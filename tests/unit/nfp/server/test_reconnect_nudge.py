"""DISCONNECT to the workers of an earlier run, until they speak."""

import asyncio
from contextlib import asynccontextmanager

from broker.nfp.frames import decode
from broker.nfp.names import Command, Dialect
from broker.nfp.records import WorkerSeen
from broker.nfp.server import connections as module
from broker.nfp.server.connections import ReconnectNudge
from tests.unit.nfp.server.stage import until

WORKERS = [WorkerSeen("w1", "svc", Dialect.NORFAB, ""), WorkerSeen("w2", "svc", Dialect.SEED, "")]


class Connection:
    """Of a worker: what it was sent."""

    def __init__(self):
        self.sent, self.there = [], True

    def send(self, frames):
        if self.there:
            self.sent.append(decode(frames))
        return self.there


@asynccontextmanager
async def waiting(patience_s=5.0, workers=WORKERS):
    nudge = ReconnectNudge(asyncio.get_running_loop(), patience_s)
    nudge.begin(workers)
    yield nudge
    nudge.close()


async def test_each_is_told_in_its_dialect_until_it_speaks(monkeypatch):
    monkeypatch.setattr(module, "DELIVERED_S", 0.02)
    one, two, stranger = Connection(), Connection(), Connection()
    async with waiting() as nudge:
        for name, each in (("w1", one), ("w2", two), ("stranger", stranger)):
            nudge.arrived(name, each.send)
        await until(lambda: one.sent and two.sent)
        assert {(each.command, each.dialect, each.body) for each in (one.sent[0], two.sent[0])} == {
            (Command.DISCONNECT, Dialect.NORFAB, None),
            (Command.DISCONNECT, Dialect.SEED, None),
        }
        nudge.spoke("w1")
        nudge.spoke("stranger")
        before = len(one.sent)
        await until(lambda: len(two.sent) >= 4)
        assert (len(one.sent), stranger.sent) == (before, [])
        assert nudge.missing == ["w2"]
        assert nudge.sent == before + len(two.sent)


async def test_who_speaks_at_once_is_told_nothing():
    one = Connection()
    async with waiting() as nudge:
        nudge.arrived("w1", one.send)
        nudge.spoke("w1")
        await asyncio.sleep(2 * module.FIRST_S)
        assert one.sent == []


async def test_who_has_gone_is_told_when_it_is_back(monkeypatch):
    monkeypatch.setattr(module, "DELIVERED_S", 0.02)
    one, two = Connection(), Connection()
    async with waiting() as nudge:
        nudge.arrived("w1", one.send)
        await until(lambda: one.sent)
        one.there = False
        await asyncio.sleep(0.05)
        assert nudge.missing == ["w1", "w2"]
        nudge.arrived("w1", two.send)
        await until(lambda: two.sent)


async def test_it_ends_after_a_hold_time():
    one = Connection()
    async with waiting(0.05) as nudge:
        await until(lambda: nudge.missing == [])
        nudge.arrived("w1", one.send)
        await asyncio.sleep(2 * module.FIRST_S)
        assert one.sent == []


async def test_names_that_are_no_identities_are_left_out():
    async with waiting(workers=[WorkerSeen("\x07bell", "svc", Dialect.NORFAB, "")]) as nudge:
        assert nudge.missing == []
