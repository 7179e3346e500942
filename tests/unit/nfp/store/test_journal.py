"""The broker's store: what is put comes back, once and in the right state."""

import asyncio
import inspect
import sqlite3

import pytest

from broker.errors import ConfigError
from broker.nfp.contract import Journal
from broker.nfp.names import Dialect
from broker.nfp.records import (
    Accepted,
    Dispatched,
    Finished,
    Forgotten,
    JobAdded,
    Owned,
    PartAdded,
    Pinned,
    Returned,
    Snapshot,
    StoredJob,
    WorkerLeft,
    WorkerSeen,
)
from broker.nfp.store import NoStore, Store, events, journal
from broker.nfp.targets import ALL, Target
from tests.tables import for_each
from tests.unit.nfp.store.samples import Clocks, PartSeen, job, opened, owner, parts, read, run, until, write


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nfp.db"


def job_after(path, *operations):
    """Job u behind ``operations``, put in one group and put one by one."""

    async def story():
        await write(path, job("u"), *operations)
        together = (await read(path)).jobs[0]
        single = path.with_name("single.db")
        async with opened(single) as store:
            for op in (job("u"), *operations):
                store.put(op)
                await store.durable()
        alone = (await read(single)).jobs[0]
        assert (alone.added, alone.events) == (together.added, together.events)
        return together

    return run(story())


def test_a_new_file_is_empty(path):
    assert run(read(path)) == Snapshot()


def test_a_job_comes_back_as_it_was_put(path):
    odd = JobAdded(
        'u"1\\é', "service \u2028 ☃", "", Target("list", ("w 1", "w,2")), bytes(range(256)), b"\x00\xff", Dialect.SEED,
        "key:Z85<>&", 2**32 - 1, float("inf"),
    )  # fmt: skip

    async def story():
        await write(path, odd, job("plain", b""), job("all", b"x", target=ALL))
        found = await read(path)
        assert [row.added for row in found.jobs] == [
            odd,
            job("plain", b""),
            job("all", b"x", target=ALL),
        ]
        assert {row.state for row in found.jobs} == {"open"}
        assert {row.events for row in found.jobs} == {()}

    run(story())


@for_each(
    ("operations", "expected"),
    [
        ([PartAdded("u", "")], PartSeen("")),
        ([Dispatched("u", "", "w1", 1)], PartSeen("", "w1", 1, "dispatched", given=(("w1", 1),))),
        (
            [PartAdded("u", ""), Dispatched("u", "", "w1", 1), Accepted("u", "", 1)],
            PartSeen("", "w1", 1, "accepted", given=(("w1", 1),)),
        ),
        (
            [Dispatched("u", "", "w1", 1), Accepted("u", "", 1), Returned("u", ""),
             Dispatched("u", "", "w2", 2), Accepted("u", "", 1)],
            PartSeen("", "w2", 2, "dispatched", given=(("w1", 1), ("w2", 2))),
        ),
        (
            [PartAdded("u", "w1"), Dispatched("u", "w1", "w1", 1), Returned("u", "w1")],
            PartSeen("w1", given=(("w1", 1),)),
        ),
        (
            [Dispatched("u", "", "w1", 1), Returned("u", ""), Dispatched("u", "", "w2", 2), Returned("u", ""),
             Dispatched("u", "", "w1", 3), Accepted("u", "", 3)],
            PartSeen("", "w1", 3, "accepted", given=(("w1", 3), ("w2", 2))),
        ),
        (  # an acceptance that comes late is not the one of the attempt under way
            [Dispatched("u", "", "w1", 1), Returned("u", ""), Dispatched("u", "", "w2", 2), Accepted("u", "", 1)],
            PartSeen("", "w2", 2, "dispatched", given=(("w1", 1), ("w2", 2))),
        ),
        (
            [Dispatched("u", "", "w1", 1), Returned("u", ""), Accepted("u", "", 1)],
            PartSeen("", given=(("w1", 1),)),
        ),
        (
            [Dispatched("u", "", "w1", 1), Finished("u", "", "w1", 1, 200, b"result")],
            PartSeen("", "w1", 0, "final", 200, b"result", (("w1", 1),)),
        ),
        (  # the first result is the one
            [Dispatched("u", "", "w1", 1), Returned("u", ""), Dispatched("u", "", "w2", 2),
             Finished("u", "", "w1", 1, 200, b"first"), Finished("u", "", "w2", 2, 500, b"second")],
            PartSeen("", "w1", 0, "final", 200, b"first", (("w1", 1), ("w2", 2))),
        ),
        (  # and nothing changes a part behind it
            [Finished("u", "", "", 0, 408, b""), Dispatched("u", "", "w1", 1), Returned("u", ""),
             PartAdded("u", "")],
            PartSeen("", "", 0, "final", 408),
        ),
    ],
)  # fmt: skip
def test_what_becomes_of_a_part(operations, expected):
    assert parts(StoredJob(job("u"), 0.0, 0.0, tuple(operations))) == (expected,)


