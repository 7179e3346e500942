"""A broker that is there before it has read what it remembers."""

import asyncio
import logging
import time

import pytest

from broker.nfp.awake import AwakeClock
from broker.nfp.dispatch.search import JobFilter
from broker.nfp.frames import Packet
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.principal import Principal, Standing
from broker.nfp.records import Dispatched, Finished, JobAdded
from broker.nfp.server import recollection
from broker.nfp.server.broker import NfpBroker
from broker.nfp.server.recollection import Recollection
from broker.nfp.store.writer import NotStored
from broker.nfp.targets import ANY
from broker.settings.nfp import NfpSection
from tests.unit.nfp.store.samples import opened, run, until

MANY = 1000
HOLDER = Principal("uid:7", Standing.USER, 7)


async def remembered(path) -> None:
    """A store with so many closed jobs."""
    async with opened(path) as store:
        for number in range(MANY):
            uuid = f"u{number}"
            store.put(JobAdded(uuid, "net", "ping", ANY, b"{}", b"c1", Dialect.NORFAB, "uid:7", 7, 600.0))
            store.put(Dispatched(uuid, "", "w1", 1))
            store.put(Finished(uuid, "", "w1", 1, 200, b'{"w1":%d}' % number, "done"))


def jobs_of(broker):
    """All that it knows, the oldest first."""
    search = broker.dispatcher.search(JobFilter(), lambda holder: True, MANY * 2, broker.loop.time())
    while search.step():
        pass
    return [job.uuid for job in reversed(search.found)]


def asks(command: Command, uuid: str, body: bytes = b"{}") -> Packet:
    return Packet(
        Sender.CLIENT, command, dialect=Dialect.NORFAB, service="net", target=ANY, uuid=uuid, body=body
    )


def test_it_listens_first_and_answers_for_what_it_has_still_to_read(tmp_path):
    async def story():
        await remembered(tmp_path / "nfp.db")
        endpoint = f"ipc://{tmp_path}/s"
        broker = NfpBroker(NfpSection(endpoint=endpoint, curve=False, base_dir=str(tmp_path), files=""))
        await broker.start()
        try:
            assert broker.endpoints
            assert jobs_of(broker) == []
            got = []
            client = broker.local_peer(HOLDER, "c1", got.append, frozenset({"push"}))
            client.submit(asks(Command.POST, "u0"))
            client.submit(asks(Command.GET, "u1"))
            await until(lambda: [packet.status for packet in got].count(200) == 2)
            assert {packet.data for packet in got if packet.status == 200} == {b'{"w1":0}', b'{"w1":1}'}
            await until(lambda: not broker.dispatcher.to_read())
            listed = jobs_of(broker)
            assert len(listed) == MANY
            assert [uuid for uuid in listed if uuid not in ("u0", "u1")] == [
                f"u{number}" for number in range(2, MANY)
            ]
            assert broker.dispatcher.counts.submitted == 0
        finally:
            await broker.stop()

    run(story())


def test_a_broker_that_is_stopped_while_it_reads_stops(tmp_path):
    async def story():
        await remembered(tmp_path / "nfp.db")
        endpoint = f"ipc://{tmp_path}/s"
        broker = NfpBroker(NfpSection(endpoint=endpoint, curve=False, base_dir=str(tmp_path), files=""))
        await broker.start()
        await broker.stop()
        assert broker.dispatcher.to_read()

    run(story())


class Scripted:
    """A dispatcher that wants three jobs, and a store that fails at first."""

    def __init__(self) -> None:
        self.wanted = ["a", "b", "c"]
        self.failures = 2

    def to_read(self):
        return self.wanted[:2]

    def was_read(self, uuids, rows, now):
        assert rows == [f"row of {uuid}" for uuid in uuids]
        del self.wanted[: len(uuids)]

    async def closed(self, uuids):
        if self.failures:
            self.failures -= 1
            raise NotStored("no disk")
        return [f"row of {uuid}" for uuid in uuids]


def test_a_store_that_cannot_be_read_is_tried_again(monkeypatch, caplog):
    monkeypatch.setattr(recollection, "AGAIN_S", 0.01)
    caplog.set_level(logging.INFO, "headgate")

    async def story():
        scripted, taken = Scripted(), []
        reading = Recollection(scripted, scripted, taken.extend, AwakeClock(time.monotonic))
        reading.start()
        await until(lambda: not scripted.wanted)
        await asyncio.sleep(0)
        await reading.stop()
        await reading.stop()
        assert taken == ["row of a", "row of b", "row of c"]

    run(story())
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "no disk" in caplog.messages[0]
    assert caplog.messages[1].startswith("3 closed jobs were read within")


@pytest.mark.parametrize("started", [False, True])
def test_nothing_to_read_is_nothing_to_do(started):
    async def story():
        scripted = Scripted()
        scripted.wanted.clear()
        reading = Recollection(scripted, scripted, print, AwakeClock(time.monotonic))
        if started:
            reading.start()
        assert len(asyncio.all_tasks()) == 1
        await reading.stop()

    run(story())
