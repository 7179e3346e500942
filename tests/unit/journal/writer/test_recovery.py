"""A former writer's segments: its torn tail is cut at every byte, damage stays, numbers go on."""

import os
import shutil

import pytest

from broker.journal.layout import STATE
from broker.journal.writer.recovery import DAMAGED, Notes, recover
from tests.tables import for_each
from tests.unit.journal.writer.plain import RUN, blocks, calls, header, rows, tags
from tests.unit.journal.writer.test_segments import Desk, names

OTHER = "f" * 32


def found_in(directory, run: str = RUN, *, forget: bool = False):
    path = directory / ".rank0.lock"
    if forget:
        path.unlink(missing_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        return recover(str(directory), "rank0", run, Notes(fd))
    finally:
        os.close(fd)


@pytest.fixture
def left(tmp_path):
    """A segment of three blocks (10, 5, 3 records), as a writer leaves it that was killed: nothing is noted."""
    place = tmp_path / "left"
    place.mkdir()
    with Desk(place) as desk:
        for count in (10, 5, 3):
            desk.calls(count)
    (place / ".rank0.lock").unlink()
    return place / names(place)[0]


def copy_of(left, tmp_path, data: bytes):
    place = tmp_path / "copy"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / left.name).write_bytes(data)
    return place


def test_an_empty_directory(tmp_path):
    assert found_in(tmp_path)[:3] == (0, 0, 0)


def test_the_same_run_goes_on_and_another_begins_behind(left):
    assert found_in(left.parent, forget=True)[:3] == (0, 18, 0)
    assert found_in(left.parent, OTHER, forget=True)[:3] == (18, 18, 0)


def test_numbers_of_three_runs(left):
    place = left.parent
    with Desk(place, run=OTHER) as desk:
        desk.say(calls(0, 4))
        desk.say(calls(6, 2))
        assert desk.segments.written == 6
    with Desk(place, run=OTHER) as desk:  # a new writer of the same run
        assert desk.found[:3] == (18, 26, 2)
        assert desk.segments.written == 6
        desk.say(calls(7, 3))  # one of them is on disk
        assert desk.segments.written == 8
    with Desk(place, run="e" * 32) as desk:
        assert desk.found[:3] == (28, 28, 0)
        desk.calls(1)
    assert [header((place / name).read_bytes())["base"] for name in names(place)] == [0, 18, 18, 28]
    found = [(row.seq, row.kind == STATE) for row in rows(place)]
    numbers = [*range(22), *range(23, 29)]
    assert found == [(number, number == 23) for number in numbers]


@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.patient)])
def test_a_tail_torn_at_any_byte(left, tmp_path, monkeypatch, every):
    monkeypatch.setattr(os, "fsync", lambda _fd: None)  # a thousand of them take seconds
    data = left.read_bytes()
    ends = [64] + [block.offset + block.length for block in blocks(data)]
    for cut in range(ends[2], len(data), every):
        place = copy_of(left, tmp_path, data[:cut])
        assert found_in(place)[:3] == (0, 15, 0)
        assert (place / left.name).read_bytes() == data[: ends[2]]
    for cut in range(0, ends[1], every):  # in the first block: nothing is left that has a number
        place = copy_of(left, tmp_path, data[:cut])
        assert found_in(place)[:3] == (0, 0, 0)
        assert names(place) == []
        assert (place / (left.name + DAMAGED)).stat().st_size == cut


def test_a_tail_of_zeros_or_rubbish(left, tmp_path):
    data = left.read_bytes()
    for tail in (bytes(8), bytes(5000), b"FJBK" + bytes(500), b"\xff" * 1001):
        place = copy_of(left, tmp_path, data + tail)
        assert found_in(place).next_seq == 18
        assert (place / left.name).read_bytes() == data


def test_every_flipped_byte_of_a_header_in_the_middle_leaves_the_file_alone(left, tmp_path):
    data = left.read_bytes()
    second = blocks(data)[1].offset
    for at in range(second, second + 64):
        flipped = data[:at] + bytes((data[at] ^ 0x55,)) + data[at + 1 :]
        place = copy_of(left, tmp_path, flipped)
        assert found_in(place).next_seq == 18, at - second
        assert (place / left.name).read_bytes() == flipped


def test_every_flipped_byte_of_the_last_block_keeps_its_numbers_used_or_cuts_it(left, tmp_path):
    data = left.read_bytes()
    last = blocks(data)[-1].offset
    for at in range(last, len(data)):
        flipped = data[:at] + bytes((data[at] ^ 0x55,)) + data[at + 1 :]
        place = copy_of(left, tmp_path, flipped)
        following = found_in(place).next_seq
        kept = (place / left.name).read_bytes()
        assert (following, kept) in ((18, flipped), (15, data[:last]), (15, flipped)), at - last


def test_a_damaged_segment_header_hides_no_number(left, tmp_path):
    data = left.read_bytes()
    for at in range(64):
        place = copy_of(left, tmp_path, data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])
        assert found_in(place, OTHER).next_seq == 18
        assert len(names(place)) == 1


def test_blocks_in_a_payload_are_not_taken_for_ours(left, tmp_path):
    """Somebody sends a whole block, with a number far ahead, as payload; then the writer is killed in that block."""
    with Desk(tmp_path) as far:
        far.builder.number = 1 << 40
        far.say(calls(1 << 40, 3))
        far.segments.close()
        (path,) = tmp_path.glob("*.fj")
        forged = path.read_bytes()[64:]
        path.unlink()
    (tmp_path / ".rank0.lock").unlink()
    place = left.parent
    for shift in range(8):  # one of them is aligned
        with Desk(place) as desk:
            before = (place / names(place)[-1]).stat().st_size
            number = desk.builder.number
            desk.calls(1, payload=bytes(shift) + forged + bytes(200))
            desk.calls(1, payload=bytes(shift) + forged + bytes(200))
        last = place / names(place)[-1]
        assert before
        for cut in (100, 150, 208):
            torn = copy_of(last, tmp_path, last.read_bytes()[:-cut])
            assert found_in(torn, forget=True).next_seq == number + 1
        at = blocks(last.read_bytes())[0].offset  # and with a damaged header in front
        damaged = bytearray(last.read_bytes())
        damaged[at + 4] ^= 0xFF
        assert found_in(copy_of(last, tmp_path, bytes(damaged)), forget=True).next_seq == number + 2


def test_a_segment_that_was_only_begun_is_removed(tmp_path):
    (tmp_path / ".rank0-00000000000000000000.fj.begun").write_bytes(b"FLXJ")
    (tmp_path / ".rank00-00000000000000000000.fj.begun").write_bytes(b"another writer's")
    assert found_in(tmp_path)[:3] == (0, 0, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".rank0.lock",
        ".rank00-00000000000000000000.fj.begun",
    ]


@for_each("text", [b"", b"\xff" * 90, b"1 2 3\n", b"x y z w\n"])
def test_notes_that_make_no_sense_are_passed_over(left, text):
    (left.parent / ".rank0.lock").write_bytes(text)
    assert found_in(left.parent)[:3] == (0, 18, 0)


def test_after_a_cut_the_next_segment_begins_where_the_records_end(left):
    place = left.parent
    data = left.read_bytes()
    left.write_bytes(data[:-9])
    with Desk(place) as desk:
        assert desk.found.next_seq == 15
        desk.say(calls(20, 2, cause=2))
    assert names(place) == ["rank0-00000000000000000000.fj", "rank0-00000000000000000019.fj"]
    found = rows(place)
    assert [row.seq for row in found] == [*range(15), 19, 20, 21]
    assert tags(found) == [*range(15), 20, 21]
