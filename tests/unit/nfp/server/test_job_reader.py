"""Closed jobs are read from the store when somebody speaks of them, and searches through them."""

import asyncio
import sqlite3
from types import SimpleNamespace

import msgspec
import pytest

from broker.nfp.dispatch import stored_jobs
from broker.nfp.dispatch.search import JobFilter
from broker.nfp.frames import Packet
from broker.nfp.names import JOBS, Command, Dialect, Sender
from broker.nfp.opening import read_any
from broker.nfp.principal import Principal, Standing
from broker.nfp.records import Dispatched, Finished, JobAdded
from broker.nfp.server import job_reader as room
from broker.nfp.server.broker import NfpBroker
from broker.nfp.server.job_reader import JobReader
from broker.nfp.store import NotStored, snapshot
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
            store.put(Dispatched(uuid, "", f"w{number % 10}", 1))
            store.put(Finished(uuid, "", "w1", 1, 200, _result(number), "done"))


def _result(number: int) -> bytes:
    return b'{"w1":{"result":%d,"failed":false,"errors":[]}}' % number


def section(tmp_path) -> NfpSection:
    return NfpSection(endpoint=f"ipc://{tmp_path}/s", curve=False, base_dir=str(tmp_path), files="")


def asks(command: Command, uuid: str, body: bytes = b"{}", service: str = "net") -> Packet:
    return Packet(
        Sender.CLIENT, command, dialect=Dialect.NORFAB, service=service, target=ANY, uuid=uuid, body=body
    )


def with_broker(tmp_path, script):
    """Run ``script(broker, client, got)`` with a broker that was started on that store."""

    async def story():
        await remembered(tmp_path / "nfp.db")
        broker = NfpBroker(section(tmp_path))
        await broker.start()
        try:
            got = []
            client = broker.local_peer(HOLDER, "c1", got.append, frozenset({"push"}))
            await script(broker, client, got)
        finally:
            await broker.stop()

    run(story())


def results_of(got):
    return {packet.data for packet in got if packet.status == 200}


@pytest.fixture
def reads(monkeypatch):
    """What was read from the store: the uuids, in groups."""
    groups = []
    named = snapshot.named

    def noted(connection, now, uuids):
        groups.append(list(uuids))
        return named(connection, now, uuids)

    monkeypatch.setattr(snapshot, "named", noted)
    return groups


def test_a_start_reads_no_body_and_what_is_asked_for_is_read_then(tmp_path, reads):
    async def script(broker, client, got):
        assert sum(order.stored for order in broker.dispatcher._state.orders.values()) == MANY
        await asyncio.sleep(0.05)
        assert reads == []
        client.submit(asks(Command.POST, "u0"))
        client.submit(asks(Command.GET, "u1"))
        await until(lambda: [packet.status for packet in got].count(200) == 2)
        assert results_of(got) == {_result(0), _result(1)}
        assert reads == [["u0", "u1"]]
        assert broker.dispatcher.counts.submitted == 0
        assert sum(order.stored for order in broker.dispatcher._state.orders.values()) == MANY

    with_broker(tmp_path, script)


def test_a_list_reads_what_it_shows_and_a_worker_or_a_text_is_looked_for_in_all(tmp_path, reads):
    async def script(broker, client, got):
        async def told(task, **kwargs):
            got.clear()
            body = b'{"task":"%s","kwargs":%s}' % (task.encode(), msgspec.json.encode(kwargs))
            client.submit(asks(Command.MMI, f"q{task}{len(reads)}", body, JOBS))
            await until(lambda: any(packet.command is Command.MMI for packet in got))
            return read_any(next(packet.data for packet in got if packet.command is Command.MMI))

        listed = await told("list", limit=3)
        assert [job["uuid"] for job in listed["jobs"]] == ["u999", "u998", "u997"]
        assert (listed["jobs"][0]["result"], listed["total"], listed["more"]) == ("999", MANY, True)
        assert reads == [["u999", "u998", "u997"]]
        assert (await told("count"))["total"] == MANY
        assert len(reads) == 1
        assert (await told("count", worker="w1"))["total"] == MANY
        assert len(reads) > 10
        found = await told("list", text="U99", limit=5)
        assert (found["total"], [job["uuid"] for job in found["jobs"]][-1]) == (11, "u995")
        shown = await told("show", uuid="u5")
        assert shown["slots"][0]["result"] == 5
        assert "not known" in (await told("show", uuid="nobody"))["error"]

    with_broker(tmp_path, script)


