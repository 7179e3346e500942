"""A writer that takes over a damaged segment and whoever reads it: no number that a reader has seen, or sees later, is
given out again.

The two look for blocks behind damage by themselves and by rules of their own: recovery counts what a damaged block has
used up, too. So the next number may be higher than a reader would say, never lower.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.journal.reading.blocks import Block, salvage
from broker.journal.reading.verify import verify
from broker.journal.writer.recovery import DAMAGED, Notes, recover
from broker.wire.message import request
from tests.live.segments import T0, block, flux, header, name_of, peer

FIRST = 40
"""Number of the first record."""
OTHER_RUN = "f" * 32


@dataclass(frozen=True)
class Harm:
    """Something that happens to a file; ``at`` is a share of its length."""

    what: str
    at: float
    size: int


HARMS = st.builds(
    Harm,
    st.sampled_from(["flip", "head", "wipe", "cut", "remove", "rubbish"]),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([1, 4, 8, 24, 64, 200, 520, 1000]),
)
SHAPES = st.tuples(
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.sampled_from(["none", "zstd", "lz4"]),
    st.booleans(),
    st.sampled_from([0, 3, 8, 40]),
)
"""Records of each block, their codec, peers in front, the size of payloads."""


def segment(shape):
    """A segment, and where its blocks begin; one payload of each block holds a whole block of somebody else."""
    counts, codec, peers, size = shape
    pieces, number = [header(FIRST)], FIRST
    if peers:
        pieces.append(block([peer(1, "unix:1")], FIRST, unnumbered=True))
    foreign = block([flux(T0, request("far"))], 1 << 40) if size == 8 else b""
    for count in counts:
        payload = bytes(size) + foreign
        records = [flux(T0 + tag, request("a.b", payload, matchtag=tag + 1), peer=1) for tag in range(count)]
        pieces.append(block(records, number, codec=codec))
        number += count
    starts = [sum(map(len, pieces[:index])) for index in range(1, len(pieces))]
    return b"".join(pieces), starts


def harmed(data, starts, harms):
    data = bytearray(data)
    for harm in harms:
        at = int(harm.at * len(data))
        if harm.what == "flip":
            data[at] ^= 1 << harm.size % 8
        elif harm.what == "head":
            start = starts[int(harm.at * len(starts))]
            at = start + harm.size % 64
            if at < len(data):
                data[at] ^= 0x41
        elif harm.what == "wipe":
            data[at : at + harm.size] = bytes(len(data[at : at + harm.size]))
        elif harm.what == "cut":
            del data[max(at, 1) :]
        elif harm.what == "remove":
            del data[at : at + harm.size]
        else:
            data += b"FJBK" + b"\x5a" * harm.size
        if not data:
            data += b"\0"
    return bytes(data)


def read(path):
    """(first number, records, bytes) of each numbered block that a reader finds."""
    found = [each for each in salvage(path) if isinstance(each, Block)]
    return [(each.first_seq, each.count, bytes(each.data)) for each in found if each.numbered]


def taken_over(folder):
    """Where the next writer goes on, nothing being noted."""
    fd = os.open(folder / ".rank0.lock", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        return recover(str(folder), "rank0", OTHER_RUN, Notes(fd))
    finally:
        os.close(fd)


HARMED = (SHAPES, st.lists(HARMS, max_size=4))


@pytest.mark.patient
@settings(max_examples=400, deadline=None)
@given(*HARMED)
def test_no_number_of_many_is_given_out_twice(shape, harms):
    test_no_number_is_given_out_twice.hypothesis.inner_test(shape, harms)


@given(*HARMED)
@example(([3, 2, 4], "none", True, 8), [Harm("head", 0.4, 4), Harm("cut", 0.97, 1)])
@example(([3, 2, 4], "none", False, 8), [Harm("head", 0.9, 5)])
@example(([1], "none", False, 0), [Harm("cut", 0.5, 1)])
@example(  # the last block, damaged in a way of its own, leads to the end but for rubbish
    ([1, 1, 1, 1, 1, 3], "none", False, 0),
    [Harm("flip", 0.75, 1), Harm("head", 0.0, 1), Harm("wipe", 0.625, 4), Harm("rubbish", 0.0, 1)],
)
@example(  # once the torn block is cut, a whole one between two damaged ones can be read
    ([1, 1, 1, 1, 1, 1], "none", True, 0),
    [Harm("head", 0.75, 1), Harm("cut", 0.984375, 1), Harm("flip", 0.5, 1)],
)
@example(  # a block of peers has lost the flag that its records have no numbers
    ([2, 2, 2, 4], "none", True, 0),
    [Harm("wipe", 0.07743057822907029, 1)],
)
@example(
    ([2, 2, 2, 4], "lz4", True, 0),
    [Harm("cut", 0.7109375, 1), Harm("flip", 0.75, 1), Harm("wipe", 0.07743057822907029, 1)],
)
@example(  # behind a block that has lost bytes stands a whole one, which would be its payload if the tail were cut
    ([5, 1, 1], "none", True, 0),
    [Harm("head", 0.0, 1), Harm("head", 0.75, 1), Harm("remove", 0.5, 200)],
)
def test_no_number_is_given_out_twice(shape, harms):
    data, starts = segment(shape)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / name_of("rank0", FIRST)
        path.write_bytes(harmed(data, starts, harms))
        before = read(path)
        told = [each.next_seq for each in verify(folder).segments]
        following = taken_over(folder).next_seq
        if before:
            assert path.exists()
            assert following >= max(first + count for first, count, _data in before)
            assert following >= max(told)
            assert following >= max(first + count for first, count, _data in read(path))
        else:
            assert following >= FIRST
        if not harms:
            assert following == FIRST + sum(shape[0])
        if not path.exists():
            path.with_name(path.name + DAMAGED).rename(path)
            assert read(path) == before == []
        assert taken_over(folder).next_seq >= max(
            FIRST, *(first + count for first, count, _data in before), 0
        )
