"""What is kept for listeners of notifications that are away: order, bounds, time, and what survives on disk."""

import contextlib
import os
import sqlite3

import pytest

from broker.errors import ConfigError, NotReady
from broker.oslo.names import LISTENER_CHARS
from broker.oslo.node import BacklogConfig
from broker.oslo.proxy.backlog import SHELVES_MAX, Backlog, BacklogFile, BacklogRecipient, listener_of
from broker.oslo.proxy.listeners import WaitingMessage
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.counters import Counters
from tests.unit.oslo.proxy.pooling import Hand

KEY, OTHER = ("x", "n.info"), ("x", "n.error")
CONFIG = BacklogConfig(("n.*",), messages=5, bytes=100, keep_s=60.0)


def message(body, key=KEY):
    return WaitingMessage(b"", body, len(body), key, body[:4].ljust(4), b"s")


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def hand(clock):
    backlog = Backlog(CONFIG, clock)
    made = Hand(100, 10_000, backlog)
    made.backlog = backlog
    return made


def bodies(given):
    return [message.body for _listener, message in given]


def come(hand, listener, keys=(KEY,), pool=None, credit=100):
    """A listener opens; what it is sent at once."""
    given = hand.open(listener, pool, keys, credit, "owner")
    hand.backlog.come(keys, pool)
    return bodies(given)


def test_what_comes_while_nobody_is_there_is_handed_first_and_in_order(hand):
    come(hand, "a")
    hand.close("a")
    for body in (b"1", b"2", b"3"):
        assert hand.take(message(body), [listener_of(None)]) == []
    assert hand.pools.counts["lost_pool"] == 0
    assert come(hand, "b", credit=2) == [b"1", b"2"]
    assert hand.take(message(b"4"), ["b"]) == [], "nothing overtakes what was kept"
    assert bodies(hand.credit("b", 5)) == [b"3", b"4"]
    assert hand.backlog.counts["backlog_given"] == 3
    assert len(hand.backlog) == hand.backlog.bytes == 0


def test_what_waited_for_the_last_listener_is_kept_in_order(hand):
    come(hand, "a", credit=1)
    for body in (b"1", b"2", b"3"):
        hand.take(message(body), ["a"])
    hand.close("a")
    hand.take(message(b"4"), ["a"])  # its sender does not know yet
    assert come(hand, "b") == [b"2", b"3", b"4"]


def test_what_cannot_be_sent_is_kept_in_its_place_as_long_as_before(hand, clock):
    come(hand, "a")
    hand.close("a")
    for body in (b"1", b"2", b"3", b"4", b"5"):  # as many as are kept
        hand.take(message(body), ["a"])
    clock.now_s += 40
    hand.takes["b"] = -1  # its process ends before it is heard
    assert come(hand, "b", credit=3) == hand.take(message(b"6"), ["b"]) == []
    assert hand.pools.counts["handed"] == hand.backlog.counts["backlog_given"] == 0
    hand.close("b")
    assert (hand.backlog.counts["backlog_full"], hand.backlog.bytes) == (1, 5)
    assert come(hand, "c", credit=2) == [b"2", b"3"]
    clock.now_s += 40
    hand.backlog.expire(lambda _shelf: True)
    assert bodies(hand.credit("c", 5)) == [b"6"]


def test_what_waits_when_the_proxy_ends_is_kept_where_a_backlog_is(hand):
    keys = (KEY, ("x", "audit"))
    come(hand, "a", keys, credit=1)
    for body in (b"1", b"2", b"3"):
        hand.take(message(body), ["a"])
    hand.take(message(b"4", keys[1]), ["a"])
    assert hand.pools.drop_all() == 1, "nothing is kept for that topic"
    assert len(hand.backlog) == 2
    assert hand.pools.waiting() == 0


def test_each_pool_has_its_own_and_other_topics_none(hand):
    come(hand, "a")
    come(hand, "p", pool="p")
    come(hand, "q", keys=(("x", "audit"),))
    for listener in "apq":
        hand.close(listener)
    hand.take(message(b"1"), [listener_of(None), listener_of("p")])
    hand.take(message(b"2", ("x", "audit")), ["q"])
    assert hand.pools.counts["lost_pool"] == 1
    assert come(hand, "b", pool="p") == [b"1"]
    assert come(hand, "c") == [b"1"]