def test_an_owner_that_a_client_was_told_of_stays(path):
    found = job_after(
        path, PartAdded("u", ""), Dispatched("u", "", "w1", 1), Accepted("u", "", 1), Owned("u", "w1"),
        Returned("u", ""), Owned("u", "w2"), Dispatched("u", "", "w2", 2),
    )  # fmt: skip
    assert (owner(found), parts(found)[0][1:4]) == ("w1", ("w2", 2, "dispatched"))
    run(write(path, Finished("u", "", "w2", 2, 200, b"r", "done")))
    found = run(read(path)).jobs[0]
    assert (owner(found), parts(found)[0].worker) == ("w1", "w2")


def test_closed_jobs_are_read_by_name_and_the_others_at_the_start(path):
    async def story():
        clocks = Clocks()
        async with opened(path, clock=clocks.clock) as store:
            for uuid in ("a", "b", 'c"\u2028', "d", "e"):
                store.put(job(uuid, uuid.encode()))
                store.put(Dispatched(uuid, "", "w", 1))
            for uuid in ('c"\u2028', "a", "e"):
                clocks.passes(1)
                store.put(Finished(uuid, "", "w", 1, 200, uuid.encode(), "done"))
                await store.durable()
        async with opened(path, clock=clocks.clock) as store:
            assert [row.added.uuid for row in store.found.jobs] == ["b", "d"]
            found = [
                (row.job.added.uuid, row.job.closed_age_s, row.job.events, *row[1:])
                for row in store.found.closed
            ]
            assert found == [('c"\u2028', 2.0, (), 1, 5, 5), ("a", 1.0, (), 1, 1, 1), ("e", 0.0, (), 1, 1, 1)]
            assert {row.job.added for row in store.found.closed} == {
                job(uuid, b"") for uuid in ('c"\u2028', "a", "e")
            }
            rows = [store.find_closed(uuid) for uuid in ('c"\u2028', "e")]
            assert {row.added.uuid: (row.state, row.closed_age_s, parts(row)[0].body) for row in rows} == {
                'c"\u2028': ("done", 2.0, 'c"\u2028'.encode()),
                "e": ("done", 0.0, b"e"),
            }
            assert store.find_closed("nobody") is None

    run(story())


def test_parts_stay_apart_and_in_order(path):
    found = job_after(
        path,
        PartAdded("u", "w2"), PartAdded("u", "w1"), Dispatched("u", "w1", "w1", 1),
        Finished("u", "w1", "w1", 1, 200, b"one"), Dispatched("u", "w2", "w2", 1),
    )  # fmt: skip
    assert [(part.part, part.state, part.body) for part in parts(found)] == [
        ("w2", "dispatched", b""),
        ("w1", "final", b"one"),
    ]


def test_operations_for_jobs_that_are_not_there_change_nothing(path):
    operations = [
        PartAdded("x", ""), Dispatched("x", "", "w", 1), Accepted("x", "", 1), Returned("x", ""),
        Finished("x", "", "w", 1, 200, b"", "done"), Forgotten("x"), Pinned("n", ""),
    ]  # fmt: skip
    run(write(path, *operations))
    assert run(read(path)) == Snapshot()


def test_a_uuid_that_is_there_stays_as_it_is(path):
    run(write(path, job("u", b"first"), job("u", b"second", holder="uid:8")))
    assert [row.added for row in run(read(path)).jobs] == [job("u", b"first")]


