"""The ring of log records."""

import logging

import pytest

from broker.nfp.logs import TEXT_MAX, LogRing


@pytest.fixture
def ring():
    ring = LogRing(records_max=5)
    log = logging.getLogger("test_nfp_logs")
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(ring)
    yield ring
    log.removeHandler(ring)


def note(name, level, text, *args):
    logging.getLogger(f"test_nfp_logs{name}").log(level, text, *args)


def test_records_have_the_deployed_keys_and_the_oldest_go_first(ring):
    for number in range(8):
        note("", logging.INFO, "line %d", number)
    told = ring.read()
    assert [one["message"] for one in told] == [f"line {number}" for number in range(3, 8)]
    assert set(told[0]) == {"ts", "level", "logger", "message", "role", "name"}
    assert (told[0]["role"], told[0]["name"], told[0]["level"]) == ("broker", "NFPBroker", "INFO")
    assert told[0]["ts"].endswith("Z")


def test_filters(ring):
    note("", logging.INFO, "a")
    note(".room", logging.WARNING, "b")
    note(".roommate", logging.WARNING, "c")
    assert [one["message"] for one in ring.read(level="warning")] == ["b", "c"]
    assert [one["message"] for one in ring.read(logger="test_nfp_logs.room")] == ["b"]
    assert [one["message"] for one in ring.read(last=1)] == ["c"]
    assert len(ring.read(last=0)) == 3
    stamps = [one["ts"] for one in ring.read()]
    assert len(ring.read(since=stamps[0], until=stamps[2])) == 3
    assert ring.read(since="2999") == []
    assert ring.read(until="1999") == []


def test_a_long_line_is_cut_and_a_wrong_one_hurts_nobody(ring, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    note("", logging.INFO, "x" * (TEXT_MAX * 2))
    assert len(ring.read()[0]["message"]) == TEXT_MAX + 3
    note("", logging.INFO, "%d", "no number")
    note("", logging.INFO, "after")
    assert ring.read()[-1]["message"] == "after"
