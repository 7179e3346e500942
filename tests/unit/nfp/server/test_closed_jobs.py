"""Closed jobs are read from the store when somebody speaks of them, and searches through them."""

import asyncio
import json
import sqlite3
from types import SimpleNamespace

import msgspec
import pytest

from broker.nfp.contract import Call, NotStored
from broker.nfp.frames import Packet
from broker.nfp.management import SERVICES, Questions
from broker.nfp.names import JOBS, Command, Dialect, Sender
from broker.nfp.opening import read_any
from broker.nfp.principal import Principal, Standing
from broker.nfp.records import Dispatched, Finished, JobAdded
from broker.nfp.server.broker import NfpBroker
from broker.nfp.store import events
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
    read = events.read

    def noted(connection, uuids=None, **more):
        if uuids:
            groups.append(list(uuids))
        return read(connection, uuids, **more)

    monkeypatch.setattr(events, "read", noted)
    return groups


def test_a_start_reads_no_body_and_what_is_asked_for_is_read_then(tmp_path, reads):
    async def script(broker, client, got):
        assert sum(order.state == "stored" for order in broker.dispatcher._jobs.by_uuid.values()) == MANY
        await asyncio.sleep(0.05)
        assert reads == []
        client.submit(asks(Command.POST, "u0"))
        client.submit(asks(Command.GET, "u1"))
        await until(lambda: [packet.status for packet in got].count(200) == 2)
        assert results_of(got) == {_result(0), _result(1)}
        assert reads == [["u0"], ["u1"]]
        assert broker.dispatcher.counts.submitted == 0
        assert sum(order.state == "stored" for order in broker.dispatcher._jobs.by_uuid.values()) == MANY

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
        assert reads == [["u999"], ["u998"], ["u997"]]
        assert (await told("count"))["total"] == MANY
        assert len(reads) == 3
        assert (await told("count", worker="w1"))["total"] == MANY
        assert len(reads) > 10
        found = await told("list", text="U99", limit=5)
        assert (found["total"], [job["uuid"] for job in found["jobs"]][-1]) == (11, "u995")
        shown = await told("show", uuid="u5")
        assert shown["parts"][0]["result"] == 5
        assert "not known" in (await told("show", uuid="nobody"))["error"]

    with_broker(tmp_path, script)


def test_one_damaged_row_costs_nobody_but_who_asks_for_it(tmp_path, caplog):
    async def script(broker, client, got):
        await broker.store.durable()
        base = sqlite3.connect(tmp_path / "nfp.db")
        base.execute("UPDATE events SET data = 'no job' WHERE uuid = 'u1'")
        base.commit()
        base.close()
        for uuid in ("u0", "u1", "u1", "u2"):
            client.submit(asks(Command.GET, uuid))
        await until(lambda: len(got) == 4)
        assert [(packet.uuid, packet.status) for packet in got] == [
            ("u0", 200),
            ("u1", 500),
            ("u1", 500),
            ("u2", 200),
        ]
        assert [record.levelname for record in caplog.records].count("ERROR") == 1

    with_broker(tmp_path, script)


def test_a_disk_that_hangs_is_not_asked(tmp_path, reads):
    async def script(broker, client, got):
        broker.store.hangs = True
        client.submit(asks(Command.GET, "u0"))
        client.submit(asks(Command.POST, "u1"))
        client.submit(asks(Command.POST, "new"))
        await until(lambda: len(got) == 3)
        assert [(packet.uuid, packet.status) for packet in got] == [("u0", 500), ("u1", 500), ("new", 300)]
        assert reads == []
        broker.store.hangs = False
        client.submit(asks(Command.POST, "u1"))
        await until(lambda: results_of(got) == {_result(1)})

    with_broker(tmp_path, script)


def test_a_broker_is_stopped_while_it_searches(tmp_path):
    async def script(broker, client, _got):
        broker.questions.ask(asked(SimpleNamespace(principal=HOLDER), text="x"), print)
        await asyncio.sleep(0)

    with_broker(tmp_path, script)


def asked(peer, **kwargs) -> Call:
    return Call(JOBS, "count", (), kwargs, "u", peer)


class Search:
    """One of so many steps, the last of which fails with ``error``."""

    def __init__(self, steps: int, error: str = "") -> None:
        self.left = steps
        self.total = steps
        self.error = error
        self.states = self.services = {}

    def steps(self):
        while self.left > 1:
            self.left -= 1
            yield
        if self.error:
            raise NotStored(self.error)


def searching(*searches: Search) -> tuple[Questions, list[dict]]:
    """What is asked for these searches, and what it has answered."""
    found = iter(searches)
    dispatcher = SimpleNamespace(search=lambda *_: next(found))
    broker = SimpleNamespace(
        dispatcher=dispatcher, clock=SimpleNamespace(now=lambda: 0.0), searches=asyncio.Semaphore(4)
    )
    questions, told = Questions(broker, SERVICES), []
    for _ in searches:
        questions.ask(
            asked(SimpleNamespace(principal=HOLDER)), lambda answer: told.append(json.loads(answer.body))
        )
    return questions, told


@pytest.mark.parametrize("steps", [1, 3])
def test_a_search_in_a_store_that_cannot_be_read_says_so(steps):
    async def story():
        questions, told = searching(Search(steps, "no disk"))
        await until(lambda: told)
        assert told[0]["error"] == "no disk"
        await questions.stop()
        await questions.stop()

    run(story())


def test_searches_take_turns():
    async def story():
        _questions, told = searching(Search(4), Search(3), Search(1))
        await until(lambda: len(told) == 3)
        assert [each["total"] for each in told] == [1, 3, 4]

    run(story())