def test_jobs_that_nothing_happened_to_for_long_go_on_where_they_were(path, monkeypatch):
    """The store remembers of some only which event was the last; a uuid that comes twice changes nothing even then."""
    monkeypatch.setattr(events, "CACHED", 4)
    uuids = [f"u{number}" for number in range(20)]

    async def story():
        async with opened(path) as store:
            for kind in (job, lambda uuid: Dispatched(uuid, "", "w1", 1), lambda uuid: Returned(uuid, "")):
                for uuid in uuids:
                    store.put(kind(uuid))
                    await store.durable()
            for op in (Forgotten("u1"), job("u0", b"again"), Accepted("u0", "", 1), Owned("u1", "w1")):
                store.put(op)
        found = await read(path)
        assert [row.added for row in found.jobs] == [job(uuid) for uuid in uuids if uuid != "u1"]
        assert {row.events for row in found.jobs} == {
            (Dispatched(row.added.uuid, "", "w1", 1), Returned(row.added.uuid, "")) for row in found.jobs
        }

    run(story())


@pytest.mark.parametrize("apart", [False, True])
def test_a_job_that_is_forgotten_leaves_nothing(path, apart):
    whole = [
        job("u"),
        Dispatched("u", "", "w", 1),
        Finished("u", "", "w", 1, 200, b"r", "done"),
    ]

    async def story():
        async with opened(path) as store:
            for op in (*whole, job("other"), PartAdded("other", "")):
                store.put(op)
            if apart:
                await store.durable()
            store.put(Forgotten("u"))
        found = await read(path)
        assert [row.added.uuid for row in found.jobs] == ["other"]
        base = sqlite3.connect(path)
        kinds = [kind for (kind,) in base.execute("SELECT kind FROM events ORDER BY seq")]
        base.close()
        assert kinds == ["", "PartAdded"]
        await write(path, *whole[:2], Forgotten("u"), job("u", b"again"), Dispatched("u", "", "w2", 1))
        again = (await read(path)).jobs[1]
        assert (again.added.body, parts(again)[0].worker, again.state) == (b"again", "w2", "open")

    run(story())


def test_the_first_end_of_a_job_is_the_one(path):
    ends = [Finished("u", "", "", 0, 417, b"", closes) for closes in ("cancelled", "done")]
    run(write(path, job("u"), *ends))
    assert run(read(path)).jobs[0].state == "cancelled"


def test_workers_and_pins(path):
    seen = WorkerSeen("w1", "svc", Dialect.SEED, "K1")

    async def story():
        await write(
            path, seen, WorkerSeen("w2", "svc", Dialect.NORFAB, ""), WorkerLeft("w2"),
            WorkerSeen("w3", "svc", Dialect.NORFAB, "K3"), WorkerSeen("w3", "other", Dialect.NORFAB, "K3"),
            Pinned("a", "K1"), Pinned("b", "K2"), Pinned("b", ""), Pinned("c", ""), Pinned("c", "K3"),
            Pinned("a", "K4"),
        )  # fmt: skip
        found = await read(path)
        assert found.workers == (seen, WorkerSeen("w3", "other", Dialect.NORFAB, "K3"))
        assert found.pins == (Pinned("a", "K4"), Pinned("c", "K3"))
        assert found.known == ("w2",)
        await write(path, WorkerLeft("w1"), WorkerLeft("w3"), Pinned("a", ""))
        assert await read(path) == Snapshot(pins=(Pinned("c", "K3"),), known=("w2", "w1", "w3"))
        await write(path, seen)
        assert (await read(path))[1:] == ((seen,), (Pinned("c", "K3"),), (), ("w2", "w3"))
        await write(path, seen._replace(lost=True))
        assert (await read(path))[1] == (seen._replace(lost=True),)
        await write(path, seen)
        assert (await read(path))[1] == (seen,)
        await write(path, seen._replace(lost=True), WorkerLeft("w1"))
        assert (await read(path))[1:] == ((), (Pinned("c", "K3"),), (), ("w2", "w3", "w1"))

    run(story())