def test_a_listener_of_several_topics_is_handed_them_as_they_came(hand):
    keys = (KEY, OTHER)
    come(hand, "a", keys)
    hand.close("a")
    for body, key in ((b"1", OTHER), (b"2", KEY), (b"3", OTHER)):
        hand.take(message(body, key), [listener_of(None)])
    assert come(hand, "b", keys) == [b"1", b"2", b"3"]


def test_while_another_of_the_pool_is_here_nothing_is_kept(hand):
    come(hand, "a")
    come(hand, "b")
    hand.close("a")
    handed = hand.take(message(b"1"), [listener_of(None)])
    assert [listener for listener, _message in handed] == ["b"]


def test_the_oldest_makes_room(hand):
    come(hand, "a")
    hand.close("a")
    for number in range(7):
        hand.take(message(b"%d" % number), ["a"])
    assert len(hand.backlog) == CONFIG.messages
    hand.take(message(bytes(98)), ["a"])
    assert hand.backlog.counts["backlog_full"] == 5
    hand.take(message(bytes(101)), ["a"])
    assert hand.pools.counts["lost_pool"] == 1, "larger than all that may be kept"
    assert hand.backlog.bytes <= CONFIG.bytes


def test_what_is_kept_for_too_long_and_who_never_comes_back(hand, clock):
    come(hand, "a")
    here = lambda shelf: hand.pools.is_here(shelf.key, shelf.pool)  # noqa: E731
    clock.now_s += 600
    assert hand.backlog.expire(here) == []
    hand.close("a")
    hand.take(message(b"1"), ["a"])
    clock.now_s += 59
    assert hand.backlog.expire(here) == []
    clock.now_s += 2
    assert hand.backlog.expire(here) == [BacklogRecipient(KEY, None)]
    assert hand.backlog.counts["backlog_expired"] == 1
    hand.take(message(b"2"), ["a"])
    assert hand.pools.counts["lost_pool"] == 1


def test_pools_that_are_kept_are_bounded(clock):
    backlog = Backlog(CONFIG, clock)
    for number in range(SHELVES_MAX + 10):
        backlog.come([KEY], f"p{number}")
    assert len(list(backlog.shelves())) == SHELVES_MAX


def test_ids_are_those_of_listeners_and_never_one_of_them():
    assert len(listener_of(None)) == len(listener_of("é")) == LISTENER_CHARS
    assert listener_of(None) != listener_of("")
    assert listener_of("a")[0] not in "0123456789abcdef"


# ---------------------------------------------------------------- on disk


class Disk:
    """A backlog with a file, on a reactor that the test turns."""

    def __init__(self, path, clock):
        self.counters = Counters(None)
        self.reactor = Reactor()
        self.reactor.open()
        self.file = BacklogFile(self.reactor, str(path), self.counters)
        self.backlog = Backlog(CONFIG, clock, self.file)

    def turn(self):
        self.reactor.call_later(0.0, int)
        self.reactor.turn()

    def kill(self):
        """As ``kill -9`` would, once a turn is over."""
        self.turn()
        self.file._due = []
        self.file._db.close()
        self.reactor.close()


def test_it_survives_the_proxy(tmp_path, clock):
    path = tmp_path / "backlog"
    first = Disk(path, clock)
    first.backlog.come([KEY, OTHER], "p")
    for body in (b"1", b"2", b"3"):
        assert first.backlog.put(message(body), "p")
    first.backlog.give(first.backlog.head([KEY], "p")[0])
    first.kill()
    assert os.stat(path).st_mode & 0o777 == 0o600
    second = Disk(path, clock)
    assert sorted(second.backlog.shelves()) == [BacklogRecipient(OTHER, "p"), BacklogRecipient(KEY, "p")]
    assert second.backlog.head([KEY], "p")[1] == message(b"2")
    assert second.backlog.put(message(b"4"), "p")
    assert [each.message.body for each in second.backlog._kept.values()] == [b"2", b"3", b"4"]
    second.file.close()
    second.reactor.close()


