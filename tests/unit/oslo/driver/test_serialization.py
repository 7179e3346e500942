"""Bodies hold what rabbit's driver would hand to the other side."""

import datetime as dt
import ipaddress
import json
import logging
import math
import sys
import uuid
from decimal import Decimal
from typing import Any

import oslo_messaging
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oslo_messaging._drivers import common
from oslo_serialization import jsonutils

from broker.oslo.driver import serialization
from broker.oslo.driver.serialization import Unreadable
from tests.tables import for_each

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.text(alphabet=st.characters(categories=["Cs"]), max_size=3)
    | st.dates()
    | st.datetimes()
    | st.uuids()
    | st.decimals(allow_nan=False)
    | st.ip_addresses()
    | st.text().map(str.encode).filter(bool)
)
keys = st.text() | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.sets(st.integers() | st.text(), max_size=3)
    ),
    max_leaves=12,
)


def encodable(text: Any) -> bool:
    try:
        jsonutils.dumps(text)
    except (UnicodeError, ValueError):
        return False
    return True


@given(values.filter(encodable))
def test_the_kept_encoder_says_what_oslo_serialization_says(value: Any) -> None:
    assert json.loads(serialization.encode(value)) == jsonutils.loads(jsonutils.dumps(value))


@given(values.filter(encodable))
def test_what_is_read_is_what_oslo_serialization_reads(value: Any) -> None:
    text = jsonutils.dumps(value)
    found, expected = serialization.decode(text.encode()), jsonutils.loads(text)
    assert found == expected
    assert repr(found) == repr(expected)  # 1 and 1.0 and True are equal, but not the same


@for_each("text", ["NaN", "[Infinity]", "-Infinity", "1e400", '"\\ud800"', "11111111111111111111111111"])
def test_what_only_pythons_json_has_is_read_too(text: str) -> None:
    assert repr(serialization.decode(text.encode())) == repr(json.loads(text))


@for_each("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"nul", b'"a" "b"'])
def test_what_is_no_json_is_one_kind_of_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        serialization.decode(body)
    with pytest.raises(Unreadable, match="expected JSON"):
        serialization.read_request(body)
    with pytest.raises(Unreadable, match="expected JSON"):
        serialization.read_reply(body, [])


def test_conversions_as_measured_on_rabbit() -> None:
    name = uuid.uuid4()
    args = {
        "tuple": (1, 2),
        "number key": {1: 2},
        "datetime": dt.datetime(2020, 1, 1),  # noqa: DTZ001 - as services send it
        "bytes": b"abc",
        "uuid": name,
        "set": {1},
        "address": ipaddress.ip_address("10.0.0.1"),
        "decimal": Decimal("1.5"),
        "unicode": "żółć 😀",
        "nothing": None,
    }
    found = serialization.read_request(
        serialization.request_body({"user": "ada"}, {"method": "m", "args": args})
    )
    assert found.ctxt == {"user": "ada"}
    assert found.message == {
        "method": "m",
        "args": {
            "tuple": [1, 2],
            "number key": {"1": 2},
            "datetime": "2020-01-01T00:00:00.000000",
            "bytes": "abc",
            "uuid": str(name),
            "set": [1],
            "address": "10.0.0.1",
            "decimal": "1.5",
            "unicode": "żółć 😀",
            "nothing": None,
        },
    }


def test_two_mebibytes_pass() -> None:
    text = "ü" * (1 << 20)
    found = serialization.read_request(
        serialization.request_body({}, {"method": "m", "args": {"text": text}})
    )
    assert found.message["args"]["text"] == text


class Context:
    def to_dict(self) -> dict[str, Any]:
        return {"user": "ada"}


def test_contexts_are_taken_as_rabbit_takes_them_and_left_alone() -> None:
    mine = {1: "a", None: "b", "d": "e"}
    before = dict(mine)
    assert serialization.read_request(serialization.request_body(mine, {})).ctxt == {
        "1": "a",
        "None": "b",
        "d": "e",
    }
    assert mine == before
    assert serialization.read_request(serialization.request_body(Context(), {})).ctxt == {"user": "ada"}
    assert serialization.read_request(serialization.request_body(None, {})).ctxt == {}


def test_notifications_travel_with_and_without_envelope() -> None:
    event = {"event_type": "e", "payload": {"when": dt.date(2020, 1, 2)}}
    with_it = serialization.notification_body({"a": 1}, event, 2.0)
    without = serialization.notification_body({"a": 1}, event, 1.0)
    assert json.loads(with_it)["message"] == common.serialize_msg(event)
    assert "oslo.version" not in json.loads(without)["message"]
    expected = ({"a": 1}, {"event_type": "e", "payload": {"when": "2020-01-02"}})
    assert serialization.read_request(with_it) == serialization.read_request(without) == expected


@for_each(
    "body",
    [
        b"[]",
        b"{}",
        b'{"ctxt": {}}',
        b'{"ctxt": [], "message": {}}',
        b'{"ctxt": {}, "message": 1}',
        b'{"ctxt": {}, "message": {"oslo.version": "2.0", "oslo.message": "{"}}',
        b'{"ctxt": {}, "message": {"oslo.version": "2.0", "oslo.message": "[]"}}',
        b'{"ctxt": {}, "message": {"oslo.version": 2, "oslo.message": "{}"}}',
        b'{"ctxt": {}, "message": {"oslo.version": "x", "oslo.message": "{}"}}',
    ],
)
def test_a_request_of_another_form_is_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable):
        serialization.read_request(body)