def test_names_of_workers_that_left_first_are_forgotten_first(path):
    async def story():
        clocks = Clocks()
        async with opened(path, clock=clocks.clock) as store:
            for name in ("w3", "w1", "w2", "there"):
                store.put(WorkerSeen(name, "svc", Dialect.NORFAB, ""))
            for name in ("w3", "w1", "w2"):
                clocks.passes(1)
                store.put(WorkerLeft(name))
                await store.durable()
            await store.ask(lambda base: journal.forget_workers(base, 3))
            assert (await store.ask(lambda base: journal.read(base, 0.0))).known == ("w3", "w1", "w2")
            await store.ask(lambda base: journal.forget_workers(base, 2))
        found = await read(path)
        assert found.known == ("w1", "w2")
        assert [worker.name for worker in found.workers] == ["there"]

    run(story())


def test_parts_that_were_never_given_to_anybody(path):
    async def story():
        await write(
            path, job("u")._replace(parts=("w2", "w1", "w3")), Dispatched("u", "w1", "w1", 1),
            Finished("u", "w3", "", 0, 408, b"late"),
        )  # fmt: skip
        assert parts((await read(path)).jobs[0]) == (
            PartSeen("w2"),
            PartSeen("w1", "w1", 1, "dispatched", given=(("w1", 1),)),
            PartSeen("w3", "", 0, "final", 408, b"late"),
        )

    run(story())


def uuids(connection):
    return [
        row[0] for row in connection.execute("SELECT uuid FROM events WHERE uuid IS NOT NULL ORDER BY seq")
    ]


# -- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [-86400.0, 86400.0])
@pytest.mark.parametrize("closes", [True, False])
def test_steps_of_the_wall_clock_move_no_deadline(path, step_s, closes):
    async def story():
        clocks = Clocks()
        async with opened(path, clock=clocks.clock) as store:
            store.put(job("u"))
            await store.durable()
            submitted = clocks.wall_s
            clocks.passes(10)
            store.put(job("v"))
            store.put(Finished("v", "", "w", 1, 200, b"", "done"))
            await store.durable()
            clocks.wall_s += step_s
            if closes:
                store.put(job("x"))
        clocks.passes(5)
        first, second = (await read(path, clock=clocks.clock)).jobs[:2]
        assert (first.age_s, first.submitted_s) == (15.0, submitted)
        assert (second.age_s, second.closed_age_s) == (5.0, 5.0)
        clocks.reboots(down_s=-1000)
        first = (await read(path, clock=clocks.clock)).jobs[0]
        assert first.age_s == 15.0, "over a reboot, a clock set back takes nothing off what had passed"
        clocks.reboots(down_s=7)
        assert (await read(path, clock=clocks.clock)).jobs[0].age_s == 22.0

    run(story())


# -- files ----------------------------------------------------------------------------------------


def test_two_stores_at_one_file(path):
    async def story():
        async with opened(path):
            second = Store(path, asyncio.get_running_loop())
            with pytest.raises(ConfigError, match="this broker store is open in this very process already"):
                await second.open()
            assert await second.close() == 0

    run(story())


def test_a_damaged_store_is_refused(path):
    run(write(path, *[job(f"u{number}", bytes(3000)) for number in range(100)]))
    data = bytearray(path.read_bytes())
    data[20480:40960] = b"\xa5" * 20480
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"nfp\.db: damaged \("):
        run(read(path))


def test_damage_in_a_file_too_large_for_a_check_is_found_while_it_is_read(path, monkeypatch):
    from broker.nfp.store import database

    test_a_damaged_store_is_refused(path)
    monkeypatch.setattr(database, "CHECKED_BYTES", 0)
    with pytest.raises(ConfigError, match=r"nfp\.db: damaged \("):
        run(read(path))


def test_a_body_that_sqlite_cannot_hold_costs_its_job_only(path):
    """A row of the intake above the limit of this connection stands for the gigabyte that is SQLite's."""

    async def story():
        refused = []
        async with opened(path, on_failed=lambda text, ops: refused.append((text, ops)) or ops) as store:
            await store.ask(lambda base: base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000))
            for op in (job("a"), job("b", bytes(20_000)), PartAdded("b", ""), job("c")):
                store.put(op)
            await store.durable()
            assert [ops for _text, ops in refused] == [[job("b", bytes(20_000))]]
            assert "too big" in refused[0][0]
            assert store.broken == ""
            assert await store.ask(uuids) == ["a", "c"]

    run(story())


