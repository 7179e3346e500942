"""Log entries and the ring."""

from hypothesis import given
from hypothesis import strategies as st

from broker.services.log import Ring
from broker.wire.log_entry import APP_CHARS_MAX, LINE_MAX_BYTES, compose, parse
from tests.tables import for_each


@for_each(("pri", "severity"), [(24, 3), (56, 7), (3, 0), (63, 7), (30, 3), (0, 0)])
def test_severity_is_what_deployed_software_means_by_it(pri, severity):
    entry = parse(f"<{pri}>1 2026-11-20T15:33:26.814201Z 3 logger 4142 - - hi".encode())
    assert entry is not None
    assert (entry.severity, entry.host) == (severity, "3")


@for_each("payload", [None, b"", b"junk", b"<24> x", b"<24>2 t h a", b"<>1 t h a", b"<1234>1 t h ", b"\0"])
def test_other_text_is_no_entry(payload):
    assert parse(payload) is None


def test_an_entry_ends_at_its_nul_and_at_the_longest_length():
    head = b"<24>1 t 0 app 1 - - "
    assert parse(head + b"one\0two").line == head + b"one"
    assert len(parse(head + b"x" * 9000).line) == LINE_MAX_BYTES


@given(st.integers(0, 7), st.text(max_size=50))
def test_what_is_composed_parses_and_is_one_line(severity, words):
    entry = compose(severity, 3, "broker", 77, words, 1_795_193_573.75)
    again = parse(entry.line)
    assert (again.severity, again.host, again.line) == (severity, "3", entry.line)
    assert b"\0" not in entry.line
    assert b"\n" not in entry.line


def test_composed_entries_look_like_deployed_ones():
    entry = compose(3, 0, "broker", 77, "two\nlines", 1_795_193_573.75)
    assert entry.line == b"<24>1 2026-11-20T16:52:53.750000Z 0 broker 77 - - two lines"


def test_no_text_and_no_name_of_a_program_breaks_an_entry():
    assert compose(6, 0, "my app\n", 1, "half a pair: \ud800", 0.0).line.endswith(
        b" 0 myapp 1 - - half a pair: ?"
    )
    assert compose(6, 0, " ", 1, "x", 0.0).line.endswith(b"Z 0 - 1 - - x")
    assert f" 0 {'a' * APP_CHARS_MAX} 1 ".encode() in compose(6, 0, "a" * 99, 1, "x", 0.0).line


def test_a_full_ring_loses_its_oldest_and_goes_on_counting():
    ring = Ring(2)
    for number in range(4):
        ring.append(compose(6, 0, "app", 1, str(number), 0.0))
    assert [line[-1:] for line in ring] == [b"2", b"3"]
    assert (len(ring), ring.count) == (2, 4)
    ring.clear()
    assert (len(ring), ring.count) == (0, 4)


def test_a_ring_of_none_keeps_none():
    ring = Ring(0)
    ring.append(compose(6, 0, "app", 1, "x", 0.0))
    assert (len(ring), ring.count) == (0, 1)
