"""The last events of a journal, for the rank 0 that comes next."""

import io
import subprocess

import msgspec

from broker import interpreter
from broker.journal.reading.last_events import WHEN, Wanted, last_events
from broker.wire import message as wire
from tests.live.segments import flux, write

FORMER, OLDER, NEW = (bytes([each]) * 16 for each in (1, 2, 3))


def event(number, **more):
    return flux(1000 + number, wire.event(f"t.{number}", b"x", sequence=number), **more)


def request(ts):
    return flux(ts, wire.request("attr.get", b"{}\0"))


RUNS = ((OLDER.hex(), 0), (FORMER.hex(), 10))


def wanted(tmp_path, last, *, runs=RUNS, max_bytes=1 << 20, since_ns=0):
    return Wanted(str(tmp_path), "rank0", list(runs), last, max_bytes, since_ns)


def numbers(asked):
    return [when - 1000 for when, _ in last_events(asked)]


def two_runs(tmp_path):
    write(tmp_path, "rank0", [event(number) for number in range(1, 11)], 0, run=OLDER, per_block=3)
    mixed = [each for number in range(11, 16) for each in (request(1000 + number), event(number))]
    write(tmp_path, "rank0", mixed, 100, run=FORMER, per_block=3)
    write(tmp_path, "rank1", [event(number) for number in range(50, 60)], 0, run=FORMER)


def test_the_newest_comes_first_over_segments_and_runs_as_it_was_sent(tmp_path):
    two_runs(tmp_path)
    assert numbers(wanted(tmp_path, 15)) == list(range(15, 0, -1))
    frames = [frame for _, frame in last_events(wanted(tmp_path, 15))]
    assert frames[0] == wire.event("t.15", b"x", sequence=15).framed()


def test_who_records_by_now_and_what_was_recorded_and_never_sent_is_passed_over(tmp_path):
    two_runs(tmp_path)
    write(tmp_path, "rank0", [event(number) for number in (14, 15, 16)], 200, run=NEW)
    assert numbers(wanted(tmp_path, 13))[:3] == [13, 12, 11]


def test_a_number_that_is_missing_ends_it(tmp_path):
    write(tmp_path, "rank0", [event(number) for number in (11, 12, 14, 15)], 0, run=FORMER)
    assert numbers(wanted(tmp_path, 15)) == [15, 14]
    assert numbers(wanted(tmp_path, 16)) == []


def test_the_begin_of_the_numbering_ends_it(tmp_path):
    write(tmp_path, "rank0", [event(number) for number in range(3, 11)], 0, run=OLDER)
    write(tmp_path, "rank0", [event(number) for number in range(1, 4)], 100, run=FORMER)
    assert numbers(wanted(tmp_path, 3, runs=[(FORMER.hex(), 0)])) == [3, 2, 1]
    # a run of another numbering in front of it is none of these, however its numbers go on
    write(tmp_path, "rank0", [event(number) for number in range(11, 13)], 100, run=FORMER)
    assert numbers(wanted(tmp_path, 12, runs=[(FORMER.hex(), 10)])) == [12, 11]


def test_size_and_age_are_bounded(tmp_path):
    two_runs(tmp_path)
    size = len(wire.event("t.15", b"x", sequence=15).framed())
    assert numbers(wanted(tmp_path, 15, max_bytes=3 * size)) == [15, 14, 13]
    assert numbers(wanted(tmp_path, 15, since_ns=1009)) == [15, 14, 13, 12, 11, 10, 9]


def test_an_event_without_its_payload_is_none(tmp_path):
    records = [event(11), event(12), event(13).with_(stripped=True), event(14)]
    write(tmp_path, "rank0", records, 0, run=FORMER)
    assert numbers(wanted(tmp_path, 14)) == [14]


def test_damage_is_a_number_that_is_missing(tmp_path):
    path = write(tmp_path, "rank0", [event(number) for number in range(11, 31)], 0, run=FORMER, per_block=5)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    found = numbers(wanted(tmp_path, 30))
    assert found
    assert found == list(range(30, 30 - len(found), -1))
    assert len(found) < 20


def test_the_process_writes_times_and_frames(tmp_path):
    two_runs(tmp_path)
    given = interpreter.order(msgspec.json.encode(wanted(tmp_path, 15)))
    done = subprocess.run(
        interpreter.command("broker.journal.reading.last_events"),
        stdin=given,
        capture_output=True,
        check=True,
    )
    out = io.BytesIO(done.stdout)
    assert WHEN.unpack(out.read(8)) == (1015,)
    assert out.read().startswith(wire.event("t.15", b"x", sequence=15).framed())
    given = interpreter.order(msgspec.json.encode(wanted(tmp_path / "nowhere", 15)))
    done = subprocess.run(
        interpreter.command("broker.journal.reading.last_events"),
        stdin=given,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
