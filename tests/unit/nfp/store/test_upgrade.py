"""Files of the version before this one are read: made here by that version's own statements."""

import asyncio
import sqlite3

import pytest

from broker.nfp.client.store import ClientStore, StoredResult
from broker.nfp.names import Dialect
from broker.nfp.records import Finished, JobAdded, Pinned, WorkerSeen
from broker.nfp.targets import ANY, Target
from broker.nfp.worker.store import RunStore
from tests.unit.nfp.store.samples import Clocks, PartSeen, opened, owner, parts, read, run, whole

CLOCK = """
CREATE TABLE clock (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    at REAL NOT NULL, wall REAL NOT NULL, boot REAL NOT NULL, boot_id TEXT NOT NULL);
INSERT INTO clock VALUES (1, 100, 1700000000, 1000, 'first');
"""
"""The last commit: 100 s behind the start of the store."""

BROKER = f"""
{CLOCK}
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, service TEXT NOT NULL, task TEXT NOT NULL, target TEXT NOT NULL,
    client TEXT NOT NULL, dialect TEXT NOT NULL, holder TEXT NOT NULL, userid INTEGER NOT NULL, ttl_s REAL NOT NULL,
    submitted_s REAL NOT NULL, at REAL NOT NULL, body BLOB NOT NULL, parts TEXT NOT NULL);
CREATE TABLE parts (
    id INTEGER PRIMARY KEY, job INTEGER NOT NULL, part TEXT NOT NULL, worker TEXT NOT NULL, attempt INTEGER NOT NULL,
    state INTEGER NOT NULL, earlier TEXT NOT NULL DEFAULT '[]', owner TEXT NOT NULL DEFAULT '', UNIQUE (job, part));
CREATE TABLE results (
    part INTEGER PRIMARY KEY, worker TEXT NOT NULL, attempt INTEGER NOT NULL, status INTEGER NOT NULL,
    body BLOB NOT NULL);
CREATE TABLE closed (job INTEGER PRIMARY KEY, state TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE workers (
    name TEXT PRIMARY KEY, service TEXT NOT NULL, dialect TEXT NOT NULL, key TEXT NOT NULL, gone REAL) WITHOUT ROWID;
CREATE TABLE pins (name TEXT PRIMARY KEY, key TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE usage (
    holder TEXT NOT NULL, key TEXT NOT NULL, service TEXT NOT NULL, jobs INTEGER NOT NULL, failed INTEGER NOT NULL,
    bytes_in INTEGER NOT NULL, bytes_out INTEGER NOT NULL, busy_s REAL NOT NULL,
    expired INTEGER NOT NULL, cancelled INTEGER NOT NULL,
    PRIMARY KEY (holder, key, service)) WITHOUT ROWID;
INSERT INTO jobs VALUES
    (1, 'done', 'svc', 'go', '["list",["w1","w2"]]', '006d65ff', 'norfab', 'uid:7', 7, 60.0, 1699999950.5, 50, x'aabb',
     '["w1","w2"]'),
    (2, 'once', 'svc', 'go', '["any",[]]', '6d65', 'seed', 'key:K', 4294967295, 60.0, 1699999960.0, 60, x'', '[""]'),
    (3, 'back', 'svc', '', '["any",[]]', '6d65', 'norfab', 'uid:7', 7, 60.0, 1699999970.0, 70, x'01', '[""]'),
    (4, 'half', 'svc', '', '["all",[]]', '6d65', 'norfab', 'uid:7', 7, 60.0, 1699999980.0, 80, x'02', '[]'),
    (5, 'new', 'svc', '', '["list",["w9"]]', '6d65', 'norfab', 'uid:7', 7, 60.0, 1699999990.0, 90, x'03', '["w9"]');
INSERT INTO parts VALUES
    (1, 1, 'w1', 'w1', 1, 1, '[]', ''), (2, 1, 'w2', 'w2', 2, 1, '[["w2",1]]', ''),
    (3, 2, '', 'w1', 2, 2, '[["w2",1]]', 'w1'), (4, 3, '', 'w1', 3, 0, '[["w1",1],["w2",2]]', ''),
    (5, 4, 'w1', '', 0, 0, '[]', ''), (6, 4, 'w2', 'w2', 1, 1, '[]', '');
INSERT INTO results VALUES (1, 'w1', 1, 200, x'c0ffee'), (2, '', 2, 408, x'dd'), (6, 'w2', 1, 200, x'ee');
INSERT INTO closed VALUES (1, 'failed', 95);
INSERT INTO workers VALUES
    ('w1', 'svc', 'norfab', 'K1', NULL), ('w2', 'svc', 'seed', '', -1), ('w3', 's', 'norfab', '', 20),
    ('w4', 's', 'norfab', '', 10);
INSERT INTO pins VALUES ('b', 'K1', 5), ('a', '-', 7);
INSERT INTO usage VALUES ('uid:7', 'K', 'svc', 3, 1, 10, 20, 0.5, 1, 0)
"""

