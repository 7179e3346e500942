"""The thread of a store: groups, failures, values that cannot be written, the end."""

import asyncio
import logging
import sqlite3
import threading
import time

import pytest

from broker import awake
from broker.errors import ConfigError
from broker.nfp.contract import NotStored
from broker.nfp.store import thread as threads
from broker.nfp.store.database import Schema, open_database, transaction
from broker.nfp.store.thread import StoreThread
from tests.unit.nfp.store.samples import run, until

pytestmark = pytest.mark.interpreter

SCHEMA = Schema("test store", 0x74657374, 1, "CREATE TABLE said (word)")


class Disk:
    """What ``apply`` meets: it can be held up, and it can fail."""

    def __init__(self):
        self.error = None
        self.free = threading.Event()
        self.free.set()
        self._applied = []

    def apply(self, connection, operations):
        assert self.free.wait(10)
        if self.error is not None:
            raise self.error
        if "poison" in operations:
            raise sqlite3.DataError("no such word")
        with transaction(connection):
            connection.executemany("INSERT INTO said VALUES (?)", [(op,) for op in operations])
        self._applied.append(list(operations))

    @property
    def groups(self):
        """But for the empty one that every start tries the disk with."""
        return self._applied[1:]


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def make(tmp_path, disk):
    def made(**settings):
        def connect():
            return open_database(tmp_path / "t.db", SCHEMA)

        loop = asyncio.get_running_loop()
        return StoreThread(connect, disk.apply, loop, name="test store", retry_s=0.01, **settings)

    return made


