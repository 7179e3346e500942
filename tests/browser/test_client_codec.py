"""The codecs of client.js in node, against the bytes that ``broker.wire`` makes, and its tables against ours."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import gateway
from broker.cli.tree import expand_hosts
from broker.rfc6455 import reconnects
from broker.wire import message as wire
from broker.wire.framing import Splitter, frame
from broker.wire.message import Message
from broker.wire.payload import encode_json, encode_text
from gateway import closes
from gateway.codecs import jsonview
from gateway.web.answers import form_of
from tests import vectors

NO_RANKS = (wire.NODEID_UPSTREAM, 1 << 32, -1, 1.5, "1")
FOLDER = Path(gateway.__file__).parent / "dashboard"


@pytest.fixture(scope="module")
def node():
    found = shutil.which("node")
    if found is None:
        pytest.skip("optional: node is not installed; the same code runs in the tests with Chromium")
    return found


def run(node, *cases):
    """What client.js makes of each case; ``{"error": CLASS}`` where it throws."""
    done = subprocess.run(
        [node, str(Path(__file__).with_name("codec_check.mjs")), str(FOLDER)],
        input=json.dumps(cases).encode(),
        capture_output=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def told(message: Message) -> dict:
    """A message as ``codec_check.mjs`` prints it."""
    return {
        "type": message.type,
        "topic": message.topic or "",
        "flags": message.flags,
        "userid": message.userid,
        "rolemask": message.rolemask,
        "aux1": message.aux1,
        "aux2": message.aux2,
        "routes": [route.hex() for route in message.routes],
        "payload": None if message.payload is None else message.payload.hex(),
    }


def samples() -> list[Message]:
    """Messages of every type, with parts of every length form."""
    asked = wire.request(
        "attr.get", encode_json({"name": "size"}), nodeid=3, matchtag=7, userid=1001, rolemask=2
    )
    asked.push_route(b"\x01\xff")
    asked.push_route(b"0123456789abcdef")
    sized = [
        wire.request("s.m", b"x" * size, matchtag=size) for size in (0, 1, 253, 254, 255, 256, 65535, 70000)
    ]
    return [
        asked,
        *sized,
        wire.request("s." + "é" * 140, None, matchtag=2**32 - 1, flags=wire.STREAMING | wire.NORESPONSE),
        wire.response(asked, encode_text("no such thing"), errnum=2, userid=0, rolemask=1),
        wire.response(asked, None),
        wire.event(
            "job.event", encode_json({"a": [1, "é"]}), sequence=2**32 - 1, flags=wire.PRIVATE, userid=5
        ),
        wire.event("bare", None),
        wire.control(1, 0),
    ]


def test_what_the_broker_frames_is_read(node):
    messages = samples()
    found = run(node, *({"doing": "decode", "data": frame(each).hex()} for each in messages))
    assert found == [[told(each)] for each in messages]


def test_many_frames_of_both_byte_orders_in_one_message(node):
    messages = samples()
    data = b"".join(
        frame(each, (wire.MAGIC_DEPLOYED, wire.MAGIC_TEXT)[at % 2]) for at, each in enumerate(messages)
    )
    (found,) = run(node, {"doing": "decode", "data": data.hex()})
    assert found == [told(each) for each in messages]


def test_what_it_writes_is_byte_for_byte_the_same(node):
    messages = [each for each in samples() if each.type != wire.CONTROL]
    found = run(node, *({"doing": "again", "data": frame(each).hex()} for each in messages))
    assert found == [frame(each).hex() for each in messages]


def test_captured_messages_come_back_byte_for_byte(node):
    """Of real flux-core: requests, responses and events with topics; what has none the client never writes."""
    frames = [each.frame for each in vectors.local() if each.frame and len(each.frame) < 1 << 20]
    messages = [(data, message) for data in frames for message in Splitter().feed(data)]
    captured = [data for data, each in messages if each.topic and each.front and frame(each) == data]
    assert len(captured) > 50
    found = run(node, *({"doing": "again", "data": data.hex()} for data in captured))
    assert found == [data.hex() for data in captured]


def test_requests_and_answers(node):
    asked = wire.request("svc.method", b"{}\0", matchtag=9)
    asked.push_route(b"hop")
    found = run(
        node,
        {
            "doing": "request",
            "topic": "attr.get",
            "payload": {"name": "é"},
            "options": {"nodeid": 2, "matchtag": 5},
        },
        {"doing": "request", "topic": "attr.get", "payload": None, "options": {"flags": wire.STREAMING}},
        {"doing": "request", "topic": "log.append", "payload": "a text"},
        {"doing": "bytes", "topic": "raw.put", "payload": "00ff"},
        {"doing": "answer", "data": frame(asked).hex(), "payload": {"x": 1}, "errnum": 0},
        {"doing": "answer", "data": frame(asked).hex(), "payload": "no", "errnum": 1},
        {"doing": "request", "topic": "a.b", "payload": [1]},
        *({"doing": "request", "topic": "a.b", "options": {"nodeid": nodeid}} for nodeid in NO_RANKS),
    )
    assert found == [
        frame(wire.request("attr.get", encode_json({"name": "é"}), nodeid=2, matchtag=5)).hex(),
        frame(wire.request("attr.get", None, flags=wire.STREAMING)).hex(),
        frame(wire.request("log.append", encode_text("a text"))).hex(),
        frame(wire.request("raw.put", b"\0\xff")).hex(),
        frame(wire.response(asked, encode_json({"x": 1}))).hex(),
        frame(wire.response(asked, encode_text("no"), errnum=1)).hex(),
        {"error": "TypeError"},
        *({"error": "RangeError"} for _ in NO_RANKS),
    ]


EPROTO = {"error": "FluxError", "errno": 71}


def test_what_cannot_be_sent_fails_that_call_in_both_subprotocols_alike(node):
    bad = [
        "halfText",
        "nulText",
        "half",
        "halfKey",
        "lowFirst",
        "date",
        "invalidDate",
        "asText",
        "asList",
        "asNothing",
    ]
    bad += ["boxed", "deep", "tooDeepToWrite", "circular", "big", "throws"]
    asked = [{"payload": each} for each in bad]
    asked += [{"topic": each} for each in ("a\0b", "\ud83d", "a.\ud83d", "\0")]
    asked += [{"payload": each} for each in ("deepest", "pair", "shape")]
    codecs = {"wire": "object", "jsonview": "string"}
    found = run(
        node,
        *({"doing": "send", "codec": codec, **each} for codec in codecs for each in asked),
        {"doing": "frame", "payload": "shape"},
        *({"doing": "request", "topic": topic} for topic in (5, None, ["a"])),
    )
    for sent in codecs.values():
        assert found[: len(asked)] == [EPROTO] * (len(asked) - 3) + [sent] * 3, sent
        del found[: len(asked)]
    assert found[0]["payload"] == {"a": 1}
    assert found[1:] == [{"error": "TypeError"}] * 3


def test_whatever_a_handler_throws_is_answered(node):
    asked = wire.request("svc.method", b"{}\0", matchtag=9)
    (found,) = run(node, {"doing": "thrown", "data": frame(asked).hex()})
    assert [errnum for errnum, _size, _text in found] == [1, *[5] * (len(found) - 1)]
    assert found[0][2] == "no \ufffd"
    assert all(0 < size <= 8192 for _errnum, size, _text in found)


SHAPES = [
    b'{"a":1}',
    b'{ "a" : 1 } ',
    b'{"a":"\\ud83d"}',
    b'{"a":"\\ud83d\\ude00"}',
    b'{"a":"\\uD83D\\u0041"}',
    b'{"a":"\\\\ud83d"}',
    b'{"a":"\\\\\\ud83d"}',
    b'{"\\udc00":1}',
    b'{"a":01}',
    b'{"a":1e999}',
    b'{"a":NaN}',
    b'{"a":1,"a":2}',
    b'{"a":"\t"}',
    b'{"a":"\xff"}',
    b'{"a":"\xed\xa0\x80"}',
    b'{"a":1}x',
    b"{",
    b"[1]",
    b'\xef\xbb\xbf{"a":1}',
    b'{"a":' * 512 + b"1" + b"}" * 512,
    b'{"a":' * 513 + b"1" + b"}" * 513,
    b'{"a":"' + b"[{" * 600 + b'"}',
    b'{"a":"\\"' + b"[{" * 600 + b'"}',
]
"""Texts that one reader or another takes for a JSON object."""


def test_a_payload_has_the_same_shape_for_everybody(node):
    """The gateway's JSON, and so HTTP and server-sent events, and what client.js makes of the bytes themselves."""
    found = run(node, *({"doing": "value", "data": (each + b"\0").hex()} for each in SHAPES))
    kinds = {dict: "payload", str: "text"}
    for text, value in zip(SHAPES, found, strict=True):
        (form,) = form_of(text + b"\0")
        told = json.loads(jsonview.encode(wire.event("t", text + b"\0")))
        shape = (
            "data"
            if isinstance(value, dict) and "0" in value and len(value) == len(text) + 1
            else kinds[type(value)]
        )
        assert form in told
        assert shape == form, text[:40]


