"""Files of stores: whose they are, who may use them, what is wrong with them."""

import logging
import os
import sqlite3
import stat
import subprocess
import sys

import pytest

from broker.errors import ConfigError
from broker.nfp.store import database as files
from broker.nfp.store.database import Schema, complaint, give_back, open_database, transaction

pytestmark = pytest.mark.interpreter

FIRST = Schema("test store", 0x74657374, 1, "CREATE TABLE a (x); CREATE TABLE b (y)")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sub" / "t.db"


ELSEWHERE = """
import sys
from broker.errors import NotReady
from broker.nfp.store.database import Schema, open_database
for line in sys.stdin:
    try:
        open_database(line.strip(), Schema("test store", 0x74657374, 1, "CREATE TABLE a (x)")).close()
        print(flush=True)
    except NotReady as error:
        print(error, flush=True)
"""


@pytest.fixture(scope="module")
def refused_elsewhere():
    """What another process is told that opens a file; "" when it may."""
    words = [sys.executable, "-c", ELSEWHERE]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def told(path) -> str:
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        yield told
        process.stdin.close()
        assert process.wait(30) == 0


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_is_private_from_the_start(path):
    old = os.umask(0)
    try:
        database = open_database(path, FIRST)
        database.connection.execute("INSERT INTO a VALUES (1)")
    finally:
        os.umask(old)
    names = {entry.name: mode(entry) for entry in path.parent.iterdir()}
    assert names == dict.fromkeys(["t.db", "t.db-wal", "t.db-shm", "t.db.lock"], 0o600)
    assert mode(path.parent) == 0o700
    database.close()
    database.close()


def test_a_file_that_others_can_read_is_tightened(path, caplog):
    open_database(path, FIRST).close()
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING, "headgate"):
        open_database(path, FIRST).close()
    assert mode(path) == 0o600
    assert "mode 0644" in caplog.text


@pytest.mark.parametrize(("sync", "number"), [("normal", 1), ("full", 2)])
def test_settings_of_the_connection(path, sync, number):
    database = open_database(path, FIRST, sync)
    asked = {name: database.connection.execute(f"PRAGMA {name}").fetchone()[0] for name in (
        "journal_mode", "synchronous", "auto_vacuum", "busy_timeout", "application_id", "user_version")}  # fmt: skip
    database.close()
    assert asked == {
        "journal_mode": "wal", "synchronous": number, "auto_vacuum": 2, "busy_timeout": 2000,
        "application_id": 0x74657374, "user_version": 1,
    }  # fmt: skip


def test_one_process_opens_a_file_once(path, tmp_path, refused_elsewhere):
    first = open_database(path, FIRST)
    (tmp_path / "link").symlink_to(path.parent)
    for name in (path, tmp_path / "link" / "t.db"):
        with pytest.raises(ConfigError, match="open in this very process already"):
            open_database(name, FIRST)
    assert refused_elsewhere(path), "the refused attempt did not drop the lock"
    first.close()
    open_database(path, FIRST).close()


def test_another_process_is_told_who_has_it(path, refused_elsewhere):
    database = open_database(path, FIRST)
    said = refused_elsewhere(path)
    assert said == (
        f"{path}: process {os.getpid()} uses this test store, expected nobody; end it, or choose another file"
    )
    database.close()
    assert refused_elsewhere(path) == ""


def test_a_forked_child_does_not_keep_the_lock(path, refused_elsewhere):
    database = open_database(path, FIRST)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # until the parent has seen enough
        os._exit(0)
    os.close(read)
    try:
        database.close()
        assert refused_elsewhere(path) == ""
    finally:
        os.close(write)
        os.waitpid(child, 0)


@pytest.mark.parametrize("version", [1, 3])
def test_another_version_is_refused_untouched_and_its_file_named(path, version):
    open_database(path, FIRST._replace(version=version)).close()
    before = path.read_bytes()
    with pytest.raises(ConfigError) as caught:
        open_database(path, FIRST._replace(version=2))
    assert str(caught.value) == (
        f"{path}: test store of version {version}, expected 2: another version of Headgate wrote it. Run that one, or"
        " move t.db away together with t.db-wal and t.db-shm to begin with an empty one"
    )
    assert path.read_bytes() == before
    open_database(path, FIRST._replace(version=version)).close()


def test_the_version_before_is_upgraded_all_or_nothing(path):
    open_database(path, FIRST).close()
    second = FIRST._replace(version=FIRST.version + 1, tables="CREATE TABLE c (x)")
    with pytest.raises(ConfigError, match="no such table: nowhere"):
        open_database(path, second._replace(upgrades=("CREATE TABLE c (x); DROP TABLE nowhere",)))
    open_database(path, FIRST).close()
    upgrade = "CREATE TABLE c (x); INSERT INTO c VALUES (pack('.', 7))"
    for _ in range(2):  # it is done once
        database = open_database(path, second._replace(upgrades=(upgrade,)))
        assert database.connection.execute("SELECT x FROM c").fetchall() == [(b"\x91\x07",)]
        database.close()
    with pytest.raises(ConfigError, match="another version of Headgate"):
        open_database(path, second._replace(version=second.version + 2, upgrades=(upgrade,)))