PEER = f"""
{CLOCK}
CREATE TABLE cards (
    number INTEGER PRIMARY KEY, uuid TEXT NOT NULL, service TEXT NOT NULL, task TEXT NOT NULL, state TEXT NOT NULL,
    settled INTEGER NOT NULL, submitted_s REAL NOT NULL, at REAL NOT NULL, ended_at REAL NOT NULL, more TEXT NOT NULL);
CREATE TABLE bodies (
    id INTEGER PRIMARY KEY, number INTEGER NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL, UNIQUE (number, name));
"""
WORKER = f"""
{PEER}
INSERT INTO cards VALUES
    (1, 'came', 'svc', 'go', 'accepted', 0, 1699999950.0, 50, -1, '{{"client":"6d652331"}}'),
    (2, 'runs', 'svc', 'go', 'started', 0, 1699999960.0, 60, -1,
     '{{"idempotent":false,"started_s":1699999961.0}}'),
    (3, 'ended', 'svc', 'go', 'done', 0, 1699999970.0, 70, 80,
     '{{"client":"6d65","status":200,"started_s":1699999971.0,"ended_s":1699999980.0,"failed":true}}'),
    (4, 'safe', 'svc', 'go', 'recorded', 1, 1699999970.0, 70, 90,
     '{{"client":"6d65","status":200,"ended_s":1699999990.0}}'),
    (5, 'off', 'svc', 'go', 'cancelled', 1, 1699999970.0, 70, 95, '{{"client":"6d65","ended_s":1699999995.0}}');
INSERT INTO bodies VALUES
    (1, 1, 'body', x'01'), (2, 2, 'body', x'02'), (3, 3, 'body', x'03'), (4, 3, 'events', CAST('[1]' AS BLOB)),
    (5, 3, 'result', x'0303'), (6, 4, 'body', x'04'), (7, 4, 'result', x'0404'), (8, 5, 'body', x'05');
"""
CLIENT = f"""
{PEER}
INSERT INTO cards VALUES
    (1, 'waits', 'svc', 'go', 'open', 0, 1699999950.0, 50, -1,
     '{{"target":["list",["w1","w2"]],"timeout_s":60.0,"statuses":{{"w1":200,"":408}}}}'),
    (2, 'over', 'svc', 'go', 'failed', 1, 1699999960.0, 60, 70,
     '{{"target":["any",[]],"timeout_s":60.0,"error":"it broke"}}');
INSERT INTO bodies VALUES
    (1, 1, 'body', x'01'), (2, 1, 'event', CAST('["w1","w2"]' AS BLOB)),
    (3, 1, 'result/w1', x'0a'), (4, 1, 'result/', x'0b'),
    (5, 2, 'body', x'02');
"""


@pytest.fixture
def made(tmp_path):
    """Makes a file of such statements, of the version before."""

    def make(script: str, application: bytes, version: int):
        path = tmp_path / "old.db"
        base = sqlite3.connect(path)
        base.executescript(script)
        base.execute(f"PRAGMA application_id={int.from_bytes(application)}")
        base.execute(f"PRAGMA user_version={version}")
        base.commit()
        base.close()
        return path

    return make


@pytest.fixture
def clock():
    """The clocks as they were at the last commit."""
    clocks = Clocks()
    clocks.passes(0)
    return clocks.clock


