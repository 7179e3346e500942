"""Bodies that were compressed: read by everybody, bounded, refused when they are broken."""

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as some

from broker.oslo.bodies import WORTHWHILE_BYTES, BodyFormat, compressed, plain
from tests.tables import for_each

LONG = json.dumps({"ctxt": {}, "message": {"method": "m", "args": {"text": "word " * 4000}}}).encode()


@given(some.binary(max_size=3 * WORTHWHILE_BYTES))
def test_what_was_compressed_is_what_it_was(data):
    body = b'{"x": "' + data.hex().encode() + b'"}'
    assert plain(compressed(body, 1 << 20)) == body


def test_small_ones_and_such_as_are_too_large_anyway_stay_as_they_are():
    small = LONG[: WORTHWHILE_BYTES - 1]
    assert compressed(small, 1 << 20) is small
    assert compressed(LONG, len(LONG) - 1) is LONG
    assert len(compressed(LONG, len(LONG))) < len(LONG) / 5


def test_a_stream_may_not_become_more_than_the_limit():
    bomb = zlib.compress(b'{"x": "' + bytes(5_000_000))
    assert len(bomb) < 6_000
    with pytest.raises(ValueError, match="holds more than 1000000"):
        plain(bomb, 1_000_000)
    assert plain(zlib.compress(LONG), len(LONG)) == LONG
    with pytest.raises(ValueError, match="holds more than"):
        plain(zlib.compress(LONG), len(LONG) - 1)


@for_each(
    ("body", "why"),
    [
        (b"x", "cut"),
        (zlib.compress(LONG)[:-1], "cut"),
        (zlib.compress(LONG) + b"more", "something behind it"),
        (b"x\x9cnonsense", "cannot be read"),
    ],
)
def test_what_is_no_stream_is_refused(body, why):
    with pytest.raises(ValueError, match=why):
        plain(body)


def test_a_format_writes_one_and_both_are_read():
    quiet, brief = BodyFormat(), BodyFormat(compress=True)
    assert quiet.write(LONG) is LONG
    assert brief.write(LONG)[:1] == b"x"
    assert plain(brief.write(LONG)) == plain(LONG) == LONG
