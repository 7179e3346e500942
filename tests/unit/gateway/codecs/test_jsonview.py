"""``flux.v1.json``: what each field means, in both directions, and what is refused with which words."""

import base64
import json
import re

import pytest

from broker.errors import DecodeError
from broker.wire import message as wire
from broker.wire.message import Message, control, event, request, response
from broker.wire.payload import encode_json, encode_text
from gateway.codecs import jsonview, new_codec
from gateway.events.run import Run
from tests.tables import for_each
from tests.unit.gateway.codecs.test_binary import payload_of


def seen(message: Message) -> dict:
    return json.loads(jsonview.encode(message))


def made(obj: object) -> Message:
    (message,) = jsonview.decode(json.dumps(obj, separators=(",", ":")).encode())
    assert isinstance(message, Message)
    return message


def routed(message: Message, *hops: bytes) -> Message:
    for hop in hops:
        message.push_route(hop)
    return message


EXAMPLES = [
    (
        request("attr.get", encode_json({"name": "rank"}), matchtag=1, nodeid=0),
        {"type": "request", "topic": "attr.get", "matchtag": 1, "nodeid": 0, "payload": {"name": "rank"}},
    ),
    (
        request("log.dmesg", None, matchtag=2, flags=wire.STREAMING | wire.NORESPONSE),
        {"type": "request", "topic": "log.dmesg", "matchtag": 2, "flags": ["noresponse", "streaming"]},
    ),
    (
        request("up", None, nodeid=3, flags=wire.UPSTREAM | wire.USER1),
        {"type": "request", "topic": "up", "matchtag": 0, "nodeid": 3, "flags": ["upstream", "user1"]},
    ),
    (
        routed(
            request("svc.do", encode_text("hello"), matchtag=9, userid=1000, rolemask=2), b"\xabhop", b"top"
        ),
        {
            "type": "request",
            "topic": "svc.do",
            "matchtag": 9,
            "userid": 1000,
            "rolemask": 2,
            "routes": [b"top".hex(), b"\xabhop".hex()],
            "text": "hello",
        },
    ),
    (
        response(request("attr.get", matchtag=1), encode_json({"value": "0"}), userid=0, rolemask=1),
        {
            "type": "response",
            "topic": "attr.get",
            "matchtag": 1,
            "userid": 0,
            "rolemask": 1,
            "payload": {"value": "0"},
        },
    ),
    (
        response(request("no.such", matchtag=4), encode_text("No service"), errnum=38),
        {"type": "response", "topic": "no.such", "matchtag": 4, "errnum": 38, "error": "No service"},
    ),
    (
        response(request("done", matchtag=4, flags=wire.STREAMING), errnum=61),
        {"type": "response", "topic": "done", "matchtag": 4, "errnum": 61, "flags": ["streaming"]},
    ),
    (
        event("job.state", b"\xff\x00", sequence=77, flags=wire.PRIVATE, userid=5, rolemask=2),
        {
            "type": "event",
            "topic": "job.state",
            "sequence": 77,
            "flags": ["private"],
            "userid": 5,
            "rolemask": 2,
            "data": base64.b64encode(b"\xff\x00").decode(),
        },
    ),
    (control(1, 2), {"type": "control", "kind": 1, "status": 2}),
]


@for_each(("message", "obj"), EXAMPLES, ids=lambda each: getattr(each, "topic", ""))
def test_both_ways(message, obj):
    assert seen(message) == obj
    assert made(obj) == message


@for_each(
    ("payload", "form"),
    [
        (b"{}\0", {"payload": {}}),
        (b'{"a":[1.50,"\xc3\xa4"]}\0', {"payload": {"a": [1.5, "ä"]}}),
        (b'{ "a" : 1 }\0', {"payload": {"a": 1}}),
        (b"{}", {"data": "e30="}),
        (b"{}\0\0", {"data": "e30AAA=="}),
        (b"[1]\0", {"text": "[1]"}),
        (b'{"a":\0', {"text": '{"a":'}),
        (b'{"a":"\xff"}\0', {"data": base64.b64encode(b'{"a":"\xff"}\0').decode()}),
        (b"\0", {"text": ""}),
        (b"", {"data": ""}),
        (b"plain", {"data": "cGxhaW4="}),
        (b"a\0b\0", {"data": "YQBiAA=="}),
        (b'"quoted"\n\x01\0', {"text": '"quoted"\n\x01'}),
    ],
)
def test_the_form_of_a_payload_follows_from_its_bytes_and_leads_back(payload, form):
    message = event("t", payload, sequence=1)
    obj = seen(message)
    assert {key: obj[key] for key in ("payload", "text", "data") if key in obj} == form
    (again,) = jsonview.decode(jsonview.encode(message))
    assert again == message


def test_embedded_json_keeps_its_very_bytes():
    payload = b'{"n":1.0000000000000000000001, "n": 12345678901234567890123}\0'
    text = jsonview.encode(event("t", payload))
    assert payload[:-1] in text
    assert jsonview.decode(text) == [event("t", payload)]


