"""Any frames come back from their bundle; any damage to one is frames again, or refused in one way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.oslo.frames import Kind, encode
from broker.oslo.reactor.bundle import FRAMES_MAX, HEAD_BYTES_MAX, LENGTH_MAX, frames_of, head, pack, unpack
from tests.tables import for_each

FRAME = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 70_000).map(bytes),
)
FRAMES = st.lists(FRAME, min_size=1, max_size=6)


def said(bundle: bytes) -> list[bytes] | None:
    """Its frames; None when it is refused, in the one way there is."""
    try:
        frames = unpack(bundle)
    except ValueError as error:
        text = str(error)
        assert "saw " in text
        assert "expected " in text
        assert len(text) < 200
        return None
    assert 1 <= len(frames) <= FRAMES_MAX
    return frames


@given(FRAMES)
def test_frames_come_back(frames):
    bundle = pack(frames)
    assert unpack(bundle) == frames_of([bundle]) == frames
    assert len(bundle) == sum(map(len, frames)) + 1 + 4 * len(frames)
    assert unpack(pack(tuple(frames))) == frames


@given(st.integers(1, FRAMES_MAX))
def test_any_number_of_frames_comes_back(count):
    frames = [b"%d" % number for number in range(count)]
    bundle = pack(frames)
    assert unpack(bundle) == frames
    assert len(head(frames)) <= HEAD_BYTES_MAX


@given(FRAMES, st.binary(min_size=1, max_size=9))
def test_one_that_is_cut_or_too_long_is_none(frames, more):
    bundle = pack(frames)
    for size in {*range(min(len(bundle), 300)), len(bundle) - 1}:
        assert said(bundle[:size]) is None
    assert said(bundle + more) is None


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=4))
def test_every_flipped_bit_is_seen_or_changes_a_frame(frames):
    bundle = pack(frames)
    for place in range(8 * len(bundle)):
        flipped = bytearray(bundle)
        flipped[place // 8] ^= 1 << place % 8
        assert said(bytes(flipped)) != frames


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=60).map(lambda data: b"\2" + bytes(8) + data)))
def test_any_bytes_are_the_bundle_of_what_they_say_or_none(data):
    frames = said(data)
    if frames is not None:
        assert pack(frames) == data


class Large(bytes):
    """Says that it is longer than any frame, without being so."""

    def __len__(self) -> int:
        return LENGTH_MAX + 1


@for_each(
    ("frames", "why"),
    [
        ([], "saw 0 frames, expected 1 to 64"),
        ([b""] * 65, "saw 65 frames, expected 1 to 64"),
        ([b"", Large()], "saw a frame of 4294967296 bytes, expected 4294967295 at most"),
    ],
)
def test_what_cannot_be_told_is_refused(frames, why):
    for make in (head, pack):
        with pytest.raises(ValueError, match=f"^a bundle: {why}$"):
            make(frames)


def test_envelopes_and_several_frames_are_none():
    good = pack([b"a", b"b"])
    for parts in ([encode(Kind.PULSE)], [encode(Kind.CALL, "x", "t")], [b"HGD\1\1"], [], [good, good]):
        with pytest.raises(ValueError, match=r"saw .*, expected"):
            frames_of(parts)
