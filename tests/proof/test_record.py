"""The log: what was written is there after a kill, and a successor goes on where its predecessor was."""

import json

import pytest

from tests.proof import record
from tests.proof.logs import Malformed, path_of, read, read_file
from tests.proof.record import Writer

pytestmark = pytest.mark.tools


class Clock:
    def __init__(self) -> None:
        self.now = 10.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


def test_a_line_has_its_time_its_writer_and_no_empty_fields(tmp_path):
    with Writer(tmp_path, "ada", clock=Clock()) as log:
        conn, ident = log.conn(), log.next_id()
        log.up(conn, 3, 1000, record.USER)
        log.call(conn, ident, "calc", 0, node=4)
    lines = [json.loads(line) for line in (tmp_path / "party-ada.jsonl").read_text().splitlines()]
    assert lines == [
        {"t": 10.5, "who": "ada", "ev": "up", "conn": "ada#1", "at": 3, "userid": 1000, "roles": 2},
        {
            "t": 11.0,
            "who": "ada",
            "ev": "call",
            "conn": "ada#1",
            "id": "ada-1",
            "to": "calc",
            "n": 0,
            "node": 4,
        },
    ]


def test_a_call_for_nobody_in_particular_and_flags_that_are_off_are_left_out(tmp_path):
    with Writer(tmp_path, "ada") as log:
        log.call("ada#1", "ada-1", "calc", 0, noresponse=False)
    (line,) = read_file(path_of(tmp_path, "ada"))
    assert line.keys() == {"t", "who", "ev", "conn", "id", "to", "n"}


def test_every_line_is_there_before_the_next_thing_happens(tmp_path):
    log = Writer(tmp_path, "ada")
    log.note("one")
    assert len(list(read_file(path_of(tmp_path, "ada")))) == 1
    log.close()


def test_a_successor_uses_no_name_twice(tmp_path):
    with Writer(tmp_path, "ada") as log:
        log.up(log.conn(), 0, 0, 1)
        log.call("ada#1", log.next_id(), "calc", 0)
        log.publish("ada#1", log.next_id(), "t.x")
    with Writer(tmp_path, "ada") as log:
        assert (log.conn(), log.next_id()) == ("ada#2", "ada-3")


def test_a_torn_line_of_a_killed_process_is_passed_over(tmp_path):
    with Writer(tmp_path, "ada") as log:
        log.up(log.conn(), 0, 0, 1)
    with path_of(tmp_path, "ada").open("a") as file:
        file.write('{"t": 5.0, "who": "ad')
    with Writer(tmp_path, "ada") as log:
        log.note("back")
    assert [line["ev"] for line in read_file(path_of(tmp_path, "ada"))] == ["up", "note"]


def test_a_whole_line_that_is_none_of_ours(tmp_path):
    path = tmp_path / "party-x.jsonl"
    for line in ('{"ev": "up"}', "[1]", '"up"', "7"):
        path.write_text(line + "\n")
        with pytest.raises(Malformed, match=r"party-x\.jsonl:1"):
            list(read_file(path))


def test_the_driver_comes_first_and_must_be_there(tmp_path):
    with Writer(tmp_path, "ada") as log:
        log.note("hello")
    with pytest.raises(FileNotFoundError):
        read(tmp_path)
    with Writer(tmp_path, record.DRIVER) as log:
        log.world([None, 0], {"gateway": 1}, seed=7, seconds=60)
    driver, ada = read(tmp_path)
    assert driver[0]["ev"] == "world"
    assert ada[0]["text"] == "hello"


def test_names_that_would_be_mistaken_for_others(tmp_path):
    for name in ("", "a#1", "a/b"):
        with pytest.raises(ValueError, match="no # and no /"):
            Writer(tmp_path, name)


def test_no_field_replaces_what_every_line_has(tmp_path):
    with Writer(tmp_path, "ada") as log, pytest.raises(ValueError, match="named who"):
        log.line("note", who="eve")


def test_closing_twice_does_no_harm(tmp_path):
    log = Writer(tmp_path, "ada")
    log.close()
    log.close()