@pytest.mark.parametrize(
    "odd", [job("u")._replace(service="\ud800"), job("u")._replace(client=object()), "no operation", None]
)
def test_a_value_that_cannot_be_written_is_dropped_and_told(path, odd):
    async def story():
        refused = []
        async with opened(path, on_failed=lambda text, ops: refused.append(ops) or ops) as store:
            for op in (job("a"), odd, job("c")):
                store.put(op)
            await store.durable()
            assert len(refused) == 1
            assert store.lost == 1
            assert await store.ask(uuids) == ["a", "c"]

    run(story())


def churn(store, number, size):
    uuid = f"{number:032x}"
    body = number.to_bytes(4, "big") * (size // 4)
    for op in (
        job(uuid, body), Dispatched(uuid, "", "w", 1), Accepted(uuid, "", 1),
        Finished(uuid, "", "w", 1, 200, body, "done"),
    ):  # fmt: skip
        store.put(op)


def test_the_file_does_not_grow_under_a_steady_load(path):
    """600 jobs of twice 4 KiB (5 MiB) pass, at most 50 at a time: the file stays at what 50 need."""

    async def story():
        sizes = []
        async with opened(path) as store:
            for number in range(600):
                churn(store, number, 4096)
                if number >= 50:
                    store.put(Forgotten(f"{number - 50:032x}"))
                if number % 10 == 9:
                    await store.durable()
                if number % 100 == 99:
                    wal = path.with_name("nfp.db-wal")
                    sizes.append((path.stat().st_size, wal.stat().st_size))
        assert max(size for size, _wal in sizes[1:]) < 2_000_000
        assert max(wal for _size, wal in sizes) < 8_000_000
        assert path.stat().st_size < 2_000_000
        assert len((await read(path)).jobs) == 50

    run(story())


def test_a_burst_is_given_back_once_it_is_quiet(path, monkeypatch):
    monkeypatch.setattr("broker.nfp.store.thread.TIDY_AFTER_S", 0.01)

    async def story():
        async with opened(path) as store:
            for number in range(300):
                churn(store, number, 8192)
            await store.durable()
            for number in range(300):
                store.put(Forgotten(f"{number:032x}"))
            await store.durable()
            full = path.stat().st_size

            def free(base):
                return base.execute("PRAGMA freelist_count").fetchone()[0]

            while await store.ask(free) > 512:
                await asyncio.sleep(0.02)
        assert full > 4_000_000
        assert path.stat().st_size < 3_000_000

    run(story())


# -- the store that is off ------------------------------------------------------------------------


def test_the_store_that_is_off_has_the_same_face():
    for name, member in inspect.getmembers(Store, inspect.isfunction):
        if name.startswith("_") or name in ("start", "ask", "durable"):
            continue
        assert inspect.iscoroutinefunction(member) == inspect.iscoroutinefunction(getattr(NoStore, name)), (
            name
        )
        ours, theirs = (list(inspect.signature(getattr(cls, name)).parameters) for cls in (Store, NoStore))
        assert ours == theirs, name

    async def story():
        store: Journal = NoStore()
        assert (await store.open(), store.position, store.broken) == (Snapshot(), 0, "")
        store.put(job("u"))
        store.commit()
        assert (store.position, await store.close()) == (0, 0)

    run(story())


def test_both_are_journals(path):
    async def story():
        async with opened(path) as store:
            journal: Journal = store
            assert journal.position == 0
            journal.put(job("u"))
            assert journal.position == 1
            store.commit()
            await until(lambda: store.committed == 1)

    run(story())


def test_pins_come_back_in_the_order_of_their_last_use(path):
    async def story():
        clocks = Clocks()
        async with opened(path, clock=clocks.clock) as store:
            for name in ("b", "a", "c", "b"):
                store.put(Pinned(name, "K"))
                await store.durable()
                clocks.passes(1)
        assert [pin.name for pin in (await read(path)).pins] == ["a", "c", "b"]

    run(story())
