"""Blocks under every cut and every flipped byte; what stands in payloads is no block."""

from __future__ import annotations

import pickle
import struct
import zlib
from pathlib import Path

import pytest

from broker.journal.reading.blocks import Block, Damage, Damaged, salvage, walk
from broker.journal.reading.bodies import unpacked
from broker.journal.reading.records import records
from broker.journal.reading.segments import Segment, live_writers, named, segments
from broker.wire.message import request
from tests.live.segments import T0, Rec, block, flux, header, note, write
from tests.tables import for_each


def said(count: int, first: int = 0) -> list[Rec]:
    return [
        flux(T0 + n, request("kvs.get", b"%d" % n, matchtag=n + 1), peer=1)
        for n in range(first, first + count)
    ]


def found(path: Path) -> list[tuple[int, int, bool]]:
    """Offset, length, whether it is a block."""
    return [(each.offset, each.length, isinstance(each, Block)) for each in salvage(path)]


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_a_segment_cut_at_every_byte_of_its_last_block(tmp_path: Path, codec: str) -> None:
    path = write(tmp_path, "rank0", said(6), per_block=2, codec=codec)
    whole = path.read_bytes()
    blocks = list(walk(path))
    assert [each.first_seq for each in blocks] == [0, 2, 4]
    last = blocks[-1].offset
    for size in range(last, len(whole)):
        path.write_bytes(whole[:size])
        assert [each.end for each in salvage(path, blocks[1].offset) if isinstance(each, Block)] == [last]
        assert [each.end for each in salvage(path) if isinstance(each, Block)][-1] == last
        torn = [each for each in salvage(path) if isinstance(each, Damage)]
        assert [(each.offset, each.length, each.torn) for each in torn] == (
            [(last, size - last, True)] * (size > last)
        )
        if size > last:
            with pytest.raises(Damaged, match=r"torn") as raised:
                list(walk(path))
            assert raised.value.damage == torn[0]
        assert [each.first_seq for each in walk(path, 64, last)] == [0, 2]
        seen: list[Damage] = []
        assert [each.seq for each in records(path, on_damage=seen.append)] == [0, 1, 2, 3]
        assert seen == torn


def test_every_flipped_byte_of_a_segment_header_is_detected(tmp_path: Path) -> None:
    path = write(tmp_path, "rank0", said(2), 7, rank=3)
    whole = path.read_bytes()
    for at in range(64):
        for flip in (0x01, 0x80, 0xFF):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
            segment = Segment(path)
            assert segment.damage is not None
            assert segment.damage[1:3] == (0, 64)
            assert segment.first_seq == 7  # the name says it
            with pytest.raises(Damaged):
                next(walk(path))
            # what is behind it can be had all the same
            assert found(path) == [(0, 64, False), (64, len(whole) - 64, True)]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_every_flipped_byte_of_a_block_header_is_detected_and_costs_that_block_alone(
    tmp_path: Path, which: int
) -> None:
    path = write(tmp_path, "rank0", said(9), per_block=3)
    whole = path.read_bytes()
    blocks = list(walk(path))
    hurt = blocks[which]
    for at in range(hurt.offset, hurt.offset + 64):
        for flip in (0x01, 0x80, 0xFF):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
            assert found(path) == [(each.offset, each.length, each is not hurt) for each in blocks], at
            with pytest.raises(Damaged) as raised:
                list(walk(path))
            assert raised.value.damage.offset == hurt.offset


def test_every_flipped_byte_behind_the_header_is_detected(tmp_path: Path) -> None:
    path = write(tmp_path, "rank0", said(4), per_block=2, between=24)
    whole = path.read_bytes()
    first, second = walk(path)
    for at in range(first.offset + 64, first.end):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert found(path) == [(first.offset, first.length, False), (second.offset, second.length, True)]


def test_damage_of_several_blocks_in_a_row_is_told_block_by_block_where_their_headers_are_right(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, "rank0", said(5), per_block=1)
    data = bytearray(path.read_bytes())
    blocks = list(walk(path))
    for hurt in (blocks[1], blocks[2]):
        data[hurt.offset + 70] ^= 1
    path.write_bytes(data)
    assert found(path) == [(each.offset, each.length, each not in blocks[1:3]) for each in blocks]


def test_what_is_wiped_from_within_one_block_into_another_is_one_damage(tmp_path: Path) -> None:
    path = write(tmp_path, "rank0", said(5), per_block=1)
    data = bytearray(path.read_bytes())
    one, two, three, four, five = walk(path)
    data[two.offset : three.offset + 80] = bytes(three.offset + 80 - two.offset)
    path.write_bytes(data)
    damage = (two.offset, four.offset - two.offset, False)
    assert found(path) == [
        (one.offset, one.length, True),
        damage,
        (four.offset, four.length, True),
        (five.offset, five.length, True),
    ]


def test_blocks_within_a_payload_are_never_taken_for_blocks(tmp_path: Path) -> None:
    """Whoever sends a piece of a journal must not get its records into ours when our block is damaged."""
    fake = block(said(3, 500), 500)
    for shift in range(8):
        forged = [flux(T0, request("x.y", bytes(shift) + fake + fake + fake[:64], matchtag=1))]
        path = write(tmp_path, "rank0", [*forged, *said(2)], per_block=1)
        whole = path.read_bytes()
        first = next(walk(path))
        for at in (0, 4, 8, 20, 100):  # magic, length, CRC, bodies, an entry
            data = bytearray(whole)
            data[first.offset + at] ^= 0x40
            path.write_bytes(data)
            assert [each.seq for each in records(path, on_damage=lambda _: None)] == [1, 2]
        # torn within the payload, behind blocks that are whole
        for cut in (first.end - 80, first.end - 30):
            path.write_bytes(whole[:cut])
            assert found(path) == [(64, cut - 64, False)]