def test_what_cannot_be_sent_stays_on_disk(tmp_path, clock):
    path = tmp_path / "backlog"
    disk = Disk(path, clock)
    disk.backlog.come([KEY, OTHER], None)
    for body, key in ((b"1", OTHER), (b"2", KEY), (b"3", OTHER), (b"4", KEY)):
        disk.backlog.put(message(body, key), None)
    hand = Hand(100, 10_000, disk.backlog)
    hand.takes["a"] = -1
    assert hand.open("a", None, (KEY,), 10, "owner") == []
    disk.kill()
    again = Disk(path, clock)
    assert [each.message.body for each in again.backlog._kept.values()] == [b"1", b"2", b"3", b"4"]
    again.file.close()
    again.reactor.close()


def test_a_full_disk_costs_no_message_and_hands_nothing_out_twice(tmp_path, clock):
    path = tmp_path / "backlog"
    disk = Disk(path, clock)
    disk.backlog.come([KEY], None)
    assert disk.backlog.put(message(b"1"), None)
    disk.turn()
    disk.file._db.execute("PRAGMA query_only = ON")
    assert disk.backlog.put(message(b"2"), None)
    disk.backlog.give(disk.backlog.head([KEY], None)[0])
    disk.turn()
    assert disk.counters.counts["backlog_disk"] == 1
    assert disk.backlog.head([KEY], None)[1] == message(b"2")
    disk.file._db.execute("PRAGMA query_only = OFF")
    disk.backlog.put(message(b"3"), None)
    disk.kill()
    again = Disk(path, clock)
    assert [each.message.body for each in again.backlog._kept.values()] == [b"3"]
    again.file.close()
    again.reactor.close()


def test_a_full_disk_that_took_no_word_of_a_pool_costs_none_of_its_messages_later(tmp_path, clock):
    path = tmp_path / "backlog"
    disk = Disk(path, clock)
    disk.file._db.execute("PRAGMA query_only = ON")
    disk.backlog.come([KEY], "p")
    disk.turn()
    disk.file._db.execute("PRAGMA query_only = OFF")
    assert disk.backlog.put(message(b"1"), "p")
    disk.kill()
    second = Disk(path, clock)
    assert second.backlog.head([KEY], "p")[1] == message(b"1")
    assert second.backlog.put(message(b"2"), "p")
    second.kill()
    third = Disk(path, clock)
    assert second.counters.counts["backlog_disk"] == 0
    assert [each.message.body for each in third.backlog._kept.values()] == [b"1", b"2"]
    clock.now_s += CONFIG.keep_s
    assert third.backlog.expire(lambda _shelf: False) == [BacklogRecipient(KEY, "p")]
    third.kill()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_a_file_that_cannot_be_read_is_put_aside(tmp_path, clock):
    path = tmp_path / "backlog"
    path.write_bytes(b"no database at all" * 100)
    disk = Disk(path, clock)
    assert disk.counters.counts["backlog_disk"] == 1
    assert (tmp_path / "backlog.damaged").read_bytes().startswith(b"no database")
    assert disk.backlog.come([KEY], None) == [BacklogRecipient(KEY, None)]
    disk.turn()
    disk.file.close()
    disk.reactor.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM shelves").fetchone() == (1,)


def test_a_file_that_cannot_be_opened_now_stays_where_it_is(tmp_path, clock):
    path = tmp_path / "backlog"
    disk = Disk(path, clock)
    disk.file.close()
    disk.reactor.close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(NotReady, match="locked"):
            BacklogFile(None, str(path), Counters(None))
    with pytest.raises(NotReady, match="unable to open"):
        BacklogFile(None, str(tmp_path / "not-yet" / "backlog"), Counters(None))
    assert not list(tmp_path.glob("*.damaged"))


def test_a_file_of_somebody_else_is_closed_again(tmp_path, clock):
    path = tmp_path / "backlog"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE kept (other)")
    file = BacklogFile(None, str(path), Counters(None))
    with pytest.raises(ConfigError, match="no such column"):
        Backlog(CONFIG, clock, file)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        file._db.execute("SELECT 1")