def tables(path):
    base = sqlite3.connect(path)
    found = {row[0] for row in base.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    base.close()
    return found


def test_a_broker_goes_on_with_the_jobs_workers_and_names_of_the_version_before(made, clock):
    path = made(BROKER, b"NFPb", 5)

    async def story():
        async with opened(path, clock=clock) as store:
            assert [job.added.uuid for job in store.found.jobs] == ["once", "back", "half", "new"]
            (closed,) = store.found.closed
            assert (closed.job.state, closed.job.closed_age_s, *closed[1:]) == ("failed", 5.0, 2, 2, 4)
            done, once, back, half, new = (await whole(store, store.found)).jobs
        assert done.added == JobAdded(
            "done", "svc", "go", Target("list", ("w1", "w2")), b"\xaa\xbb", b"\x00me\xff", Dialect.NORFAB, "uid:7", 7,
            60.0, ("w1", "w2"),
        )  # fmt: skip
        assert (done.age_s, done.submitted_s) == (50.0, 1699999950.5)
        assert parts(done) == (
            PartSeen("w1", "w1", 0, "final", 200, b"\xc0\xff\xee", (("w1", 1),)),
            PartSeen("w2", "", 0, "final", 408, b"\xdd", (("w2", 2),)),
        )
        assert (once.added.target, once.added.dialect, owner(once)) == (ANY, Dialect.SEED, "w1")
        assert parts(once) == (PartSeen("", "w1", 2, "accepted", given=(("w2", 1), ("w1", 2))),)
        assert parts(back) == (PartSeen("", given=(("w1", 3), ("w2", 2))),)
        assert sorted(parts(half)) == [
            PartSeen("w1"),
            PartSeen("w2", "w2", 0, "final", 200, b"\xee", (("w2", 1),)),
        ]
        assert parts(new) == (PartSeen("w9"),)
        found = await read(path, clock=clock)
        assert found.workers == (
            WorkerSeen("w1", "svc", Dialect.NORFAB, "K1"),
            WorkerSeen("w2", "svc", Dialect.SEED, "", lost=True),
        )
        assert found.known == ("w4", "w3")
        assert found.pins == (Pinned("b", "K1"), Pinned("a", "-"))
        async with opened(path, clock=clock) as store:  # and writes to it
            store.put(Finished("once", "", "w1", 2, 200, b"r", "done"))
        assert parts((await read(path, clock=clock)).jobs[1])[0][3:6] == ("final", 200, b"r")

    run(story())
    assert tables(path) == {"clock", "events", "names"}


def test_a_worker_goes_on_with_its_jobs_of_the_version_before(made, clock):
    path = made(WORKER, b"NFPw", 1)

    async def story():
        store = RunStore(path, clock=clock)
        came, runs, ended = await store.load()
        assert (came.uuid, came.client, came.body, came.idempotent, came.state, came.age_s) == (
            "came", b"me#1", b"\x01", True, "accepted", 50.0,
        )  # fmt: skip
        assert (runs.client, runs.idempotent, runs.state, runs.started_s) == (
            None,
            False,
            "started",
            1699999961.0,
        )
        assert ended[6:] == (
            "done", 200, b"\x03\x03", 1699999970.0, 1699999971.0, 1699999980.0, b"[1]", True, 30.0,
        )  # fmt: skip
        safe, off = await store.find("safe"), await store.find("off")
        assert (safe.state, safe.status, safe.result) == ("recorded", 200, b"\x04\x04")
        assert (off.state, off.ended_s) == ("cancelled", 1699999995.0)
        await store.close()

    run(story())
    assert tables(path) == {"clock", "events", "names"}


def test_a_client_waits_for_its_jobs_of_the_version_before(made, clock):
    path = made(CLIENT, b"NFPc", 1)

    async def story():
        store = ClientStore(path, "me", clock=clock)
        await store.open()
        (waits,) = await store.unfinished()
        assert waits.submission[:6] == ("waits", "svc", "go", Target("list", ("w1", "w2")), b"\x01", 60.0)
        assert waits.results == {"w1": StoredResult(200, b"\x0a"), "": StoredResult(408, b"\x0b")}
        assert waits.workers == ("w1", "w2")
        left_s = waits.submission.deadline - asyncio.get_running_loop().time()
        assert left_s == pytest.approx(10.0, abs=0.5)
        over = await store.find("over")
        assert (over.state, over.error, over.submission.body) == ("failed", "it broke", b"\x02")
        await store.close()

    run(story())
    assert tables(path) == {"clock", "events", "names"}
