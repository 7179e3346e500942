"""Batches: what goes together, what travels alone, what is refused."""

from collections.abc import Sequence

import zmq
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import DecodeError, ProtocolError
from broker.transport.batching import (
    ALONE_BYTES,
    BATCH_BYTES,
    BATCH_MSGS,
    Form,
    data_of,
    form_of,
    form_size,
    form_type,
    group_end,
    is_framed,
    plain,
)
from broker.transport.link import Options
from broker.transport.zeromq.forms import MessageForms
from broker.wire.decoding import from_parts
from broker.wire.message import CONTROL, EVENT, MAGIC_TEXT, Message, control, event, request
from tests.tables import for_each


def groups(forms: list[Form]) -> list[list[Form]]:
    out, start = [], 0
    while start < len(forms):
        stop = group_end(forms, start)
        out.append(forms[start:stop])
        start = stop
    return out


@given(st.lists(st.sampled_from([0, 10, 4000, ALONE_BYTES - 5, ALONE_BYTES + 1]), max_size=60))
def test_groups_keep_order_and_bounds(sizes):
    forms = [form_of(event("e", b"x" * size)) for size in sizes]
    made = groups(forms)
    assert [form for group in made for form in group] == forms
    for group in made:
        if isinstance(group[0], bytes):
            assert all(isinstance(form, bytes) for form in group)
            assert sum(map(form_size, group)) <= BATCH_BYTES
        else:
            assert len(group) == 1


def test_a_batch_ends_at_its_number():
    assert [len(group) for group in groups([b"f"] * (2 * BATCH_MSGS + 5))] == [BATCH_MSGS, BATCH_MSGS, 5]


def test_large_messages_travel_alone_without_a_copy():
    small, large = request("t", b"x" * (ALONE_BYTES - 5)), request("t", b"x" * ALONE_BYTES)
    assert isinstance(form_of(small), bytes)
    parts = form_of(large)
    assert isinstance(parts, list)
    assert [bytes(part) for part in parts] == large.parts()
    assert isinstance(parts[2], memoryview)


@for_each("message", [event("e"), control(0), request("t", b"p" * 300), request("t", b"p" * 70_000)])
def test_forms_know_size_and_type(message):
    for form in (form_of(message), plain(message)):
        assert form_type(form) == message.type
        assert form_size(form) >= message.size - 40


def read(*messages: list[bytes], batch: bool = True) -> tuple[list[Message], ProtocolError | None]:
    """What these ZeroMQ messages say, and what ended them."""
    forms, out = MessageForms(Options(extra={"batch": batch}), 1 << 20), list[Message]()
    try:
        for parts in messages:
            forms.decode_into(out, parts)
    except ProtocolError as failure:
        return out, failure
    return out, None


def test_only_a_frame_in_one_part_is_a_batch():
    assert is_framed(event("e").framed())
    assert is_framed(MAGIC_TEXT + event("e").framed()[4:])
    assert not is_framed(control(0).proto)
    assert not is_framed(b"")
    assert read(event("e").parts()) == ([event("e")], None)
    _out, failure = read([event("e").framed(), b""])
    assert failure is not None, "two parts are no batch"
    assert "not agreed" in str(read([event("e").framed()], batch=False)[1])


def test_a_batch_gives_the_messages():
    messages = [event("e.1"), request("t", b"p" * 3000), control(0)]
    out, failure = read([b"".join(message.framed() for message in messages)])
    assert (out, failure) == (messages, None)
    assert [message.type for message in out] == [EVENT, 1, CONTROL]


CUTS = st.lists(st.integers(4, 90_000), max_size=9)  # the first one shows the magic


@given(CUTS, st.lists(st.sampled_from([0, 300, 70_000]), min_size=1, max_size=4))
def test_a_message_may_go_on_in_the_next_batch(cuts, sizes):
    """Wherever it is cut, even within its head; what follows is no batch of its own."""
    messages = [request("t", b"p" * size) for size in sizes]
    stream, pieces = b"".join(message.framed() for message in messages), []
    for cut in cuts:
        pieces.append([stream[:cut]])
        stream = stream[cut:]
    assert read(*[each for each in [*pieces, [stream]] if each[0]]) == (messages, None)


def test_nothing_comes_between_the_pieces_of_a_message():
    large = request("t", b"p" * 70_000).framed()
    out, failure = read([event("e").framed() + large[:50_000]], event("between").parts(), [large[50_000:]])
    assert out == [event("e")]
    assert "rest of a framed one" in str(failure)


@for_each(
    "tail",
    [
        b"rubbish, longer than a header",
        b"\x12\x00\xee\xff\x00\x00\x00\x00",
        b"\x12\x00\xee\xff\xff\xff\xff\xff",
    ],
)
def test_a_bad_frame_comes_after_the_good_ones(tail):
    out, failure = read([event("good").framed() + tail])
    assert out == [event("good")]
    assert failure is not None


@for_each("flags", range(16))
@for_each("large", range(4))
def test_a_large_part_is_the_same_message_wherever_it_stands(flags: int, large: int) -> None:
    """The one before the last is not copied, be it a payload, as in all messages of good will, or not."""
    parts = [b"route", b"", b"topic", b"payload", bytes((0x8E, 1, 2, flags)) + bytes(16)]
    parts[large] = parts[large] * 20_000 if parts[large] else b"r" * 100_000
    for count in range(2, 6):
        some = parts[-count:]
        got = data_of([zmq.Frame(part) for part in some])
        assert got == some
        assert [type(part) for part in got[:-2] + got[-1:]] == [bytes] * (count - 1)
        assert outcome(got) == outcome(some)


def outcome(parts: Sequence[bytes | memoryview]) -> list[bytes] | str:
    try:
        return list(from_parts(parts).parts())
    except DecodeError as error:
        return str(error)