def serving():
    """The threads of these stores."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("test store")]


def words(connection):
    return [row[0] for row in connection.execute("SELECT word FROM said ORDER BY rowid")]


def test_what_is_put_while_a_commit_runs_goes_into_the_next_one(make, disk):
    async def story():
        done = []
        store = make(on_commit=done.append)
        assert await store.start(words) == []
        assert store.position == 0
        disk.free.clear()
        store.put("a")
        store.put("b")
        assert store.position == 1
        store.commit()
        store.put("c")
        assert store.position == 2
        store.commit()
        store.put("d")
        store.commit()
        assert store.position == 2
        assert store.committed == 0
        disk.free.set()
        await until(lambda: store.committed == 2)
        assert disk.groups == [["a", "b"], ["c", "d"]]
        assert done == [1, 2]
        assert await store.ask(words) == ["a", "b", "c", "d"]
        assert await store.close() == 0

    run(story())


def test_nothing_is_written_before_commit(make, disk):
    async def story():
        store = make()
        await store.start(words)
        store.put("a")
        await asyncio.sleep(0)
        assert store.committed == 0
        assert disk.groups == []
        await store.close()
        assert disk.groups == [["a"]]

    run(story())


def test_what_nobody_waits_for_shares_a_commit(make, disk):
    async def story():
        store = make()
        await store.start(words)
        store.put("a")
        store.commit(waited=False)
        await asyncio.sleep(0)
        assert disk.groups == []
        store.put("b")
        store.commit()
        await until(lambda: store.committed == 1)
        assert disk.groups == [["a", "b"]]
        await store.close()

    run(story())


def test_under_load_groups_are_apart_and_larger(make, disk, monkeypatch):
    monkeypatch.setattr(threads, "SPACE_S", 0.5)

    async def story():
        store = make()
        await store.start(words)
        for number in range(threads.LOADED_OPS + 1):
            store.put(number)
        store.commit()
        for word in "ab":  # what nobody waits for, and then what somebody waits for
            await asyncio.sleep(0)
            store.put(word)
            store.commit(waited=word == "b")
        await until(lambda: store.committed == store.position)
        assert disk.groups[1:] == [["a", "b"]]
        store.put("alone")
        store.commit()
        await until(lambda: store.committed == store.position)
        assert disk.groups[-1] == ["alone"]
        await store.close()

    run(story())


def test_what_nobody_waits_for_is_written_soon(make, disk):
    async def story():
        store = make()
        await store.start(words)
        disk.free.clear()
        store.put("a")
        store.commit()
        store.put("b")
        store.commit(waited=False)
        disk.free.set()
        await until(lambda: store.committed == 2)
        assert disk.groups == [["a"], ["b"]]
        store.put("c")
        store.commit(waited=False)
        assert await store.close() == 0
        assert disk.groups[2:] == [["c"]]

    run(story())


def test_on_commit_may_put_and_commit(make):
    async def story():
        def echo(number):
            if number < 5:
                store.put(f"after {number}")
                store.commit()

        store = make(on_commit=echo)
        await store.start(words)
        store.put("first")
        store.commit()
        await until(lambda: store.committed == 5)
        assert await store.ask(words) == ["first", "after 1", "after 2", "after 3", "after 4"]
        await store.close()

    run(story())


def test_durable_returns_behind_the_commit(make, disk):
    async def story():
        store = make()
        await store.start(words)
        await store.durable()  # nothing was put
        store.put("a")
        await store.durable()
        assert disk.groups == [["a"]]
        disk.free.clear()
        store.put("b")
        store.commit()
        store.put("c")
        later = asyncio.gather(store.durable(), store.durable())
        await asyncio.sleep(0.02)
        assert not later.done()
        disk.free.set()
        await later
        assert disk.groups == [["a"], ["b"], ["c"]]
        await store.close()

    run(story())


def test_a_disk_that_fails_is_tried_again_in_order(make, disk, caplog):
    async def story():
        failures = []

        def sift(text, operations):
            failures.append((text, list(operations)))
            return [op for op in operations if op != "new"]

        store = make(on_failed=sift)
        await store.start(words)
        disk.error = sqlite3.OperationalError("database or disk is full")
        store.put("a")
        store.put("new")
        with pytest.raises(NotStored, match="disk is full"):
            await store.durable()
        assert "t.db: cannot be used: database or disk is full" in store.broken
        assert failures[0][1] == ["a", "new"]
        with pytest.raises(NotStored):
            await store.durable()
        store.put("b")
        store.commit()
        await until(lambda: len(failures) > 3)
        assert failures[-1][1] == ["a", "b"]
        assert store.committed == 0
        disk.error = None
        await until(lambda: not store.broken)
        await until(lambda: store.committed == store.position)
        assert await store.ask(words) == ["a", "b"]
        assert store.lost == 0
        await store.close()

    run(story())
    texts = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([text for text in texts if "disk is full" in text]) == 1, "one line, however often it fails"
    assert "test store: writes again" in texts


def test_a_writer_that_fails_in_an_unforeseen_way_tries_again(make, monkeypatch):
    async def story():
        store = make()
        await store.start(words)
        attempt = store._attempt

        def fails(operations):
            monkeypatch.setattr(store, "_attempt", attempt)
            raise MemoryError("no room")

        monkeypatch.setattr(store, "_attempt", fails)
        store.put("a")
        with pytest.raises(NotStored, match="test store: MemoryError"):
            await store.durable()
        await until(lambda: store.committed == store.position)
        assert not store.broken
        assert await store.ask(words) == ["a"]
        await store.close()

    run(story())


def test_what_is_put_behind_a_group_that_fails_is_sifted_at_once(make, disk):
    async def story():
        seen = []
        store = make(on_failed=lambda text, operations: seen.append(list(operations)) or [])
        await store.start(words)
        disk.free.clear()
        disk.error = OSError(5, "Input/output error")
        store.put("a")
        store.commit()
        store.put("b")
        disk.free.set()
        await until(lambda: seen)
        assert seen[0] == ["a", "b"]
        disk.error = None
        await until(lambda: not store.broken)
        assert store.committed == store.position, "whoever waits for a commit of what was refused goes on"
        assert await store.ask(words) == []
        await store.close()

    run(story())


def test_an_empty_group_shows_that_the_disk_is_back(make, disk):
    async def story():
        store = make(on_failed=lambda text, operations: [])
        await store.start(words)
        disk.error = MemoryError()
        store.put("a")
        store.commit()
        await until(lambda: store.broken)
        disk.error = None
        await until(lambda: not store.broken)
        assert disk.groups == [[]]
        await store.close()

    run(story())


def test_a_value_that_cannot_be_written_takes_nothing_else_with_it(make, disk, caplog):
    async def story():
        dropped = []
        store = make(on_failed=lambda text, operations: dropped.append(operations) or operations)
        await store.start(words)
        for word in ("a", "b", "poison", "c", "d", "poison", "e"):
            store.put(word)
        await store.durable()
        assert dropped == [["poison"], ["poison"]]
        assert store.lost == 2
        assert store.broken == ""
        assert await store.ask(words) == ["a", "b", "c", "d", "e"]
        await store.close()

    run(story())
    assert any("no such word; dropped a str" in record.message for record in caplog.records)


def test_a_disk_that_fails_while_a_group_is_taken_apart(make, disk):
    async def story():
        store = make()
        await store.start(words)
        plain = disk.apply

        def full_soon(connection, operations):
            if operations == ["c", "d"]:
                disk.error = sqlite3.OperationalError("database or disk is full")
            plain(connection, operations)

        store._apply_group = full_soon
        for word in ("poison", "b", "c", "d"):
            store.put(word)
        with pytest.raises(NotStored):
            await store.durable()
        store._apply_group = plain
        disk.error = None
        await until(lambda: not store.broken)
        assert await store.ask(words) == ["b", "c", "d"]
        assert store.lost == 1
        await store.close()

    run(story())


def test_an_owner_that_fails_at_a_failure_stops_nothing(make, disk, caplog):
    async def story():
        def sift(text, operations):
            raise ValueError("oh no")

        store = make(on_failed=sift)
        await store.start(words)
        disk.error = sqlite3.OperationalError("disk I/O error")
        store.put("a")
        store.commit()
        await until(lambda: store.broken)
        disk.error = None
        await until(lambda: not store.broken)
        assert await store.ask(words) == ["a"]
        await store.close()

    run(story())
    assert any("oh no" in (record.exc_text or "") for record in caplog.records)


def test_questions_are_answered_while_nothing_can_be_written(make, disk):
    async def story():
        store = make()
        await store.start(words)
        store.put("a")
        await store.durable()
        disk.error = sqlite3.OperationalError("database or disk is full")
        store.put("b")
        assert await store.ask(words) == ["a"]
        with pytest.raises(NotStored, match="no such table"):
            await store.ask(lambda connection: connection.execute("SELECT * FROM nowhere"))
        with pytest.raises(ZeroDivisionError):
            await store.ask(lambda connection: 1 // 0)
        disk.error = None
        await store.close()

    run(story())


def test_closing_gives_a_failing_disk_one_more_attempt(make, disk):
    async def story(heals):
        store = make()
        await store.start(words)
        disk.error = sqlite3.OperationalError("database or disk is full")
        store.put("a")
        store.put("b")
        with pytest.raises(NotStored):
            await store.durable()
        if heals:
            disk.error = None
        left = await store.close()
        assert left == (0 if heals else 2)
        assert await store.close() == left
        with pytest.raises(NotStored, match="closed"):
            await store.ask(words)

    run(story(heals=True))
    run(story(heals=False))


def test_a_question_that_waits_when_the_store_is_closed_is_refused(make, disk):
    async def story():
        store = make()
        await store.start(words)
        disk.free.clear()
        store.put("a")
        asks = asyncio.get_running_loop().create_task(store.ask(words))
        await until(lambda: store._under_way)
        await store.close(timeout_s=0.05)
        with pytest.raises(NotStored, match="closed"):
            await asks
        disk.free.set()
        await until(lambda: not serving())

    run(story())


def test_closing_does_not_wait_for_ever(make, disk):
    async def story():
        store = make()
        await store.start(words)
        disk.free.clear()
        store.put("a")
        waits = asyncio.get_running_loop().create_task(store.durable())
        await until(lambda: store._under_way)
        await store.close(timeout_s=0.05)
        with pytest.raises(NotStored, match="closed"):
            await waits
        disk.free.set()
        await until(lambda: not serving())

    run(story())
    assert disk.groups == [["a"]]


def test_a_loop_that_is_gone_ends_in_peace(make, disk, tmp_path):
    async def story():
        store = make()
        await store.start(words)
        disk.free.clear()
        store.put("a")
        store.commit()

    run(story())
    disk.free.set()
    for thread in serving():
        thread.join(10)
    assert not serving()
    assert disk.groups == [["a"]]
    open_database(tmp_path / "t.db", SCHEMA).close()  # nobody has its lock any more


def test_a_store_that_falls_behind_says_so_and_recovers(make, disk, monkeypatch):
    monkeypatch.setattr(threads, "BEHIND_OPS", 10)

    async def story():
        store = make()
        await store.start(words)
        disk.free.clear()
        store.put("first")
        store.commit()
        for number in range(11):
            store.put(number)
        store.commit()
        assert store.broken == "test store: 11 operations wait for the disk"
        disk.free.set()
        await until(lambda: store.committed == store.position)
        assert (store.broken, store.lost) == ("", 0)
        assert await store.ask(words) == ["first", *range(11)]
        await store.close()

    run(story())


def test_a_loop_without_a_break_stands_aside_for_an_old_group(make, disk, monkeypatch):
    monkeypatch.setattr(threads, "PATIENCE_S", 0.0)
    monkeypatch.setattr(threads, "GIVE_WAY_S", 10.0)

    async def story():
        store = make()
        await store.start(words)
        disk.free.clear()
        store.put("a")
        store.commit()
        threading.Timer(0.05, disk.free.set).start()
        store.commit()  # returns when the group is written, long before the ten seconds
        assert disk.groups == [["a"]]
        assert store.committed == 0, "told by a callback, not inside of commit"
        await until(lambda: store.committed == 1)
        await store.close()

    run(story())


def test_cleaning_up_happens_behind_the_work_until_there_is_no_more(make, disk, monkeypatch):
    monkeypatch.setattr(threads, "TIDY_AFTER_S", 0.01)
    rounds = []

    def tidy(connection):
        rounds.append(words(connection))
        if len(rounds) == 2:
            raise sqlite3.OperationalError("locked")
        return len(rounds) == 1

    async def story():
        store = make(tidy=tidy)
        await store.start(words)
        await until(lambda: len(rounds) == 2)
        store.put("a")
        await store.durable()
        await until(lambda: len(rounds) == 3)
        await asyncio.sleep(0.05)
        assert rounds == [[], [], ["a"]]
        await store.close()

    run(story())


def test_a_file_that_cannot_be_opened_or_read(make, tmp_path):
    async def story():
        (tmp_path / "t.db").mkdir()
        store = make()
        with pytest.raises(ConfigError, match="expected a regular file"):
            await store.start(words)
        await until(lambda: not serving())
        (tmp_path / "t.db").rmdir()
        store = make()
        with pytest.raises(ConfigError, match="no such column"):
            await store.start(lambda connection: connection.execute("SELECT missing FROM said"))
        store = make()
        with pytest.raises(ZeroDivisionError):
            await store.start(lambda connection: 1 // 0)
        store = make()
        assert await store.start(words) == [], "nobody left the lock behind"
        await store.close()

    run(story())


def test_a_disk_that_does_not_answer_is_told_and_one_that_is_back_too(make, disk, monkeypatch):
    monkeypatch.setattr(threads, "HANGS_S", 0.05)

    async def story():
        stuck = []
        store = make(on_stuck=lambda: stuck.append(store.broken))
        await store.start(words)
        disk.free.clear()
        store.put("a")
        store.commit()
        store.put("b")
        for _ in range(20):
            store.commit()  # a busy loop gives way each time, which must not make the commit look young
            await asyncio.sleep(0.01)
        await until(lambda: stuck)
        assert "the disk has not answered for 0.05 s" in store.broken
        monkeypatch.setattr(threads, "HANGS_S", 60)  # a slow machine's next commit is no second word
        disk.free.set()
        await until(lambda: store.committed == 2)
        assert store.broken == ""
        assert len(stuck) == 1
        assert await store.ask(words) == ["a", "b"]
        await store.close()

    run(story())


def test_a_disk_that_hangs_when_it_has_failed_before_is_known_to_hang(make, disk, monkeypatch, caplog):
    monkeypatch.setattr(threads, "HANGS_S", 0.05)

    async def story():
        store = make()
        await store.start(words)
        disk.error = sqlite3.OperationalError("disk I/O error")
        store.put("a")
        store.commit()
        await until(lambda: store.broken)
        assert not store.hangs
        disk.free.clear()
        await until(lambda: store.hangs)
        assert "disk I/O error" in store.broken
        disk.error = None
        disk.free.set()
        await until(lambda: not store.broken)
        assert not store.hangs
        assert await store.ask(words) == ["a"]
        await store.close()

    run(story())
    assert "test store: the disk has not answered for 0.05 s" in [record.message for record in caplog.records]


async def committing(make, disk):
    """A store whose commit the disk does not end, and how often it was said to be stuck."""
    stuck = []
    store = make(on_stuck=lambda: stuck.append(1))
    await store.start(words)
    disk.free.clear()
    store.put("a")
    store.commit()
    return store, stuck


def test_a_process_that_was_stopped_waits_for_the_disk_anew(make, disk, monkeypatch):
    monkeypatch.setattr(threads, "HANGS_S", 0.05)
    monkeypatch.setattr(awake, "LATE_S", 0.03)

    async def story():
        store, stuck = await committing(make, disk)
        time.sleep(0.1)  # noqa: ASYNC251 - nobody was here
        for _ in range(3):
            await asyncio.sleep(0)
        assert stuck == []
        assert store.broken == ""
        await until(lambda: stuck)  # the disk hangs in fact
        disk.free.set()
        await store.close()

    run(story())


def test_a_loop_that_is_always_late_sees_a_disk_that_hangs(make, disk, monkeypatch):
    monkeypatch.setattr(threads, "HANGS_S", 0.05)
    monkeypatch.setattr(awake, "LATE_S", 0.03)

    async def story():
        store, stuck = await committing(make, disk)
        for _ in range(5):
            time.sleep(0.1)  # noqa: ASYNC251 - nobody was here
            await asyncio.sleep(0)
        assert stuck == [1]
        disk.free.set()
        await store.close()

    run(story())


@pytest.mark.patient
def test_commits_in_time_are_no_disk_that_hangs(make, disk, monkeypatch):
    monkeypatch.setattr(threads, "HANGS_S", 1.0)  # more than a busy machine keeps a thread waiting

    async def story():
        stuck = []
        store = make(on_stuck=lambda: stuck.append(1))
        await store.start(words)
        for number in range(23):
            store.put(str(number))
            await store.durable()
            await asyncio.sleep(0.05)
        assert stuck == []
        await store.close()

    run(story())


def test_what_was_lost_for_want_of_room_is_not_forgotten_when_the_disk_is_back(make, disk, monkeypatch):
    monkeypatch.setattr(threads, "BEHIND_OPS", 2)
    monkeypatch.setattr(threads, "WAITING_OPS_MAX", 5)

    async def story():
        store = make()
        await store.start(words)
        disk.free.clear()
        store.put("first")
        store.commit()
        for number in range(8):
            store.put(str(number))
        store.commit()
        assert store.lost == 3
        assert "operations were lost" in store.broken
        disk.free.set()
        await until(lambda: store.committed == store.position)
        assert "operations were lost" in store.broken
        assert await store.ask(words) == ["first", *"01234"]
        await store.close()

    run(story())


def test_an_owner_that_fails_at_a_commit_does_not_hold_up_the_next(make, caplog):
    async def story():
        def fails(number):
            raise ValueError("broken")

        store = make(on_commit=fails)
        await store.start(words)
        store.put("a")
        store.commit()
        store.put("b")
        store.commit()
        await until(lambda: store.committed == 2)
        await store.close()
        assert "failed at a commit" in caplog.text

    run(story())