def test_an_envelope_of_another_version_is_told_apart() -> None:
    body = b'{"ctxt": {}, "message": {"oslo.version": "3.0", "oslo.message": "{}"}}'
    with pytest.raises(common.UnsupportedRpcEnvelopeVersion):
        serialization.read_request(body)


# ---------------------------------------------------------------- replies


@for_each("value", [None, 0, "", False, [], {"a": [1, None]}, 1.5, "x"])
def test_results_come_back(value: Any) -> None:
    assert serialization.read_reply(serialization.reply_body(value), []) == value


def test_a_nan_comes_back() -> None:
    assert math.isnan(serialization.read_reply(serialization.reply_body(math.nan), []))


class KnownHere(Exception):
    """Of a module that is allowed, or not."""

    def __init__(self, text: str = "", **kwargs: Any) -> None:
        super().__init__(text)
        self.kwargs = kwargs


def failed(error: BaseException) -> bytes:
    try:
        raise error
    except BaseException:
        return serialization.failure_body(sys.exc_info())


def test_built_in_exceptions_are_raised_again() -> None:
    with pytest.raises(ValueError, match="too small") as caught:
        serialization.read_reply(failed(ValueError("too small")), [])
    assert "Traceback" in str(caught.value)


def test_exceptions_of_allowed_modules_are_raised_again_others_are_remote_errors() -> None:
    body = failed(KnownHere("no", extra=3))
    with pytest.raises(KnownHere, match="no") as caught:
        serialization.read_reply(body, [KnownHere.__module__])
    assert caught.value.kwargs == {"extra": 3}
    with pytest.raises(oslo_messaging.RemoteError) as remote:
        serialization.read_reply(body, [])
    assert (remote.value.exc_type, remote.value.value) == ("KnownHere", "no")


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("never")


class Odd(Exception):
    """Whose arguments and attributes are what nobody expects."""

    kwargs = None

    def __init__(self, *args: Any) -> None:
        if args and type(args[0]) is str and len(args) > 1:
            raise KeyError(args[1])
        super().__init__(*args)


class NoArguments(Exception):
    @property
    def args(self) -> Any:
        raise RuntimeError("none")


@for_each(
    ("error", "said"),
    [
        (KnownHere("x", it=object()), "x"),
        (Unsayable(), "Unsayable, whose text cannot be read"),
        (Odd(b"\xff"), "xff"),
        (Odd(object(), {(1, 2): 3}), "object"),
        (NoArguments("odd"), "odd"),
        (KnownHere("caf\udce9"), "caf"),
    ],
)
def test_an_exception_that_cannot_be_sent_is_told_with_type_text_and_traceback(
    error: Exception, said: str
) -> None:
    for allowed in ([], [KnownHere.__module__]):
        with pytest.raises(Exception, match=said) as caught:
            serialization.read_reply(failed(error), allowed)
        assert type(error).__name__ in repr(caught.value)
        trace = getattr(caught.value, "traceback", None) or str(caught.value)
        assert "in failed" in "".join(trace)


class Detached(dict[str, Any]):
    """As lazily loaded rows are when their session is gone."""

    def __init__(self, error: Exception) -> None:
        super().__init__(a=1)
        self.error = error

    def items(self) -> Any:
        raise self.error


class Lazy:
    def __init__(self, error: type[BaseException] = RuntimeError) -> None:
        self.error = error

    def __iter__(self) -> Any:
        raise self.error("detached")


@for_each(
    ("result", "kind", "said"),
    [
        (Detached(RuntimeError("detached")), RuntimeError, "detached"),
        ({"a": Detached(KeyError("row"))}, KeyError, "row"),
        (Lazy(), RuntimeError, "detached"),
        ([Lazy()], RuntimeError, "detached"),
        ([Lazy(SystemExit)], oslo_messaging.RemoteError, "SystemExit detached"),
        (b"\xff", oslo_messaging.RemoteError, "UnicodeDecodeError.*utf-8"),
        ((each for each in [1]), TypeError, "returned a generator"),
    ],
)
def test_a_result_that_fails_while_it_is_converted_is_the_callers_error(
    result: Any, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said) as caught:
        serialization.read_reply(serialization.reply_body(result), [])
    assert "Traceback" in str(caught.value)


def test_a_result_that_cannot_be_sent_answers_with_why(caplog: pytest.LogCaptureFixture) -> None:
    round_and_round: list[Any] = []
    round_and_round.append(round_and_round)
    for value, kind in ((round_and_round, ValueError), (object(), ValueError), ({(1, 2): 3}, TypeError)):
        with caplog.at_level(logging.ERROR), pytest.raises(kind):
            serialization.read_reply(serialization.reply_body(value), [])
    assert "cannot be sent" in caplog.text


@for_each("body", [b"[]", b"1", b'{"failure": 1}', b'{"failure": "{"}', b'{"failure": "[]"}'])
def test_a_reply_of_another_form_is_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable):
        serialization.read_reply(body, [])


@for_each(
    "failure",
    [
        {"class": "exec", "module": "builtins", "message": "m", "tb": [], "args": ["1"], "kwargs": {}},
        {"class": "system", "module": "os", "message": "m", "tb": [], "args": ["true"], "kwargs": {}},
        {"class": "NoSuch", "module": "builtins", "message": "m", "tb": []},
    ],
)
def test_only_exceptions_are_built(failure: dict[str, Any]) -> None:
    body = json.dumps({"failure": json.dumps(failure)}).encode()
    with pytest.raises(oslo_messaging.RemoteError):
        serialization.read_reply(body, ["builtins"])