def test_one_damaged_row_costs_nobody_but_who_asks_for_it(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(room, "RETRY_S", 0.01)
    monkeypatch.setattr(stored_jobs, "PATIENCE_S", 0.2)

    async def script(broker, client, got):
        await broker.store.durable()
        base = sqlite3.connect(tmp_path / "nfp.db")
        base.execute("UPDATE jobs SET target = 'no target' WHERE uuid = 'u1'")
        base.commit()
        base.close()
        for number in range(4):
            client.submit(asks(Command.GET, f"u{number}"))
        await until(lambda: len(got) == 3)
        assert {packet.uuid for packet in got} == {"u0", "u2", "u3"}
        await until(lambda: len(got) == 4)
        assert (got[3].uuid, got[3].status) == ("u1", 500)
        await until(lambda: broker.dispatcher.to_read() == [])
        assert [record.levelname for record in caplog.records].count("ERROR") == 1

    with_broker(tmp_path, script)


def test_a_store_that_does_not_answer_costs_an_error_and_the_loop_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_jobs, "PATIENCE_S", 0.2)

    async def script(broker, client, got):
        held, closed = asyncio.Event(), broker.store.closed

        async def hangs(uuids):
            await held.wait()
            return await closed(uuids)

        broker.store.closed = hangs
        client.submit(asks(Command.GET, "u0"))
        client.submit(asks(Command.POST, "u1"))
        client.submit(asks(Command.POST, "new"))
        await until(lambda: len(got) == 1)
        assert (got[0].uuid, got[0].status) == ("new", 300)
        await until(lambda: len(got) == 2)
        assert (got[1].uuid, got[1].status) == ("u0", 500)
        held.set()
        await until(lambda: results_of(got) == {_result(1)})
        client.submit(asks(Command.GET, "u0"))
        await until(lambda: _result(0) in results_of(got))

    with_broker(tmp_path, script)


def test_a_broker_is_stopped_while_it_reads(tmp_path):
    async def script(broker, client, _got):
        async def hangs(uuids):
            await asyncio.get_running_loop().create_future()

        broker.store.closed = hangs
        client.submit(asks(Command.GET, "u0"))
        broker.job_reader.finish(
            broker.dispatcher.search(JobFilter(text="x"), lambda _: True, 1, 0.0, print), print
        )
        await asyncio.sleep(0)

    with_broker(tmp_path, script)


class Search:
    """One that reads one portion."""

    def __init__(self) -> None:
        self.rows = None

    def steps(self):
        self.rows = yield ["a"]


def reader(closed) -> JobReader:
    return JobReader(
        SimpleNamespace(read_with=lambda wanted: None), SimpleNamespace(closed=closed), SimpleNamespace()
    )


def test_searches_read_one_after_the_other():
    async def story():
        at_once, told = [], []

        async def closed(uuids):
            at_once.append(1)
            assert len(at_once) == 1
            await asyncio.sleep(0)
            at_once.pop()
            return ["row"]

        reading = reader(closed)
        searches = [Search() for _ in range(20)]
        for search in searches:
            reading.finish(search, told.append)
        await until(lambda: len(told) == 20)
        assert [search.rows for search in told] == [["row"]] * 20

    run(story())


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_a_search_in_a_store_that_cannot_be_read_says_so(monkeypatch, how):
    monkeypatch.setattr(room, "PATIENCE_S", 0.01)

    async def closed(uuids):
        if how == "fails":
            raise NotStored("no disk")
        await asyncio.get_running_loop().create_future()

    async def story():
        reading, told = reader(closed), []
        reading.finish(Search(), told.append)
        await until(lambda: told)
        assert ("no disk" if how == "fails" else "has not answered") in str(told[0])
        assert isinstance(told[0], NotStored)
        await reading.stop()
        await reading.stop()

    run(story())
