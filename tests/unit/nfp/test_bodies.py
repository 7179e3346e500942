"""JSON bodies: deployed NorFab's shape when written, leniency when read."""

import json

import zmq

from broker.nfp import bodies
from broker.nfp.bodies import UNREADABLE, Head, Request, read_head, read_request
from tests.tables import for_each
from tests.vectors import nfp

CAPTURED = {message.case: message for message in nfp() if message.case.startswith("norfab/")}


def captured(case: str) -> bytes:
    return CAPTURED[f"norfab/{case}"].frames[-1]


# -- requests -------------------------------------------------------------------------------------


def test_a_deployed_request() -> None:
    body = captured("post-all")
    assert read_head(body) == Head("ping", 15.0)
    assert read_request(body) == Request("ping", (), {"n": 1}, 15.0)
    assert bodies.request("ping", [], {"n": 1}, 15) == body
    assert bodies.request("ping", (), {"n": 1}, None) == captured("get-list")


@for_each(
    "body",
    [
        b"",
        b"plain text",
        b"[]",
        b"7",
        b'"run"',
        b"\x80\x04done",
        b'{"task":7}',
        b'{"task":null}',
        b"{}",
        b"\0" * 9,
    ],
)
def test_no_task(body: bytes) -> None:
    assert read_head(body).task == ""
    assert read_request(body).task == ""


@for_each(
    "body",
    [
        b'{"task":',
        b'{"task":"run_shell_cmd","kwargs":{"x":NaN}}',
        b'{"task":"run_shell_cmd"} ',
        b'\xef\xbb\xbf{"task":"run_shell_cmd"}',
        '{"task":"run_shell_cmd"}'.encode("utf-16"),
        '{"task":"run_shell_cmd"}'.encode("utf-16-be"),
        '{"task":"run_shell_cmd"}'.encode("utf-32-be"),
        b'{"task":"run_shell_cmd","x":' + b"[" * 1200 + b"]" * 1200 + b"}",
        b'{"task":"run_shell_cmd","timeout":' + b"9" * 5000 + b"}",
        b" " * 300 + b'{"task":"run_shell_cmd",}',
        b'{"task":"\xff"}',
        b"{'task':'run_shell_cmd'}",
    ],
)
def test_what_another_reader_might_take_for_a_task(body: bytes) -> None:
    """Reading it ourselves or calling it unreadable are both safe; a task that escapes the rules is not."""
    for task in (read_head(body).task, read_request(body).task):
        assert task in (UNREADABLE, "run_shell_cmd")
        assert task or body


@for_each(
    ("said", "seconds"),
    [
        ("15", 15.0),
        ("0.5", 0.5),
        ("0", None),
        ("-1", None),
        ("true", None),
        ("null", None),
        ('"15"', None),
        ("[]", None),
        ("1" + "0" * 308, 1e308),
        ("1" + "0" * 309, None),
        ("123456789012345678901", 1.2345678901234568e20),
    ],
)
def test_timeouts(said: str, seconds: float | None) -> None:
    body = f'{{"task":"t","timeout":{said}}}'.encode()
    head = read_head(body)
    assert head in (Head("t", seconds), Head(UNREADABLE, None))
    assert head.task == "t" or len(said) > 300
    assert read_request(body).timeout_s == head.timeout_s


def test_the_last_of_double_keys_counts_as_for_every_reader() -> None:
    body = b'{"task":"ping","t\\u0061sk":"run_shell_cmd"}'
    assert read_head(body).task == json.loads(body)["task"] == "run_shell_cmd"


def test_odd_arguments_count_as_none() -> None:
    assert read_request(b'{"task":"t","args":{"a":1},"kwargs":[1]}') == Request("t")
    assert read_request(b'{"task":"t","args":[1,[2]],"kwargs":{"a":null}}') == Request(
        "t", (1, [2]), {"a": None}
    )


def test_buffers_of_any_kind() -> None:
    body = b'{"task":"t"}'
    for buffer in (memoryview(body), zmq.Frame(body), bytearray(body)):
        assert read_head(buffer).task == read_request(buffer).task == "t"
        assert bodies.event_kind(buffer) == ""
    assert read_head(zmq.Frame(b'{"task"')).task == UNREADABLE


# -- responses ------------------------------------------------------------------------------------

UUID = "0" * 31


def test_as_deployed() -> None:
    assert bodies.submitted(UUID + "1", "dummy", "all", ["dummy-worker-1", "dummy-worker-2"]) == captured(
        "post-dispatched-202"
    )
    assert bodies.accepted(UUID + "1", "dummy", "dummy-worker-2") == captured("worker-created-201")
    pending = json.loads(captured("pending-300-client"))
    assert json.loads(bodies.progress(UUID + "9", "dummy", "dummy-worker-1", "STARTED")) == pending


def test_missing_workers_are_told() -> None:
    said = json.loads(bodies.submitted("u", "s", '["a","b"]', ["a"], ["b"]))
    assert (said["workers"], said["missing"]) == (["a"], ["b"])


