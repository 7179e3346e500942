"""Calls by method: rates, quantiles, what comes first, what is left out, and what is bounded."""

from broker.name_stats import TEXT_MAX
from gateway.trends import calls as module
from gateway.trends.calls import METHODS_MAX, RECENT, ROWS_MAX, Calls
from tests.tables import for_each

BOUNDS = [1_000_000, 2_000_000, 4_000_000]
CALC = {"calc": {"provider": "x", "builtin": False}}


def told(methods, builtin=("attr",), services=CALC, **more):
    return {
        "bounds_ns": BOUNDS,
        "services": {name: {"builtin": True} for name in builtin} | services,
        "methods": {name: figures(*each) for name, each in methods.items()},
        **more,
    }


def figures(count, errors=None, buckets=(), opened=0, last=None):
    said = {"calls": count, "open": opened, "errors": errors or {}, "buckets": list(buckets), "total_ns": 0}
    return said if last is None else {**said, "last_error": last}


def over(answers, seconds=2):
    """Calls that were told by rank 0, one answer after the other, and added up each time."""
    calls = Calls()
    for at, answer in enumerate(answers):
        calls.take(0, answer, float(at * seconds), 1000 + at * seconds)
        calls.count(1000 + at * seconds)
    return calls


def answer(calls, rank=None):
    return calls.answer(rank, True)


def names(said):
    return [row["name"] for row in said["rows"]]


def test_charts_of_all_and_of_each_method():
    calls = Calls()
    before = {"calc.add": (10, {}, [10, 0, 0, 0]), "attr.get": (5, {}, [5, 0, 0, 0])}
    for rank, methods in ((0, before), (1, {})):
        calls.take(rank, told(methods), 0.0, 1000)
    assert calls.count(1000) == {"open": 0}
    now = {"calc.add": (30, {"22": 4}, [28, 2, 0, 0]), "attr.get": (50, {}, [50, 0, 0, 0])}
    calls.take(0, told(now), 2.0, 1002)
    calls.take(1, told({"calc.sub": (2, {}, [0, 0, 0, 2])}), 2.0, 1002)
    assert calls.count(1002) == {
        "calls": 11.0,
        "errors": 2.0,
        "open": 0,
        "p50": 1.0,
        "p99": 8.0,
        "calls:calc.add": 10.0,
        "errors:calc.add": 2.0,
        "p99:calc.add": 2.0,
        "calls:calc.sub": 1.0,
        "errors:calc.sub": 0.0,
        "p99:calc.sub": 8.0,
    }


