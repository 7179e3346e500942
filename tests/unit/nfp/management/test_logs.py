"""The buffer of log records."""

import logging

import msgspec
import pytest

from broker.nfp.self_report import TEXT_MAX, LogBuffer


@pytest.fixture
def buffer():
    buffer = LogBuffer(records_max=5)
    log = logging.getLogger("test_nfp_logs")
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(buffer)
    yield buffer
    log.removeHandler(buffer)


def note(name, level, text, *args):
    logging.getLogger(f"test_nfp_logs{name}").log(level, text, *args)


class BadText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_a_record_of_odd_words_is_told_as_far_as_it_can_be_and_never_fails_the_answer(buffer, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    note("", logging.INFO, "caf\udce9 %s", "\udcff")
    note("", logging.INFO, "%d files", "no")
    note("", logging.INFO, BadText())
    messages = [one["message"] for one in buffer.read()]
    assert messages[0] == "caf\\udce9 \\udcff"
    assert messages[1].startswith("%d files (TypeError: ")
    assert "RuntimeError" in messages[2]
    assert msgspec.json.encode(messages)


def test_records_have_the_deployed_keys_and_the_oldest_go_first(buffer):
    for number in range(8):
        note("", logging.INFO, "line %d", number)
    told = buffer.read()
    assert [one["message"] for one in told] == [f"line {number}" for number in range(3, 8)]
    assert set(told[0]) == {"ts", "level", "logger", "message", "role", "name"}
    assert (told[0]["role"], told[0]["name"], told[0]["level"]) == ("broker", "NFPBroker", "INFO")
    assert told[0]["ts"].endswith("Z")


def test_filters(buffer):
    note("", logging.INFO, "a")
    note(".room", logging.WARNING, "b")
    note(".roommate", logging.WARNING, "c")
    assert [one["message"] for one in buffer.read(level="warning")] == ["b", "c"]
    assert [one["message"] for one in buffer.read(logger="test_nfp_logs.room")] == ["b"]
    assert [one["message"] for one in buffer.read(last=1)] == ["c"]
    assert len(buffer.read(last=0)) == 3
    stamps = [one["ts"] for one in buffer.read()]
    assert len(buffer.read(since=stamps[0], until=stamps[2])) == 3
    assert buffer.read(since="2999") == []
    assert buffer.read(until="1999") == []


def test_a_long_line_is_cut_and_a_wrong_one_hurts_nobody(buffer, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    note("", logging.INFO, "x" * (TEXT_MAX * 2))
    assert len(buffer.read()[0]["message"]) == TEXT_MAX + 3
    note("", logging.INFO, "%d", "no number")
    note("", logging.INFO, "after")
    assert buffer.read()[-1]["message"] == "after"
