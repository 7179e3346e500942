"""ZMTP on the loop: whatever is said arrives whole and in order, wherever the bytes are cut, and nothing else does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.transport.zeromq.connection import State
from broker.transport.zeromq.frames import COMMAND
from tests.unit.transport.zmtp import CAP, PAIRS, encoded, frame, opened

PARTS = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda byte, size: bytes([byte]) * size,
        st.integers(0, 255),
        st.sampled_from((0, 221, 222, 255, 256, 70_000)),
    ),
)
MESSAGES = st.lists(st.lists(PARTS, min_size=1, max_size=5), max_size=6)
CUTS = st.lists(st.integers(1, 300), max_size=40)
KINDS = st.sampled_from(sorted(PAIRS))


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """``data`` in pieces of these sizes, and what is left."""
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


def plain(messages):
    return [[bytes(part) for part in parts] for parts in messages]


@given(KINDS, MESSAGES, CUTS)
def test_any_cut_of_a_connection_means_the_same(kind, messages, cuts):
    """From the first byte of the greeting on."""
    client, server = PAIRS[kind]()
    for size in cuts * 20:  # the handshake, in pieces; each answer in pieces, too
        if server.state is State.ASKED:
            server.grant()
        for near, far in ((client, server), (server, client)):
            for piece in cut(near.take_owed(), [size] * 9):
                if far.state is not State.ASKED:
                    far.feed(piece)
                elif piece:
                    far.grant()
                    far.limit(CAP)
                    far.feed(piece)
    while client.state is not State.OPEN or client.owed or server.owed:
        server.feed(client.take_owed())
        if server.state is State.ASKED:
            server.grant()
        client.feed(server.take_owed())
    client.limit(CAP)
    server.limit(CAP)
    for near, far in ((client, server), (server, client)):
        data, heard = b"".join(encoded(near, parts) for parts in messages), []
        for piece in cut(data, cuts):
            heard += far.feed(piece)
        assert far.failure is None
        assert plain(heard) == messages
        assert far.pending_bytes == 0


@given(MESSAGES.filter(bool), st.data())
def test_a_changed_byte_ends_a_sealed_connection_where_it_is(messages, data):
    """What came before it counts, nothing behind it does, and no byte is ever read wrongly."""
    client, server = opened("curve")
    boxes = [encoded(client, parts) for parts in messages]
    stream = bytearray(b"".join(boxes))
    at = data.draw(st.integers(0, len(stream) - 1))
    stream[at] ^= 1 << data.draw(st.integers(0, 7))
    heard = plain(server.feed(bytes(stream)))
    hit, end = 0, 0
    while end + len(boxes[hit]) <= at:
        end += len(boxes[hit])
        hit += 1
    assert heard[:hit] == messages[:hit]
    if len(heard) > hit:  # flags outside the box are nobody's (see ``Boxes.open``)
        assert plain(heard) == messages
    else:
        assert server.failure is not None or server.pending_bytes


@given(MESSAGES.filter(lambda messages: len(messages) > 1), st.data())
def test_boxes_in_another_order_or_again_end_it(messages, data):
    client, server = opened("curve")
    boxes = [encoded(client, parts) for parts in messages]
    first = data.draw(st.integers(0, len(boxes) - 1))
    again = data.draw(st.integers(0, len(boxes) - 1))
    if again == first + 1:
        again = first
    heard = plain(server.feed(b"".join(boxes[: first + 1])))
    assert heard == messages[: first + 1]
    skipped = again > first + 1
    later = plain(server.feed(boxes[again]))
    # a box that was left out is not noticed by numbers that only rise: TCP brings all or none
    assert later == ([messages[again]] if skipped else [])
    assert (server.failure is None) is skipped


@pytest.mark.parametrize("kind", sorted(PAIRS))
def test_pings_between_messages_change_nothing(kind):
    client, server = opened(kind)
    ping = b"\x04PING\x00\x00"
    stream = b"".join(
        frame(client, COMMAND, ping) + encoded(client, [b"a", bytes([number])]) for number in range(20)
    )
    for at in range(0, len(stream), 7):
        heard = server.feed(stream[at : at + 7])
        assert all(message[0] == b"a" for message in heard)
    assert server.failure is None