def test_what_is_no_message_is_refused(node):
    good = frame(wire.request("attr.get", b"{}\0"))
    bad = [
        good[:-1],
        good[:7],
        b"\0" + good[1:],
        good + b"\x12",
        good[:-20] + b"\0" + good[-19:],
        good[:8] + b"\xfe" + good[9:],
    ]
    found = run(node, *({"doing": "decode", "data": data.hex()} for data in bad))
    assert found == [{"error": "DecodeError"}] * len(bad)


def test_the_json_view(node):
    asked = wire.request(
        "attr.get", encode_json({"name": "size"}), nodeid=3, matchtag=7, flags=wire.STREAMING
    )
    event = wire.event("job.end", encode_text("done"), sequence=4, flags=wire.PRIVATE)
    raw = wire.event("raw", b"\xff\x00\x01", sequence=5)
    found = run(
        node,
        *({"doing": "view", "data": frame(each).hex()} for each in (asked, event, raw)),
        {
            "doing": "unview",
            "object": {"type": "event", "topic": "t", "sequence": 9, "payload": [1, 2], "flags": ["private"]},
        },
        {
            "doing": "unview",
            "object": {"type": "response", "topic": "t", "matchtag": 3, "errnum": 2, "error": "gone"},
        },
        {
            "doing": "unview",
            "object": {"type": "request", "topic": "t", "data": "AP8=", "routes": ["0a"], "userid": 7},
        },
        {"doing": "unview", "object": {"type": "welcome"}},
    )
    assert found[0] == [
        {
            "type": "request",
            "topic": "attr.get",
            "matchtag": 7,
            "nodeid": 3,
            "flags": ["streaming"],
            "payload": {"name": "size"},
        }
    ]
    assert found[1] == [{"type": "event", "topic": "job.end", "flags": ["private"], "text": "done"}]
    assert found[2] == [{"type": "event", "topic": "raw", "data": "/wAB"}]
    assert (found[3]["aux1"], found[3]["flags"], found[3]["payload"]) == (9, wire.PRIVATE, b"[1,2]\0".hex())
    assert (found[4]["aux1"], found[4]["aux2"], found[4]["payload"]) == (2, 3, b"gone\0".hex())
    assert (found[5]["aux1"], found[5]["payload"], found[5]["routes"], found[5]["userid"]) == (
        0xFFFFFFFF,
        "00ff",
        ["0a"],
        7,
    )
    assert found[6] == {"error": "DecodeError"}


def test_its_close_codes_are_the_gateways(node):
    codes = [*closes.MEANINGS, 1000, 1001, 1005, 1006, 1011, 1012, 1013, 4010, 4499, 4599]
    found = run(node, *({"doing": "closes", "code": code} for code in codes))
    for code, meaning in zip(codes, found, strict=True):
        assert meaning["reconnect"] == reconnects(code), code
        if code in closes.MEANINGS:
            assert (meaning["name"], meaning["text"]) == closes.MEANINGS[code][:2]


def test_a_connection_that_is_lost_again_at_once_is_a_failed_attempt(node):
    (found,) = run(node, {"doing": "pauses", "lives": [0, 0, 500, 2000, 2001, 0]})
    assert found == [[100, 1], [200, 2], [400, 3], [800, 4], [100, 1], [200, 2]]


def test_host_lists(node):
    texts = ["vm", "node[0-3]", "node[08-11,2],login", "a[0-1]b[0-1]", ""]
    found = run(node, *({"doing": "hosts", "text": text} for text in texts))
    assert found == [expand_hosts(text) for text in texts]
