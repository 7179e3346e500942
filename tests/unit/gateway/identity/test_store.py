"""The store that workers share: its file, its keys, revocations, and who wins a race."""

import os
import sqlite3
import stat
import time

import pytest

from broker.errors import ConfigError
from broker.rfc6455 import reconnects
from gateway import closes
from gateway.identity.login import Logins
from gateway.identity.store import BUSY_S, FILE, VERSION, Store
from gateway.principal import Denied
from gateway.settings.schema import AccessSection
from tests.tables import for_each
from tests.unit.gateway.identity import racers

pytestmark = pytest.mark.interpreter


@pytest.fixture
def store(tmp_path):
    opened = Store(tmp_path / "state")
    yield opened
    opened.close()


def test_nobody_else_reads_it(store):
    store.key("resume")
    assert stat.S_IMODE(store.statedir.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.statedir.iterdir()}
    assert modes[FILE] == 0o600
    assert set(modes.values()) == {0o600}, modes


@for_each("mode", [0o777, 0o770, 0o722])
def test_a_directory_that_others_write_to_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(ConfigError, match="nobody else may write"):
        Store(tmp_path)


def test_a_readable_file_is_refused(tmp_path):
    (tmp_path / FILE).touch(0o644)
    with pytest.raises(ConfigError, match="expected a file of 0600"):
        Store(tmp_path)


def test_a_symbolic_link_is_refused(tmp_path):
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="expected a file of 0600"):
        Store(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_store_of_the_last_release_is_taken_over(tmp_path):
    store = Store(tmp_path)
    store.revoke("token:1", 1e12)
    store.close()
    base = sqlite3.connect(tmp_path / FILE)
    base.execute("DROP TABLE userids")
    base.execute(f"PRAGMA user_version={VERSION - 1}")
    base.close()
    store = Store(tmp_path)
    assert (list(store.revocations()), store.reading("SELECT * FROM userids")) == (["token:1"], [])
    store.close()


@pytest.mark.parametrize("version", [VERSION - 2, VERSION + 1])
def test_another_version_is_refused_untouched_and_its_file_named(tmp_path, version):
    Store(tmp_path).close()
    base = sqlite3.connect(tmp_path / FILE)
    base.execute(f"PRAGMA user_version={version}")
    base.close()
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(ConfigError) as refused:
        Store(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path / FILE}: version {version}, expected {VERSION}: another version of Headgate wrote it. Run that one,"
        f" or move {FILE} away together with {FILE}-wal and {FILE}-shm: logins, keys and revocations are lost with it"
    )
    assert (tmp_path / FILE).read_bytes() == before


def test_what_is_no_database_is_refused(tmp_path):
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    (tmp_path / FILE).chmod(0o600)
    with pytest.raises(ConfigError, match="cannot be used"):
        Store(tmp_path)


def test_a_key_is_made_once(store, tmp_path):
    first = store.key("resume")
    again = Store(tmp_path / "state")
    assert again.key("resume") == first
    assert again.key("other") != first
    assert len(first) == 32
    again.close()


def test_processes_that_start_together_agree_on_the_key(tmp_path):
    assert len(set(racers.race(racers.key, 4, tmp_path))) == 1


def test_revocations_are_seen_by_other_processes_and_forgotten_after_their_time(tmp_path):
    now = [1000.0]
    one, two = (Store(tmp_path, wall=lambda: now[0]) for _ in range(2))
    before = two.changes()
    one.revoke("jwt:a", until=1010.0)
    one.revoke("jwt:b", until=1100.0)
    one.revoke("jwt:b", until=1050.0)  # an earlier end takes nothing back
    assert two.changes() > before
    assert two.revocations() == {"jwt:a": 1010.0, "jwt:b": 1100.0}
    now[0] = 1060.0
    assert two.revocations() == {"jwt:b": 1100.0}
    two.revoke("jwt:c", until=1200.0)
    assert one.reading("SELECT credential FROM revocations ORDER BY credential") == [("jwt:b",), ("jwt:c",)]
    one.close()
    two.close()