def test_queued() -> None:
    said = json.loads(bodies.submitted("u", "s", "any", None))
    assert said == {"workers": [], "uuid": "u", "target": "any", "status": "PENDING", "service": "s"}
    assert json.loads(bodies.progress("u", "s", "")) == {"uuid": "u", "service": "s", "status": "PENDING"}


@for_each("code", [400, 404, 408, 417, 500, 499])
def test_failures_say_why_where_clients_look(code: int) -> None:
    said = json.loads(bodies.failed(code, "5eed", "nosuch", "all", "why"))
    deployed = json.loads(captured("unknown-service-400"))
    assert said.keys() == deployed.keys() | {"error"}
    assert (said["error"], said["errors"], said["workers"]) == ("why", ["why"], None)
    assert said["status"] == {404: "JOB NOT FOUND", 408: "EXPIRED", 417: "CANCELLED"}.get(code, "FAILED")


def test_cancelled() -> None:
    assert json.loads(bodies.cancelled("u", "s", "all", ["w"]))["status"] == "CANCELLED"


def test_events_as_deployed() -> None:
    plain = json.loads(captured("event-starting-worker"))
    seen = bodies.event(
        "progress",
        worker=plain["worker"],
        service="dummy",
        uuid=plain["uuid"],
        task="ping",
        message="starting",
        status="running",
        timestamp=plain["timestamp"],
    )
    assert seen == captured("event-starting-worker")
    asked = json.loads(captured("event-input-request"))
    seen = bodies.event(
        "input_request",
        worker=asked["worker"],
        service="dummy",
        uuid=asked["uuid"],
        task="ask",
        message="continue?",
        status="waiting_client_input",
        timestamp=asked["timestamp"],
        extras=asked["extras"],
        timeout_s=10,
    )
    assert seen == captured("event-input-request")


@for_each(
    ("body", "kind"),
    [
        (b'{"event_type":"result_ready"}', "result_ready"),
        (b'{"event_type":7}', ""),
        (b"{}", ""),
        (b"\xff", ""),
    ],
)
def test_event_kind(body: bytes, kind: str) -> None:
    assert bodies.event_kind(body) == kind


def test_uuids() -> None:
    assert bodies.read_uuids(bodies.uuids(["a", "b"])) == ["a", "b"]
    assert bodies.read_uuids(b'{"a":1}') == bodies.read_uuids(b"[1]") == bodies.read_uuids(b"\xff") == []


# -- several results ------------------------------------------------------------------------------


def test_aggregate() -> None:
    deployed = captured("result-200-worker")
    (name,) = json.loads(deployed)
    seen = bodies.aggregate(
        {
            name: deployed,
            "two": b'{"a": 1.0, "a": 12345678901234567890123}',
            "both": b'{"both":1,"more":2}',
            "other": b'{"name":1}',
            "text": b"done",
            "binary": b"\x80\x04",
            "bad": b'{"a":"\xff"}',
            "deep": b"[" * 3000 + b"]" * 3000,
            "empty": b"",
            "null": b"null",
        }
    )
    said = json.loads(seen)
    assert said[name] == json.loads(deployed)[name]
    assert b'"two":{"a": 1.0, "a": 12345678901234567890123}' in seen, "JSON stands as it came"
    assert (said["both"], said["other"]) == ({"both": 1, "more": 2}, {"name": 1})
    assert said["text"] == {"base64": "ZG9uZQ=="}
    assert said["binary"] == {"base64": "gAQ="}
    assert said["bad"].keys() == said["deep"].keys() == {"base64"}
    assert (said["empty"], said["null"]) == ({"base64": ""}, None)


# -- addresses ------------------------------------------------------------------------------------


@for_each(
    ("client", "shown"),
    [
        (b"cli-1", b"cli-1"),
        (b"a#b", b"a#b"),
        (b"x" * 64, b"x" * 64),
        (b"x" * 65, b"78" * 32),
        (b"\0\x01", b"0001"),
        ("käse".encode(), "käse".encode().hex().encode()),
        (b"a\nb", b"610a62"),
        (b"", b""),
    ],
)
def test_tokens(client: bytes, shown: bytes) -> None:
    for attempt in (1, 999_999_999):
        token = bodies.make_token(client, attempt)
        assert token == shown + b"#%d" % attempt
        assert bodies.read_token(token) == attempt


@for_each("address", [b"", b"cli", b"cli#", b"cli#x", b"cli#1 ", b"cli#-1", b"#" + b"9" * 40, b"#\xb2"])
def test_no_token(address: bytes) -> None:
    assert bodies.read_token(address) == 0


@for_each(
    ("body", "failed"),
    [
        (b'{"w1":{"result":1,"failed":true}}', True),
        (b'{"w1":{"failed":false},"w2":{"failed":true}}', True),
        (b'{"w1":{"failed":false}}', False),
        (b'{"w1":{"failed":"true"}}', False),
        (b'{"w1":{"result":{"failed":true}}}', False),
        (b'{"failed":true}', False),
        (b"", False),
        (b"\xff", False),
        (b"[" * 100_000, False),
    ],
)
def test_a_result_may_say_that_its_task_failed(body: bytes, failed: bool) -> None:
    assert bodies.says_failed(body) is failed
