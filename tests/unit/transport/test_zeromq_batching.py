"""Batches: what goes together, what travels alone, what is refused."""

from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ProtocolError
from broker.transport.batching import ALONE_BYTES, form_size, form_type, is_framed, plain
from broker.transport.link import Options
from broker.transport.zeromq.codec import ZmtpCodec
from broker.wire.message import CONTROL, EVENT, MAGIC_TEXT, Message, control, event, request
from tests.tables import for_each
from tests.unit.transport.zmtp import encoded, opened


def test_a_large_payload_is_a_part_without_a_copy():
    large = request("t", b"x" * ALONE_BYTES)
    parts = plain(large)
    assert [bytes(part) for part in parts] == large.parts()
    assert isinstance(parts[2], memoryview)


@for_each("message", [event("e"), control(0), request("t", b"p" * 300), request("t", b"p" * 70_000)])
def test_forms_know_size_and_type(message):
    for form in (message.framed(), plain(message)):
        assert form_type(form) == message.type
        assert form_size(form) >= message.size - 40


def read(*messages: list[bytes], batch: bool = True) -> tuple[list[Message], ProtocolError | None]:
    """What these ZeroMQ messages say, and what ended them."""
    client, server = opened("null")
    codec = ZmtpCodec(server, Options(extra={"batch": batch}), 1 << 20)
    out = codec.feed(b"".join(encoded(client, parts) for parts in messages))
    return out, codec.failure


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
