import errno
import math
from typing import Any

import pytest

from broker.errors import ProtocolError
from broker.wire.payload import any_text, decode_json, encode_json, encode_text, is_json_object
from tests.tables import for_each


def nested(depth: int) -> bytes:
    return b'{"a":' + b"[" * depth + b"]" * depth + b"}"


@for_each(
    ("value", "payload"),
    [
        ({}, b"{}\0"),
        ({"name": "rank"}, b'{"name":"rank"}\0'),
        ({"a": [1, 2.5, None, True]}, b'{"a":[1,2.5,null,true]}\0'),
        ({"é": "\u2028 / ☃ \U0001f30a"}, '{"é":"\u2028 / ☃ \U0001f30a"}\0'.encode()),
        ({"nul": "a\0b"}, b'{"nul":"a\\u0000b"}\0'),
        ({"quote": '"\\\n'}, b'{"quote":"\\"\\\\\\n"}\0'),
        ({"big": 2**63, "low": -(2**70)}, b'{"big":9223372036854775808,"low":-1180591620717411303424}\0'),
    ],
)
def test_json_both_ways(value: dict, payload: bytes) -> None:
    assert encode_json(value) == payload
    assert decode_json(payload) == value
    assert is_json_object(payload)


@for_each(
    ("payload", "value"),
    [
        (b'{"a":1}\0', {"a": 1}),
        (b' \t\r\n{ "a" : 1 } \0', {"a": 1}),
        (b'{"a":1}\0\0', {"a": 1}),
        (b'{"a":1}\0 then anything \xff', {"a": 1}),
        (b'{"a":1,"a":2}\0', {"a": 2}),
        (b'{"a":"\\ud83c\\udf0a"}\0', {"a": "\U0001f30a"}),
        (nested(100) + b"\0", None),
    ],
)
def test_json_that_is_read_though_we_write_it_otherwise(payload: bytes, value: dict | None) -> None:
    read = decode_json(payload)
    assert value is None or read == value


@for_each(
    "payload",
    [
        None,
        b"",
        b"\0",
        b'{"a":1}',
        b"\0{}",
        b"[1]\0",
        b"7\0",
        b"null\0",
        b'"text"\0',
        b"{\0",
        b'{"a":1} x\0',
        b"{'a':1}\0",
        b'{"a":NaN}\0',
        b'{"a":Infinity}\0',
        b'{"a":1e999}\0',
        b'{"a":01}\0',
        b'{"a":1,}\0',
        b"{1:2}\0",
        b'{"a":"\x01"}\0',
        b'{"a":"\xff"}\0',
        b'{"\xff":1}\0',
        b'{"a":"\xed\xa0\x80"}\0',
        b'{"a":"\\ud800"}\0',
        b"\xef\xbb\xbf{}\0",
        b'{"a":' + b"9" * 5000 + b"}\0",
        nested(100_000) + b"\0",
        b'{"a":' * 100_000 + b"\0",
        b"\x00" * 100,
    ],
    ids=lambda payload: repr(payload)[:32],
)
def test_no_json_object_is_eproto(payload: bytes | None) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_json(payload)
    assert caught.value.errno == errno.EPROTO


@for_each("value", [[1], "text", 7, None], ids=repr)
def test_only_objects_are_written(value: Any) -> None:
    with pytest.raises(ProtocolError, match="object"):
        encode_json(value)


def test_half_of_a_character_is_called_so() -> None:
    """Readers of JSON take it for the end of the text."""
    with pytest.raises(ProtocolError, match=r"not a JSON object: half of a character"):
        decode_json(b'{"text":"\\ud83d"}\0')


def test_what_json_cannot_hold() -> None:
    loop: dict = {}
    loop["self"] = loop
    for value in ({"a": "\ud800"}, {"\udcff": 1}, loop):
        with pytest.raises(ProtocolError, match="cannot be written as JSON") as caught:
            encode_json(value)
        assert caught.value.errno == errno.EPROTO
    with pytest.raises(TypeError):
        encode_json({"a": object()})


def test_a_float_that_is_no_number_becomes_null() -> None:
    assert encode_json({"a": math.nan, "b": -math.inf}) == b'{"a":null,"b":null}\0'


@for_each(
    "payload",
    [
        b"",
        b"{}",
        b"{}\0\0",
        b"{}\0x",
        b"[1]\0",
        b" {}\0",
        b'{"a":"\xff"}\0',
        b"{\0",
        nested(100_000) + b"\0",
        b"text\0",
    ],
    ids=lambda payload: repr(payload)[:32],
)
def test_what_is_not_taken_for_a_json_payload(payload: bytes) -> None:
    assert not is_json_object(payload)


@for_each("text", ["", "plain", "été ☃", "bytes \udcff kept"])
def test_text_both_ways(text: str) -> None:
    assert any_text(encode_text(text)) == text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def test_text_forms() -> None:
    assert encode_text("No service matching é") == b"No service matching \xc3\xa9\0"
    assert encode_text("\udcff") == b"\xff\0"
    assert any_text(b"text\0ignored") == "text"


@for_each("text", ["a\0b", "\ud800"])
def test_text_that_no_payload_holds(text: str) -> None:
    with pytest.raises(ProtocolError):
        encode_text(text)


@for_each(
    ("payload", "text"),
    [(None, ""), (b"", ""), (b"x\0", "x"), (b"x", "x"), (b"\xff\0", "\ufffd"), (b"a\0b\0", "a")],
)
def test_text_for_a_person(payload: bytes | None, text: str) -> None:
    assert any_text(payload) == text