def test_a_row_says_all_of_a_method_and_what_fails_comes_first():
    last = {"errnum": 22, "text": "no", "userid": 7, "time": 900.0}
    calls = Calls()
    for at, count in ((0.0, 0), (2.0, 20)):
        calls.take(0, told({"calc.add": (count, {}, [count, 0, 0, 0])}), at, 1000 + int(at))
        bad = (count // 2, {"22": count // 2}, (), 3, last)
        calls.take(3, told({"calc.sub": bad, "calc.add": (0,)}, services={}), at, 1000 + int(at))
        calls.count(1000 + int(at))
    said = answer(calls)
    assert names(said) == ["calc.sub", "calc.add"]
    assert said["rows"][0] == {
        "kind": "call", "name": "calc.sub", "rank": 0, "calls": 5.0, "errors": 5.0, "open": 3, "p50_ms": None,
        "p99_ms": None, "errnos": {"22": 10}, "last_error": {**last, "rank": 3}, "recent": [5.0],
    }  # fmt: skip
    assert said["total"] == {
        "calls": 15.0,
        "errors": 5.0,
        "open": 3,
        "failing": 1,
        "worst": "calc.sub",
        "recent": [15.0],
    }
    assert names(answer(calls, 3)) == ["calc.sub", "calc.add"]
    assert names(answer(calls, 0)) == ["calc.add"]
    assert answer(calls, 0)["total"] == said["total"], "of all, whatever rank is asked for"
    assert answer(calls, 7)["rows"] == []


def test_times_above_the_last_bound_are_longer_than_the_longest():
    calls = over([told({}), told({"calc.add": (4, {}, [0, 3, 0, 1])})])
    said = answer(calls)
    row = said["rows"][0]
    assert (row["p50_ms"], row["p99_ms"] > said["longest_ms"]) == (2.0, True)


def with_others(count, errors=None):
    events = {"job.*": figures(4 * count), "attr.changed": figures(count)}
    others = {"event": events, "nfp": {"attr.add": figures(count, errors)}}
    return told({"calc.add": (3 * count,)}, others=others, silent=["oslo proxy"])


def test_other_kinds_are_rows_too_but_no_calls():
    said = answer(over([with_others(0), with_others(2, {"5": 2})]))
    assert [(row["kind"], row["name"], row["calls"], row["rank"]) for row in said["rows"]] == [
        ("nfp", "attr.add", 1.0, 0), ("event", "job.*", 4.0, 0), ("call", "calc.add", 3.0, 0),
    ]  # fmt: skip
    assert (said["total"]["calls"], said["total"]["failing"]) == (3.0, 1)
    assert said["silent"] == [{"rank": 0, "part": "oslo proxy"}]


def test_who_is_not_trusted_sees_calls_alone_and_no_text_of_an_error():
    last = {"errnum": 22, "text": "no", "userid": 7, "time": 900.0}
    calls = over(
        [
            with_others(0),
            with_others(2, {"5": 2}) | {"methods": {"calc.add": figures(2, {"22": 1}, last=last)}},
        ]
    )
    said = calls.answer(None, False)
    assert (names(said), said["silent"]) == (["calc.add"], [])
    assert (said["rows"][0]["errors"], said["rows"][0]["last_error"], said["total"]["failing"]) == (
        0.5,
        None,
        1,
    )
    assert answer(calls)["rows"][1]["last_error"] == {**last, "rank": 0}


@for_each("name", ["attr.get", "nfp.services.list", "gateway.sessions"])
def test_brokers_own_services_and_what_a_page_asks_are_no_calls_of_users(name):
    calls = over([told({}), told({name: (9, {"38": 9}, [9, 0, 0, 0])})])
    assert answer(calls)["rows"] == []
    assert answer(calls, 0)["rows"] == []
    assert answer(calls)["total"]["calls"] == 0


def test_a_service_that_is_built_in_at_another_broker_only_is_left_out():
    calls = Calls()
    calls.take(1, told({"content.load": (1,)}, builtin=()), 0.0, 1000)
    calls.take(0, told({}, builtin=("content",)), 0.0, 1000)
    calls.count(1000)
    assert answer(calls)["rows"] == answer(calls, 1)["rows"] == []


def test_a_silent_broker_has_nothing_open_and_its_errors_stay():
    calls = over([told({}), told({"calc.add": (4, {"5": 2}, (), 3)})])
    calls.forget(0)
    assert calls.count(1004) == {}
    row = answer(calls)["rows"][0]
    assert (row["calls"], row["errors"], row["open"], row["errnos"]) == (0, 0, 0, {"5": 2})
    calls.take(0, told({"calc.add": (904,)}), 60.0, 1060)
    calls.count(1060)
    assert answer(calls)["rows"][0]["calls"] == 0, "what came meanwhile is no rate of a second"


def test_counters_that_were_cleared_count_from_zero():
    calls = over(
        [told({"calc.add": (10, {"5": 3}, [10, 0, 0, 0])}), told({"calc.add": (4, {}, [1, 3, 0, 0])})]
    )
    row = answer(calls)["rows"][0]
    assert (row["calls"], row["errors"], row["p50_ms"]) == (2.0, 0.0, 2.0)


def test_methods_that_a_broker_tells_no_more_are_gone():
    calls = over([told({"calc.add": (1,), "calc.sub": (1,)}), told({"calc.sub": (1,)})])
    assert names(answer(calls)) == ["calc.sub"]
    calls.clear()
    assert answer(calls)["rows"] == []


def test_lines_and_rows_are_bounded_and_the_rest_is_counted():
    many = {f"calc.m{number:03}": (0,) for number in range(ROWS_MAX + 7)}
    calls = over([told(many)] * (RECENT + 9))
    said = answer(calls)
    assert (len(said["rows"]), said["more"]) == (ROWS_MAX, 7)
    assert len(said["rows"][0]["recent"]) == RECENT


def test_many_topics_of_events_leave_room_for_calls():
    def looked(count):
        events = {f"news.t{number}x": figures(9 * count) for number in range(ROWS_MAX + 7)}
        return told({"calc.add": (count,)}, others={"event": events})

    said = answer(over([looked(0), looked(2)]))
    assert (names(said)[-1], len(said["rows"]), said["more"]) == ("calc.add", ROWS_MAX + 1, 7)


def test_methods_that_are_kept_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "KEPT_MAX", 5)
    many = {f"calc.m{number}": (number,) for number in range(9)}
    calls = over([told(many), told(many)])
    assert len(answer(calls)["rows"]) == 5
    assert calls.left_out == 8
    calls.take(0, told({"calc.m8": (8,)}), 9.0, 1009)
    calls.take(1, told(many), 9.0, 1009)
    calls.count(1009)
    assert (len(answer(calls, 0)["rows"]), len(answer(calls, 1)["rows"])) == (1, 4)


def test_methods_with_charts_of_their_own_are_bounded_and_keep_them():
    many = {
        f"calc.m{number:03}": (number + 1, {}, [number + 1, 0, 0, 0]) for number in range(METHODS_MAX + 9)
    }
    calls = over([told({}), told(many)])
    calls.take(0, told({name: (each[0] + 1, *each[1:]) for name, each in many.items()}), 4.0, 1004)
    named = {name for name in calls.count(1004) if name.startswith("calls:")}
    assert named == {f"calls:calc.m{number:03}" for number in range(9, METHODS_MAX + 9)}


def test_names_that_cannot_be_printed_are_left_out_and_texts_are_cut():
    last = {"errnum": 22, "text": "x" * 9999, "userid": 7, "time": 900.0}
    calls = over([told({"calc.add": (1, {}, (), 0, last), "calc.\x1b[2J": (1,), "x" * 256: (1,)})])
    assert names(answer(calls)) == ["calc.add"]
    assert len(answer(calls)["rows"][0]["last_error"]["text"]) == TEXT_MAX


def test_services_that_are_there_no_more_are_not_built_in_for_ever():
    calls = over([told({}, builtin=("calc",)), told({"calc.add": (1,)}), told({"calc.add": (3,)})])
    assert names(answer(calls)) == ["calc.add"]


def test_an_answer_is_made_once_between_two_countings():
    calls = over([told({"calc.add": (1,)})])
    assert answer(calls) is answer(calls)
    before = answer(calls)
    calls.count(1002)
    assert answer(calls) is not before
