"""Frames of the server: the three forms of a length, and what fits into a control frame."""

from gateway.websocket import frames
from tests.tables import for_each


@for_each(
    ("size", "head"),
    [
        (0, "8200"),
        (125, "827d"),
        (126, "827e007e"),
        (65535, "827effff"),
        (65536, "827f0000000000010000"),
        (2**33, "827f0000000200000000"),
    ],
)
def test_lengths_take_the_shortest_form(size, head):
    assert frames.head(frames.BINARY, size).hex() == head


def test_a_frame_is_its_head_and_its_payload():
    assert frames.frame(frames.TEXT, b"abc") == b"\x81\x03abc"


def test_pings_and_pongs():
    assert frames.ping() == b"\x89\x00"
    assert frames.pong(b"beat") == b"\x8a\x04beat"
    assert frames.pong(bytes(200))[:2] == b"\x8a\x7d"


@for_each("char", ["x", "é", "€", "𝄞"])
@for_each("lead", range(4))
def test_a_reason_is_cut_between_characters(char, lead):
    reason = "-" * lead + char * 150
    sent = frames.close(4002, reason)
    code, said = frames.close_meaning(sent[2:])
    assert code == 4002
    assert sent[1] == len(sent) - 2 <= 125
    assert reason.startswith(said)
    assert 123 - len(said.encode()) < len(char.encode()), "more would have fitted"


def test_close_without_a_code_is_empty():
    assert frames.close() == b"\x88\x00"
    assert frames.close_meaning(b"") == (1005, "")


def test_a_lone_surrogate_does_not_stop_a_close():
    assert frames.close(1000, "a\udc80b")[4:] == b"a?b"
