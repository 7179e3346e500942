"""Calls by method over all brokers: added up, since the look before, the worst first."""

import asyncio
import errno
import io
from typing import Any

import msgspec
import pytest

from broker.call_report import CallReport
from broker.cli.callrates import CallRates, Kind, ask
from broker.cli.screen import Screen
from broker.errors import RpcError
from broker.serving.request import Received
from broker.wire.message import event
from tests.tables import for_each

BOUNDS = [1000, 10_000]


def told(
    calls: int, errors: dict[str, int] | None = None, buckets: tuple[int, ...] = (0, 0, 0), **more: Any
) -> dict[str, Any]:
    return {
        "calls": calls,
        "open": 0,
        "errors": errors or {},
        "total_ns": 0,
        "buckets": list(buckets),
        **more,
    }


def answer(
    services: dict[str, bool] | None = None,
    others: Any = None,
    silent: Any = (),
    **methods: dict[str, Any],
) -> CallReport:
    told = {
        "bounds_ns": BOUNDS,
        "others": others or {},
        "silent": silent,
        "methods": {name.replace("_", "."): each for name, each in methods.items()},
        "services": {
            name: {"provider": "x", "builtin": own} for name, own in (services or {"attr": True}).items()
        },
    }
    return msgspec.convert(told, CallReport)


def last(time: float, text: str) -> dict[str, Any]:
    return {"errnum": 5, "text": text, "userid": 7, "time": time}


def test_brokers_are_added_up_and_the_newest_error_counts() -> None:
    look = CallRates(
        {
            0: answer({"echo": False}, echo_run=told(2, {"5": 1}, (1, 1, 0), last_error=last(10.0, "old"))),
            1: answer(
                echo_run=told(3, {"5": 1, "38": 1}, (0, 2, 1), last_error=last(20.0, "new")), attr_get=told(9)
            ),
            2: "no answer within 2 s",
        },
        None,
        builtin=False,
    ).as_json()
    (echo,) = look["methods"]
    assert (echo["calls"], echo["errors"], echo["rank"]) == (5, {"EIO": 2, "ENOSYS": 1}, 0)
    assert (echo["p50_ns"], echo["p50_above"]) == (10_000, False)
    assert (echo["p99_ns"], echo["p99_above"]) == (10_000, True)
    assert (echo["last_error"]["text"], echo["last_error"]["rank"]) == ("new", 1)
    assert look["silent"] == [2]


def test_a_second_look_shows_what_came_since() -> None:
    first = CallRates({0: answer(a_b=told(5, {"5": 5}), c_d=told(1))}, None, builtin=False)
    second = CallRates(
        {0: answer(a_b=told(5, {"5": 5}), c_d=told(4, {"1": 2}, (3, 0, 0)))}, first, builtin=False
    )
    assert [(each.name, each.calls, each.failed) for each in second.methods] == [("c.d", 3, 2), ("a.b", 0, 0)]
    cleared = CallRates({0: answer(a_b=told(1), c_d=told(4, {"1": 2}, (3, 0, 0)))}, second, builtin=False)
    assert {each.name: each.calls for each in cleared.methods} == {"a.b": 1, "c.d": 0}


def test_a_method_that_is_new_at_the_second_look() -> None:
    first = CallRates({0: answer(a_b=told(1, None, (1, 0, 0)))}, None, builtin=False)
    second = CallRates({0: answer(a_b=told(1), c_d=told(2, None, (0, 2, 0)))}, first, builtin=False).as_json()
    assert [(each["method"], each["calls"], each["p50_ns"]) for each in second["methods"]] == [
        ("c.d", 2, 10_000),
        ("a.b", 0, None),
    ]