def test_a_length_that_no_count_explains_is_damage_not_a_way(tmp_path: Path) -> None:
    path = write(tmp_path, "rank0", said(2), per_block=1)
    data = bytearray(path.read_bytes())
    for wrong in (0, 8, 64, 72, 2**31, 2**32 - 8):
        data[68:72] = struct.pack("<I", wrong)
        path.write_bytes(data)
        _damage, second = salvage(path)
        assert isinstance(second, Block)
        assert second.first_seq == 1


def test_a_range_that_does_not_align_raises(tmp_path: Path) -> None:
    path = write(tmp_path, "rank0", said(3), per_block=1)
    one, two, three = walk(path)
    for start, end in ((72, three.end), (64, two.end - 8), (64, two.offset + 8), (one.offset + 64, two.end)):
        with pytest.raises(Damaged):
            list(walk(path, start, end))
    with pytest.raises(Damaged, match="the file ends at"):
        list(walk(path, 64, three.end + 8))
    assert [each.first_seq for each in walk(path, two.offset, three.end)] == [1, 2]
    assert list(walk(path, two.offset, two.offset)) == []


def test_crc_can_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "rank0", said(1))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert len(list(walk(path, crc=False))) == 1


def test_many_small_and_a_few_large_blocks_are_read_whole(tmp_path: Path) -> None:
    large = [flux(T0, request("a.b", bytes([n]) * 900_000, matchtag=1)) for n in range(3)]
    path = write(tmp_path, "rank0", [*said(300), *large, *said(300), *large], per_block=1)
    assert [each.first_seq for each in walk(path)] == list(range(606))
    assert [each.payload_len for each in records(path)][300:303] == [900_000] * 3


@for_each("size", [0, 1, 63])
def test_a_segment_without_a_whole_header(tmp_path: Path, size: int) -> None:
    path = tmp_path / "rank0-00000000000000000000.fj"
    path.write_bytes(header()[:size])
    segment = Segment(path)
    assert segment.damage is not None
    assert segment.damage.torn
    assert segment.damage.length == size
    assert [each for each in salvage(path) if isinstance(each, Block)] == []


def test_a_segment_of_another_version_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, "rank0", said(1), version=2)
    assert Segment(path).damage is not None
    with pytest.raises(Damaged, match="version 2, this program knows 1"):
        list(walk(path))


def test_bodies_that_do_not_unpack_are_damage(tmp_path: Path) -> None:
    data = bytearray(block(said(3), codec="zstd"))
    data[20:24] = struct.pack("<I", 5)  # the size announced
    data[8:12] = struct.pack("<I", zlib.crc32(data[12:]))
    path = tmp_path / "rank0-00000000000000000000.fj"
    path.write_bytes(header() + data)
    (only,) = walk(path)
    with pytest.raises(Damaged, match="5 announced"):
        only.bodies()


@for_each("codec", [1, 2])
def test_a_frame_that_unpacks_to_more_than_announced_is_refused(codec: int) -> None:
    import lz4.frame
    import zstandard

    many = bytes(1 << 24)
    packed = zstandard.compress(many) if codec == 1 else lz4.frame.compress(many, store_size=False)
    with pytest.raises(ValueError, match="announced"):
        unpacked(codec, memoryview(packed), 100)
    with pytest.raises(ValueError):
        unpacked(codec, memoryview(b"no frame at all"), 100)


def test_segments_are_listed_by_writer_and_number(tmp_path: Path) -> None:
    for writer, first in (("rank1", 0), ("rank0", 20), ("rank0", 3), ("oslo-proxy", 0)):
        write(tmp_path, writer, said(1), first)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "rank0-3.fj").write_text("x")
    assert [(each.writer, each.first_seq) for each in segments(tmp_path)] == [
        ("oslo-proxy", 0), ("rank0", 3), ("rank0", 20), ("rank1", 0),
    ]  # fmt: skip
    assert [each.first_seq for each in segments(tmp_path, "rank0")] == [3, 20]
    assert named("/a/oslo-proxy-00000000000000000007.fj") == ("oslo-proxy", 7)


def test_an_empty_journal_has_no_segments(tmp_path: Path) -> None:
    assert segments(tmp_path) == []
    assert list(records(tmp_path)) == []


def test_who_holds_the_lock_of_a_name_is_alive(tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / ".rank0.lock").open("w") as lock, (tmp_path / ".rank1.lock").open("w"):
        assert live_writers(tmp_path) == set()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert live_writers(tmp_path) == {"rank0"}
    assert live_writers(tmp_path) == set()


def test_the_error_crosses_processes() -> None:
    error = Damaged("/j/a.fj", 64, 8, "why", True)
    again = pickle.loads(pickle.dumps(error))
    assert again.damage == error.damage
    assert str(again) == "a.fj: 8 bytes at 64: why"


def test_a_note_is_read_back(tmp_path: Path) -> None:
    path = write(tmp_path, "nfp", [note(T0, "link.up", {"peer": 1, "uid": 7})])
    (record,) = records(path)
    assert (record.kind, record.topic, record.userid, record.payload) == ("state", "link.up", 7, None)