def test_a_topic_that_is_no_utf8():
    message = request(b"\xff.get", None, matchtag=3)
    assert seen(message)["topic_data"] == base64.b64encode(b"\xff.get").decode()
    assert made(seen(message)) == message


def test_an_event_without_delimiter_gains_one():
    bare = event("t", b"x")
    bare.front = b""
    bare.set_flags(bare.flags & ~wire.ROUTE)
    assert jsonview.decode(jsonview.encode(bare)) == [event("t", b"x")]


def test_error_with_a_payload_that_is_json_is_payload():
    failed = response(request("t", matchtag=1), encode_json({"why": 1}), errnum=5)
    assert seen(failed)["payload"] == {"why": 1}
    assert made(seen(failed)) == failed


def test_arrays_and_control_objects_keep_their_order():
    items = new_codec("flux.v1.json").decode(
        b'[{"type":"ping"},{"topic":"a","type":"event"},{"type":"refresh","token":"x"}]', text=True
    )
    assert items == [{"type": "ping"}, event("a"), {"type": "refresh", "token": "x"}]


REQUEST = {"type": "request", "topic": "a.b"}


@for_each(
    ("obj", "said"),
    [
        ([], "empty array"),
        (3, "object"),
        ({"topic": "a.b"}, "type"),
        ({"type": "greeting"}, "greeting"),
        ({"type": "request"}, '"topic" is missing'),
        (REQUEST | {"topic": None}, "topic"),
        (REQUEST | {"topic": "a\0b"}, '"topic" holds a NUL'),
        (REQUEST | {"topic_data": "YQ=="}, 'either "topic" or "topic_data"'),
        (REQUEST | {"matchTag": 1}, "matchTag"),
        (REQUEST | {"matchtag": -1}, r"\$.matchtag"),
        (REQUEST | {"matchtag": 2**32}, r"\$.matchtag"),
        (REQUEST | {"matchtag": 1.5}, r"\$.matchtag"),
        (REQUEST | {"matchtag": "1"}, r"\$.matchtag"),
        (REQUEST | {"nodeid": 2**32}, r"\$.nodeid"),
        (REQUEST | {"nodeid": 2**32 - 2}, "nodeid 4294967294 is no rank"),
        (REQUEST | {"errnum": 1}, "errnum"),
        (REQUEST | {"flags": "streaming"}, r"\$.flags"),
        (REQUEST | {"flags": ["strange"]}, "strange"),
        (REQUEST | {"flags": ["route"]}, "route"),
        (REQUEST | {"routes": ["zz"]}, r"\$.routes"),
        (REQUEST | {"routes": ["abc"]}, r"\$.routes"),
        (REQUEST | {"routes": [""]}, r"\$.routes"),
        (REQUEST | {"routes": ["6100"]}, '"routes": a hop holds a NUL'),
        (REQUEST | {"payload": []}, '"payload" is a JSON object'),
        (REQUEST | {"payload": None}, '"payload" is a JSON object'),
        (REQUEST | {"payload": "text"}, '"payload" is a JSON object'),
        (REQUEST | {"payload": {}, "text": ""}, 'at most one of "payload"'),
        (REQUEST | {"text": "a", "data": "YQ=="}, 'at most one of "payload"'),
        (REQUEST | {"text": 3}, r"\$.text"),
        (REQUEST | {"text": "a\0"}, "NUL"),
        (REQUEST | {"data": "YQ"}, r"\$.data"),
        (REQUEST | {"data": "Y!=="}, r"\$.data"),
        (REQUEST | {"error": "x"}, "error"),
        ({"type": "response", "topic": "t", "error": "x"}, '"error" needs "errnum"'),
        ({"type": "response", "topic": "t", "errnum": 1, "error": "x", "text": "y"}, "at most one"),
        ({"type": "response", "topic": "t", "nodeid": 1}, "nodeid"),
        ({"type": "event", "topic": "t", "matchtag": 1}, "matchtag"),
        ([REQUEST, {"type": "event"}], '"topic" is missing'),
    ],
)
def test_what_is_refused_is_named(obj, said):
    with pytest.raises(DecodeError, match=said):
        jsonview.decode(json.dumps(obj).encode())


@for_each(
    "text",
    [
        b"",
        b"{",
        b'{"type":"event","topic":"\\ud800"}',
        b'{"type":"event","topic":"t","payload":{"a":"\xff"}}',
        b'{"type":"event","topic":"t","payload":{"a":01}}',
        b'{"type":"event","topic":"t","payload":{a:1}}',
        b'{"type":"event","topic":"t","payload":' + b"[" * 100_000,
        b'{"type":"event","topic":"t"} {}',
        b"\xff",
    ],
)
def test_text_that_is_no_json_is_refused(text):
    with pytest.raises(DecodeError):
        jsonview.decode(text)