def test_tables_that_cannot_be_made_leave_an_empty_file(path):
    with pytest.raises(ConfigError, match="no such table: nowhere"):
        open_database(path, FIRST._replace(tables=f"{FIRST.tables}; DROP TABLE nowhere"))
    open_database(path, FIRST).close()


@pytest.mark.parametrize(
    "script", ["CREATE TABLE t (x)", "PRAGMA user_version=7", "PRAGMA application_id=99"]
)
def test_a_database_of_somebody_else_is_refused_untouched(path, script):
    path.parent.mkdir()
    stranger = sqlite3.connect(path)
    stranger.executescript(script)
    stranger.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="a database, but no test store of Headgate; choose another file"):
        open_database(path, FIRST)
    assert path.read_bytes() == before


def filled(path):
    database = open_database(path, FIRST)
    with transaction(database.connection):
        database.connection.executemany("INSERT INTO a VALUES (?)", [(bytes(500),) for _ in range(200)])
    database.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"no database at all, whatever its name says" * 100,
        lambda data: data[:4096] + b"\xff" * 8192 + data[12288:],
        lambda data: data[: len(data) // 2],
    ],
    ids=["nonsense", "pages overwritten", "cut short"],
)
def test_a_damaged_file_is_named_and_left_alone(path, spoil):
    filled(path)
    path.write_bytes(spoil(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(ConfigError) as caught:
        open_database(path, FIRST)
    said = str(caught.value)
    assert said.startswith(f"{path}: damaged (")
    assert "Put back a copy, or move t.db away together with t.db-wal and t.db-shm" in said
    assert path.read_bytes() == before


def test_an_empty_file_beside_a_full_wal_is_damage(path):
    database = open_database(path, FIRST)
    database.connection.execute("INSERT INTO a VALUES (1)")
    wal = path.with_name("t.db-wal").read_bytes()
    database.close()
    path.write_bytes(b"")
    path.with_name("t.db-wal").write_bytes(wal)
    with pytest.raises(ConfigError, match="it is empty, but its -wal is not"):
        open_database(path, FIRST)
    assert path.with_name("t.db-wal").read_bytes() == wal


@pytest.mark.parametrize(
    "steps", [[], ["PRAGMA auto_vacuum=INCREMENTAL"], ["PRAGMA auto_vacuum=2", "PRAGMA journal_mode=WAL"]]
)
def test_a_file_whose_making_was_cut_short_is_made_again(path, steps):
    path.parent.mkdir()
    path.touch()
    half = sqlite3.connect(path, isolation_level=None)
    for step in steps:
        half.execute(step)
    half.close()
    for _ in range(2):
        database = open_database(path, FIRST)
        assert database.connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
        assert database.connection.execute("SELECT count(*) FROM b").fetchone() == (0,)
        database.close()


def test_places_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"t\.db: its folder cannot be made: .*/file: File exists"):
        open_database(tmp_path / "file" / "t.db", FIRST)
    (tmp_path / "link.db").symlink_to(tmp_path / "file")
    with pytest.raises(ConfigError, match="expected a regular file"):
        open_database(tmp_path / "link.db", FIRST)


def test_who_holds_the_write_lock_is_waited_for_and_then_named(path, monkeypatch):
    monkeypatch.setattr(files, "BUSY_S", 0.01)
    open_database(path, FIRST).close()
    stranger = sqlite3.connect(path, isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    database = open_database(path, FIRST)
    with pytest.raises(sqlite3.OperationalError) as caught:
        database.connection.execute("INSERT INTO a VALUES (1)")
    assert (
        str(complaint(path, caught.value)) == f"{path}: another program keeps it locked (database is locked)"
    )
    stranger.close()
    database.connection.execute("INSERT INTO a VALUES (1)")
    database.close()


def test_a_transaction_is_all_or_nothing(path):
    database = open_database(path, FIRST)
    with pytest.raises(ValueError, match="no"), transaction(database.connection) as connection:
        connection.execute("INSERT INTO a VALUES (1)")
        raise ValueError("no")
    assert database.connection.execute("SELECT count(*) FROM a").fetchone() == (0,)
    database.close()


def test_free_pages_are_given_back_bit_by_bit(path):
    database = open_database(path, FIRST)
    connection = database.connection
    with transaction(connection):
        connection.executemany("INSERT INTO a VALUES (?)", [(bytes(4000),) for _ in range(3000)])
    connection.execute("DELETE FROM a")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    full = path.stat().st_size
    rounds = 1
    while give_back(connection):
        rounds += 1
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert 5 < rounds < 20
    assert path.stat().st_size < full / 4
    assert connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
    database.close()


def test_in_memory_there_is_no_file_and_no_lock(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = open_database(files.MEMORY, FIRST), open_database(files.MEMORY, FIRST)
    first.connection.execute("INSERT INTO a VALUES (1)")
    seen = [each.connection.execute("SELECT count(*) FROM a").fetchone()[0] for each in (first, second)]
    for each in (first, second):
        each.close()
    assert (seen, list(tmp_path.iterdir())) == ([1, 0], [])
