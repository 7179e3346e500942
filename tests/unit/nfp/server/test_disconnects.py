"""DISCONNECT to the workers of an earlier run, until they speak."""

import asyncio

from broker.nfp.frames import decode
from broker.nfp.names import Command, Dialect
from broker.nfp.records import WorkerSeen
from broker.nfp.server import disconnects as module
from broker.nfp.server.disconnects import Disconnects
from tests.unit.nfp.server.stage import until

WORKERS = [WorkerSeen("w1", "svc", Dialect.NORFAB, ""), WorkerSeen("w2", "svc", Dialect.SEED, "")]


def test_each_is_told_in_its_dialect_until_it_speaks(monkeypatch):
    monkeypatch.setattr(module, "KEYLESS_S", 0.01)
    monkeypatch.setattr(module, "DELIVERED_S", 0.02)

    async def story():
        sent, there = [], set()

        def send(identity, frames):
            if identity in there:
                sent.append((identity, decode(frames)))
            return identity in there

        disconnects = Disconnects(asyncio.get_running_loop(), send, 5.0)
        disconnects.begin(WORKERS)
        await asyncio.sleep(0.05)
        assert sent == []
        there.update((b"w1", b"w2"))
        await until(lambda: len({who for who, _ in sent}) == 2)
        assert {(who, packet.command, packet.dialect, packet.body) for who, packet in sent} == {
            (b"w1", Command.DISCONNECT, Dialect.NORFAB, None),
            (b"w2", Command.DISCONNECT, Dialect.SEED, None),
        }
        disconnects.spoke("w1")
        disconnects.spoke("stranger")
        sent.clear()
        await until(lambda: len(sent) >= 3)
        assert {who for who, _ in sent} == {b"w2"}
        assert disconnects.missing == ["w2"]
        disconnects.close()

    asyncio.run(story())


def test_it_ends_after_a_hold_time(monkeypatch):
    monkeypatch.setattr(module, "KEYLESS_S", 0.01)

    async def story():
        tried = []

        def send(identity, frames):
            tried.append(identity)
            return False

        disconnects = Disconnects(asyncio.get_running_loop(), send, 0.5)
        disconnects.begin(WORKERS)
        await until(lambda: disconnects.missing == [])
        assert len(tried) >= 4
        count = len(tried)
        await asyncio.sleep(0.03)
        assert len(tried) == count

    asyncio.run(story())


def test_names_that_are_no_identities_are_left_out():
    async def story():
        odd = [WorkerSeen("\x07bell", "svc", Dialect.NORFAB, "")]
        disconnects = Disconnects(asyncio.get_running_loop(), lambda identity, frames: True, 1.0)
        disconnects.begin(odd)
        assert disconnects.missing == []
        disconnects.close()

    asyncio.run(story())


def test_whose_key_is_known_is_tried_once_it_is_back(monkeypatch):
    monkeypatch.setattr(module, "FIRST_S", 0.01)
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    workers = [WorkerSeen("w1", "svc", Dialect.NORFAB, "K1"), WorkerSeen("w2", "svc", Dialect.NORFAB, "K2")]

    async def story():
        tried = []

        def send(identity, frames):
            tried.append(identity)
            return len(tried) > 3

        disconnects = Disconnects(asyncio.get_running_loop(), send, 5.0)
        disconnects.begin(workers)
        await asyncio.sleep(0.05)
        assert tried == []
        disconnects.arrived("K1")
        disconnects.arrived("stranger")
        await until(lambda: disconnects.sent)
        assert tried == [b"w1"] * 4
        disconnects.spoke("w1")
        disconnects.arrived("K1")
        await asyncio.sleep(0.05)
        assert len(tried) == 4
        disconnects.close()

    asyncio.run(story())