def read(text: bytes) -> list:
    return new_codec("flux.v1.json").decode(text, text=True)


CALL = '{"type":"request","topic":"a.b","matchtag":7'
EMOJI = '{"text":"\\ud83d"}'


@for_each(
    ("text", "said"),
    [
        (f'{CALL},"payload":{EMOJI}}}', "half of a character"),
        (f'{{"payload":{EMOJI},"flags":["streaming"],"matchtag":7,"topic":"a.b","type":"request"}}', "half"),
        (f'{CALL},"payload":"2026-01-01"}}', '"payload" is a JSON object'),
        (f'{CALL},"payload":[1]}}', '"payload" is a JSON object'),
        (f'{CALL},"payload":{{"a":01}}}}', "no JSON"),
        (f'{CALL},"payload":' + '{"a":' * 513 + "1" + "}" * 514, "nested deeper than 512"),
        (f'{CALL},"payload":' + '{"a":' * 100_000, "nested deeper than 512"),
        (f'{CALL},"text":"a\\u0000"}}', "NUL"),
        (f'{CALL},"text":5}}', r"\$.text: saw a whole number, expected a text"),
        (f'{CALL},"matchTag":1}}', 'field "matchTag" is unknown here'),
        (f'{CALL},"nodeid":4294967294}}', "nodeid 4294967294 is no rank"),
        (f'{CALL},"routes":["zz"]}}', r"\$.routes\[0\]: expected a text of another form"),
        (f'{CALL},"data":"YQ"}}', r"\$.data: expected base64"),
        (f'{CALL},"flags":["strange"]}}', "'strange' is unknown here"),
        ('{"type":"request","matchtag":7}', 'field "topic" is missing'),
        ('{"type":"request","topic":"a.b\\u0000c","matchtag":7}', '"topic" holds a NUL'),
    ],
)
def test_a_request_that_is_none_is_told_apart_from_what_nobody_could_answer(text, said):
    (refused,) = read(text.encode())
    assert (refused.message.type, refused.message.matchtag) == (wire.REQUEST, 7)
    assert refused.message.topic == ("" if "missing" in said else "a.b")
    assert re.search(said, refused.text)
    assert "`" not in refused.text


def test_what_comes_in_one_array_with_a_request_that_is_none_goes_its_way():
    before, refused, after = read(f'[{{"type":"ping"}} , {CALL},"payload":{EMOJI}}},\n{CALL}}} ]'.encode())
    assert (before, after) == ({"type": "ping"}, request("a.b", matchtag=7))
    assert "half of a character" in refused.text


def test_whoever_waits_for_an_answer_that_is_none_hears_of_it():
    text = '{"type":"response","topic":"a.b","matchtag":7,"routes":["61"],"text":"\\ud83d"}'
    (answer,) = read(text.encode())
    assert (answer.type, answer.matchtag, answer.errnum, answer.routes) == (wire.RESPONSE, 7, 71, [b"a"])
    assert b"half of a character" in answer.payload
    with pytest.raises(DecodeError, match="routes"):
        read(text.replace('"61"', '"zz"').encode())


def test_many_that_are_none_in_one_array_are_not_looked_at():
    bad = f'{CALL},"strange":1}}'
    assert len(read(f"[{','.join([bad] * jsonview.SPLIT)}]".encode())) == jsonview.SPLIT
    with pytest.raises(DecodeError):
        read(f"[{','.join([bad] * (jsonview.SPLIT + 1))}]".encode())


def test_binary_is_refused():
    with pytest.raises(DecodeError, match="binary"):
        new_codec("flux.v1.json").decode(b"{}", text=False)


def test_frames():
    codec = new_codec("flux.v1.json")
    message = event("t", b"{}\0", sequence=1)
    assert payload_of(codec.encode(message)) == [(1, jsonview.encode(message))]
    assert payload_of(codec.encode_control({"type": "pong"})) == [(1, b'{"type":"pong"}')]


def test_a_run_of_one_is_an_object_and_of_more_an_array_made_once():
    codec = new_codec("flux.v1.json")
    messages = [event("t", b"{}\0", sequence=number) for number in range(3)]
    ((_, one),) = payload_of(codec.encode_run(Run(messages[:1])))
    assert json.loads(one)["sequence"] == 0
    run = Run(messages)
    ((_, more),) = payload_of(codec.encode_run(run))
    assert [each["sequence"] for each in json.loads(more)] == [0, 1, 2]
    assert new_codec("flux.v1.json").encode_run(run) is codec.encode_run(run)


def test_a_long_run_is_several_arrays():
    messages = [event("t", bytes(30_000), sequence=number) for number in range(20)]
    frames = payload_of(new_codec("flux.v1.json").encode_run(Run(messages)))
    assert len(frames) > 1
    assert [message for _, text in frames for message in jsonview.decode(text)] == messages