def test_revocations_are_read_from_a_change_on_and_without_those_of_logins(store):
    store.revoke_all({"jwt:a": 1e12, "login:1": 1e12, "tls:b": 1e12})
    before = store.changes()
    store.revoke("login:2", 1e12)
    store.revoke("jwt:a", 1e12 - 1)  # nothing new
    assert store.changes() == before + 1
    assert store.revocations(since=before) == {"login:2": 1e12}
    assert store.revocations(since=store.changes()) == {}
    assert set(store.revocations()) == {"jwt:a", "login:1", "login:2", "tls:b"}
    assert set(store.revocations(logins=False)) == {"jwt:a", "tls:b"}
    store.revoke("jwt:a", 1e12 + 1)
    assert store.revocations(since=before) == {"login:2": 1e12, "jwt:a": 1e12 + 1}


def test_what_is_revoked_already_is_not_written_again(store, monkeypatch):
    """Every gateway hears all of it whenever one comes back: under the write lock logins would wait for that."""
    store.revoke_all({"jwt:a": 1e12, "jwt:b": 1e12})
    before = store.changes()
    with monkeypatch.context() as patched:
        patched.setattr(store, "writing", None)
        store.revoke_all({"jwt:a": 1e12, "jwt:b": 1e12 - 1})
    store.revoke_all({"jwt:a": 1e12, "jwt:b": 1e12 + 1, "jwt:c": 1e12})
    assert store.revocations(since=before) == {"jwt:b": 1e12 + 1, "jwt:c": 1e12}


def test_no_look_at_revocations_goes_through_all_of_them(store):
    plans, reading = [], store.reading

    def explained(query, *values):
        plans.extend(reading(f"EXPLAIN QUERY PLAN {query}", *values))
        return reading(query, *values)

    store.reading = explained
    store.revocations(since=5)
    store.revocations(logins=False)
    explained("DELETE FROM revocations WHERE until < ?", 1.0)
    steps = [step for *_, step in plans if "revocations" in step]
    assert len(steps) == 4
    assert all("SEARCH" in step for step in steps), steps


def test_a_revocation_is_taken_back_in_all_processes(tmp_path):
    one, two = Store(tmp_path), Store(tmp_path)
    one.revoke("jwt:a", until=1e12)
    before = one.changes()
    assert two.restore("jwt:a")
    assert one.changes() > before
    assert one.revocations() == {}
    assert not two.restore("jwt:a")
    one.close()
    two.close()


def test_what_was_announced_can_be_read(store):
    assert store.announced() == {}
    store.announce({"urls": ["http://127.0.0.1:1"]})
    store.announce({"urls": ["http://127.0.0.1:2"], "login_links": "user"})
    assert store.announced() == {"urls": ["http://127.0.0.1:2"], "login_links": "user"}


def test_an_error_within_a_transaction_takes_all_of_it_back(store):
    with pytest.raises(RuntimeError), store.writing() as base:
        base.execute("INSERT INTO revocations VALUES ('x', 1e12, 1)")
        raise RuntimeError
    assert store.revocations() == {}
    store.revoke("y", until=1e12)
    assert store.revocations() == {"y": 1e12}


def test_a_writer_waits_for_another_process_only_so_long(store):
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    begin = time.monotonic()
    with pytest.raises(Denied) as refused:
        store.revoke("x", until=1e12)
    waited = time.monotonic() - begin
    assert (refused.value.status, refused.value.close) == (503, closes.BUSY)
    assert reconnects(refused.value.close)
    assert waited >= BUSY_S / 2  # it did wait; how much longer is the machine's affair
    assert store.revocations() == {}  # a reader does not wait
    other.execute("ROLLBACK")
    other.close()
    store.revoke("x", until=1e12)
    assert store.revocations() == {"x": 1e12}


def test_a_store_does_not_cross_a_fork(store, monkeypatch):
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    with pytest.raises(RuntimeError, match="fork"):
        store.changes()


def test_of_processes_that_race_for_a_link_exactly_one_wins(tmp_path):
    store = Store(tmp_path)
    logins = Logins(store, AccessSection(login_links="owner"))
    secrets = [logins.make_link() for _ in range(25)]
    won = racers.race(racers.redeem, 4, tmp_path, secrets)
    assert sum(won) == len(secrets), won
    assert store.reading("SELECT count(*) FROM logins") == [(25,)]
    assert store.reading("SELECT count(*) FROM links") == [(0,)]
    store.close()