def test_a_broker_that_is_silent_for_a_while_makes_no_rates_of_what_it_had_counted() -> None:
    both = {0: answer(a_b=told(1000)), 1: answer(a_b=told(500, {"5": 7}))}
    looks = [CallRates(both, None, builtin=False)]
    looks.append(CallRates({0: answer(a_b=told(1001)), 1: "silent"}, looks[-1], builtin=False))
    looks.append(
        CallRates({0: answer(a_b=told(1003)), 1: answer(a_b=told(600, {"5": 8}))}, looks[-1], builtin=False)
    )
    assert [[(each.calls, each.failed) for each in look.methods] for look in looks] == [
        [(1500, 7)],
        [(1, 0)],
        [(2, 0)],
    ]


class Brokers:
    """What each rank answers: an errno, or what it counted."""

    def __init__(self, *answers: Any) -> None:
        self._answers = answers

    async def rpc(self, topic: str, *, nodeid: int) -> Any:
        self._now = self._answers[nodeid]
        if isinstance(self._now, int):
            raise RpcError(self._now, topic=topic)
        return self

    def json(self, shape: Any) -> Any:
        payload = msgspec.json.encode(self._now) + b"\0"
        return Received(event("broker.calls", payload)).json(shape)


def test_brokers_that_count_no_calls_hide_no_others() -> None:
    counted = answer(a_b=told(1))
    brokers: Any = Brokers(errno.ENOSYS, counted, errno.EHOSTUNREACH)
    assert asyncio.run(ask(brokers, range(3))) == {0: "counts no calls", 1: counted, 2: "cannot be reached"}
    with pytest.raises(RpcError):
        asyncio.run(ask(brokers, [0]))


@for_each("odd", [{}, {"methods": []}, {"bounds_ns": [0], "services": {}, "methods": {}}])
def test_a_broker_that_answers_oddly_hides_no_others(odd: dict[str, Any]) -> None:
    counted = answer(a_b=told(1))
    brokers: Any = Brokers(odd, counted)
    answers = asyncio.run(ask(brokers, range(2)))
    assert answers[1] == counted
    out = io.StringIO()
    CallRates(answers, None, builtin=False).show(Screen(out=out))
    assert "odd answer" in out.getvalue().splitlines()[-1]


def test_other_kinds_stand_in_the_same_table():
    others = {
        "event": {"news": told(3), "attr.changed": told(1)},
        "nfp": {"lab.go": told(2, {"5": 1}, (0, 1, 0), last_error=last(9.0, "no such host"))},
        "oslo": {
            "call x/t": told(4, {"113": 4}, (), last_error={**last(9.0, "nobody"), "userid": 0xFFFFFFFF})
        },
        "later": {"x": told(1)},
    }
    answers = {0: answer(a_b=told(1), others=others, silent=["oslo cast"]), 1: answer()}
    look = CallRates(answers, None, builtin=False)
    assert [(each.kind, each.name, each.calls) for each in look.methods] == [
        ("oslo", "call x/t", 4),
        ("nfp", "lab.go", 2),
        ("event", "news", 3),
        ("call", "a.b", 1),
    ]
    assert [each.kind for each in CallRates(answers, None, builtin=True, kind=Kind.EVENT).methods] == [
        "event"
    ] * 2
    out = io.StringIO()
    look.show(Screen(out=out))
    lines = out.getvalue().splitlines()
    assert lines[0].split()[:3] == ["kind", "method", "rank"]
    assert lines[1].endswith("at rank 0: nobody")
    assert "user" not in lines[1]
    assert "user 7 at rank 0: no such host" in lines[2]
    assert lines[-1] == "no answer from oslo cast: rank 0"
    assert (look.as_json()["silent"], look.as_json()["silent_wings"]) == ([], {"0": ["oslo cast"]})
    again = CallRates({0: answer(others={"event": {"news": told(5)}}), 1: answer()}, look, builtin=False)
    assert {each.name: each.calls for each in again.methods} == {"news": 2}


def test_own_services_are_left_out_unless_asked_for() -> None:
    answers = {0: answer(attr_get=told(9), no_x=told(1))}
    assert [each.name for each in CallRates(answers, None, builtin=False).methods] == ["no.x"]
    assert [each.name for each in CallRates(answers, None, builtin=True).methods] == ["attr.get", "no.x"]
