"""Damaged journals: whatever a file holds, readers end, agree with each other, and account for every byte."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from random import Random

import numpy as np
import pytest

from broker.journal.layout import NFP, OSLO
from broker.journal.reading.blocks import Block, Damage, Damaged, salvage, walk
from broker.journal.reading.columns import decode, rows_of
from broker.journal.reading.peers import Peers
from broker.journal.reading.records import records_of
from broker.journal.reading.verify import verify
from broker.wire.message import event, request
from tests.live.segments import T0, Rec, block, flux, header, name_of, note, peer

NUMBERS = (0, 1, 7, 8, 20, 21, 63, 64, 65, 254, 255, 256, 0xFFFE, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF)


def _records() -> list[Rec]:
    routed = request("kvs.get", b"{}", matchtag=5)
    routed.push_route(b"r" * 36)
    deep = request("s" * 260 + ".m", b"p" * 300)
    for _ in range(3):
        deep.push_route(b"hop")
    return [
        peer(1, "unix:1"),
        flux(T0, routed, peer=1),
        flux(T0 + 1, event("a.b", b"x" * 40, sequence=9), direction=1, via=12),
        flux(T0 + 2, deep, stripped=True, direction=2, reason=1),
        note(T0 + 3, "gap", {"records": 1, "first": 4, "last": 4, "cause": "shed"}),
        note(T0 + 4, "nfp.job.run", {"uid": 5, "task": "t"}, [b"one", b"two"], kind=NFP, peer=1),
        note(T0 + 5, "oslo.nova.compute.ping", {"uid": 5}, [b"three"], kind=OSLO, stripped=True),
        flux(T0 + 6, [b"h" * 255, b"", b"t", bytes([0x8E, 1, 1, 9]) + bytes(16)]),
    ]


def seeds() -> list[bytes]:
    some = _records()
    return [
        header()
        + block(some, 0, codec=codec, between=between)
        + block(some[1:3], 8, codec=codec)
        + block(some, 10)
        for codec, between in (("none", 0), ("none", 24), ("zstd", 0), ("lz4", 8))
    ]


def _anything(data: bytearray, dice: Random) -> None:
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _number(data: bytearray, dice: Random) -> None:
    at = dice.randrange(0, len(data) - 3)
    struct.pack_into(dice.choice(["<I", "<H", "<B"]), data, at, dice.choice(NUMBERS[:10]))


def _wide(data: bytearray, dice: Random) -> None:
    struct.pack_into("<I", data, dice.randrange(0, len(data) - 3) & ~3, dice.choice(NUMBERS))


def _cut(data: bytearray, dice: Random) -> None:
    del data[dice.randrange(64, len(data)) :]


def _remove(data: bytearray, dice: Random) -> None:
    at = dice.randrange(len(data))
    del data[at : at + dice.choice((1, 8, 64, 200))]


def _double(data: bytearray, dice: Random) -> None:
    at = dice.randrange(len(data)) & ~7
    data[at:at] = data[64 : 64 + dice.choice((8, 64, 640, 2000))]


def _wipe(data: bytearray, dice: Random) -> None:
    at = dice.randrange(len(data))
    size = min(dice.choice((1, 16, 400)), len(data) - at)
    data[at : at + size] = bytes(size)


def _entry(data: bytearray, dice: Random) -> None:
    """A field of an entry of the first block."""
    at = 128 + 64 * dice.randrange(8)
    field, form = dice.choice(
        (
            (8, "<I"),
            (12, "<I"),
            (20, "<H"),
            (22, "<H"),
            (24, "<H"),
            (26, "<B"),
            (27, "<B"),
            (28, "<B"),
            (30, "<B"),
            (43, "<B"),
        )
    )
    if at + 64 <= len(data):
        limit = {"<I": 1 << 32, "<H": 1 << 16, "<B": 1 << 8}[form]
        struct.pack_into(form, data, at + field, dice.choice(NUMBERS) % limit)


DAMAGES = (_anything, _number, _wide, _cut, _remove, _double, _wipe, _entry, _entry, _entry)


def _seal(data: bytearray) -> None:
    """Make the CRC of each block right again, so that what is inside is looked at."""
    at = data.find(b"FJBK")
    while 0 <= at <= len(data) - 64:
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        if 64 <= length <= len(data) - at:
            struct.pack_into("<I", data, at + 8, zlib.crc32(data[at + 12 : at + length]))
        at = data.find(b"FJBK", at + 8)


def damaged(seed: bytes, dice: Random) -> bytes:
    data = bytearray(seed)
    for _ in range(dice.randint(1, 3)):
        if len(data) > 70:
            dice.choice(DAMAGES)(data, dice)
    if dice.random() < 0.7:
        _seal(data)
    return bytes(data)


def outcome_of_records(each: Block) -> list[tuple[int, str, str | None]] | None:
    try:
        return [(record.seq, record.topic, record.origin) for record in records_of(each, Peers())]
    except Damaged:
        return None


def outcome_of_columns(each: Block) -> list[tuple[int, str, str | None]] | None:
    try:
        columns = decode([each], Peers())
    except Damaged:
        return None
    seq, topic, origin = columns["seq"], columns["topic"], columns["origin"]
    found = [(int(seq[row]), topic.value(row), origin.value(row)) for row in range(rows_of(columns))]
    assert all(
        len(each if isinstance(each, np.ndarray) else each[0]) == len(found) for each in columns.values()
    )
    try:
        decode([each], Peers(), payload=True)
    except Damaged:
        pass  # a payload that does not fit is told by who asks for it
    return found


def check(path: Path, data: bytes) -> int:
    """Read it in every way; returns how many blocks were whole."""
    path.write_bytes(data)
    at, whole = 64, 0
    for each in salvage(path):
        if isinstance(each, Damage) and each.offset == 0:
            continue
        assert each.offset == at, "every byte is in a block or in a damage, and in one only"
        at += each.length
        if isinstance(each, Block):
            whole += 1
            assert outcome_of_records(each) == outcome_of_columns(each)
    assert at == max(64, len(data))
    extents = [len(data)]
    try:
        list(walk(path))
    except Damaged as error:
        extents.append(error.damage.offset + error.damage.length)
    assert max(extents) <= max(64, len(data))
    report = verify(path.parent)
    assert report.as_json()["records"] == report.records
    return whole


def run(folder: Path, count: int, seed: int) -> None:
    dice, every = Random(seed), seeds()
    path = folder / name_of("rank0", 0)
    whole = 0
    for turn in range(count):
        data = damaged(every[turn % len(every)], dice)
        try:
            whole += check(path, data)
        except Exception:
            (folder / "failing").write_bytes(data)
            raise
    assert whole > count, "most damage must leave something to read"


def test_the_seeds_are_whole(tmp_path: Path) -> None:
    for seed in seeds():
        assert check(tmp_path / name_of("rank0", 0), seed) == 3
        assert verify(tmp_path).ok


@pytest.mark.parametrize(("count", "seed"), [(60, 0), pytest.param(1000, 1, marks=pytest.mark.patient)])
def test_damaged_journals(tmp_path: Path, count: int, seed: int) -> None:
    run(tmp_path, count, seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_damaged_journals(tmp_path: Path) -> None:
    run(tmp_path, 100_000, 3)
