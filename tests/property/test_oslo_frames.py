"""Any envelope comes back as it went; any damage to one is read or refused in one way; no filter begins another."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from broker.identity import Credentials
from broker.oslo import frames
from broker.oslo.frames import (
    HEAD_BYTES,
    Envelope,
    Malformed,
    decode,
    encode,
    fanout_filter,
    notify_filter,
    numbered,
    read_filter,
    stamped,
)
from broker.oslo.names import CHOSEN_MAX, NAME_BYTES_MAX

NAMES = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40),
    st.sampled_from(
        ("", "openstack", "compute", "compute.info", "node@lvm", "x" * NAME_BYTES_MAX, "é" * 127)
    ),
)
U8, U16, U32 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32))


@dataclass(frozen=True)
class Sent:
    """An envelope and its bytes."""

    envelope: Envelope
    frame: bytes


@st.composite
def sent(draw: st.DrawFn) -> Sent:
    envelope = Envelope(
        *(draw(each) for each in (U8, U8, U16, U32, U32, U32, U32, st.binary(min_size=16, max_size=16))),
        *(draw(NAMES) for _ in range(3)),
        tuple(draw(st.lists(NAMES, max_size=6))),
    )
    kind, flags, reason, ttl_ms, word, userid, rolemask, number, *names, listeners = envelope
    frame = encode(
        kind,
        *names,
        listeners,
        flags=flags,
        reason=reason,
        ttl_ms=ttl_ms,
        word=word,
        userid=userid,
        rolemask=rolemask,
        id=number,
    )
    return Sent(envelope, frame)


def said(frame: bytes) -> Envelope | None:
    """What a frame says; None when it is refused, in the one way there is."""
    try:
        return decode(frame)
    except Malformed as error:
        text = str(error)
    assert len(text) < 200
    return None


def in_order(envelope: Envelope) -> None:
    """What was read could have been sent."""
    names = (*envelope[8:11], *envelope.listeners)
    assert len(envelope.listeners) <= CHOSEN_MAX
    assert all("\0" not in name and len(name.encode()) <= NAME_BYTES_MAX for name in names)


@given(sent())
def test_an_envelope_comes_back_as_it_went(one):
    assert decode(one.frame) == one.envelope
    assert decode(one.frame) == one.envelope  # now from memory


@given(sent())
def test_every_truncation_is_read_or_refused(one):
    for size in range(len(one.frame)):
        envelope = said(one.frame[:size])
        assert (envelope is None) or size >= HEAD_BYTES
        if envelope is not None:
            in_order(envelope)


@given(sent(), st.data())
def test_every_flipped_bit_is_read_or_refused(one, data):
    places = (
        range(8 * len(one.frame))
        if len(one.frame) < 100
        else data.draw(st.lists(st.integers(0, 8 * len(one.frame) - 1)))
    )
    for place in places:
        flipped = bytearray(one.frame)
        flipped[place // 8] ^= 1 << place % 8
        envelope = said(bytes(flipped))
        if place < 32:
            assert envelope is None
        else:
            assert envelope != one.envelope
        if envelope is not None:
            in_order(envelope)


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(lambda data: b"HGO\x01" + data)))
def test_any_bytes_are_read_or_refused(data):
    envelope = said(data)
    if envelope is not None:
        in_order(envelope)


@given(st.lists(sent(), min_size=1, max_size=8), st.integers(1, 4))
def test_what_is_remembered_never_changes_what_is_read(many, room):
    frames._read.clear()
    before, frames._READ_MAX = frames._READ_MAX, room
    try:
        for one in many * 2:
            assert decode(one.frame) == one.envelope
            assert len(frames._read) <= room + 1
    finally:
        frames._READ_MAX = before


@given(sent(), U32, U32, U32)
def test_stamps_and_numbers_touch_only_their_fields(one, userid, rolemask, number):
    frame = stamped(one.frame, Credentials(userid, rolemask))
    assert decode(frame) == one.envelope._replace(userid=userid, rolemask=rolemask)
    assert decode(numbered(one.frame, number)) == one.envelope._replace(word=number)
    assert len(frame) == len(one.frame)


ADDRESSES = st.tuples(NAMES, NAMES)


@given(ADDRESSES, ADDRESSES)
def test_a_filter_begins_another_only_when_it_is_the_same(one, other):
    for make in (fanout_filter, notify_filter):
        assert make(*other).startswith(make(*one)) == (one == other)
        assert read_filter(make(*one)) == one
    assert not fanout_filter(*one).startswith(notify_filter(*other))
    assert not notify_filter(*one).startswith(fanout_filter(*other))
    assert not (b"?" + one[0].encode()).startswith((fanout_filter(*other), notify_filter(*other)))


@given(
    NAMES, st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=5)
)
def test_a_longer_topic_is_another_topic(topic, more):
    for make in (fanout_filter, notify_filter):
        assert not make("e", topic + more).startswith(make("e", topic))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_filter_or_none(data):
    names = read_filter(data)
    if names is not None:
        assert data in (fanout_filter(*names), notify_filter(*names))
