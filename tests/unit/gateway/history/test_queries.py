"""Answers about a rich warehouse, compared with sums over the rows it was written from."""

import time
from collections import Counter

import pytest

from gateway.history.grouping import series
from gateway.history.reader import QUESTIONS, Question, answer
from gateway.history.tables import Warehouse
from tests.live import warehouse as wh
from tests.tables import for_each


@pytest.fixture(scope="module")
def house(rich):
    return Warehouse(str(rich))


def ask(house, name, since=wh.FIRST, until=wh.LAST, service=None, rank=None, **more):
    return answer(house, Question(name, since, until, service, rank, tuple(more.items())))


def carried(since=wh.FIRST, until=wh.LAST, service=None, rank=None):
    """The rows of traffic that count, straight from the generator."""
    return [
        row
        for row in wh.traffic()
        if since <= row["_when"] < until
        and row["kind"] != "state"
        and service in (None, row["service"])
        and rank in (None, row["rank"])
    ]


FILTERS = [
    {},
    {"service": "store"},
    {"rank": 1},
    {"since": wh.SPIKE - 3600, "until": wh.SPIKE + 1800},
    {"since": wh.FIRST + 86_000, "until": wh.FIRST + 90_000, "service": "job", "rank": 0},
    {"service": "no-such-service"},
]


KEYS = ["type", "service", "topic", "rank", "transport", "direction"]


@for_each(("chosen", "by"), [*(({}, by) for by in KEYS), *zip(FILTERS, KEYS, strict=True)])
def test_traffic_adds_up_to_the_rows(house, chosen, by):
    found = ask(house, "traffic", by=by, **chosen)
    expected: Counter[str] = Counter()
    for row in carried(**chosen):
        if by == "direction" or row["direction"] == "in":
            name = row["kind"] if by == "type" and row["type"] is None else str(row[by])
            expected[name] += row["n"]
    assert {each["name"]: each["total"] for each in found["series"]} == dict(expected)
    assert all(sum(each["n"]) == each["total"] for each in found["series"])


def test_traffic_stands_in_its_steps(house):
    found = ask(house, "traffic", since=wh.SPIKE, until=wh.SPIKE + 3600)
    expected = Counter()
    for row in carried(wh.SPIKE, wh.SPIKE + 3600):
        if row["type"] == "request":
            expected[row["_when"]] += row["n"]
    request = next(each for each in found["series"] if each["name"] == "request")
    assert found["step_s"] == 30
    assert {at: n for at, n in zip(found["times"], request["n"], strict=True) if n} == dict(expected)


def test_more_series_than_a_chart_has_become_other(tmp_path):
    rows = [
        {"_when": wh.FIRST, "window": wh.at(wh.FIRST), "rank": 0, "direction": "in", "kind": "flux",
         "service": f"s{number:02}", "topic": "t", "type": "request", "n": 100 - number}
        for number in range(12)
    ]  # fmt: skip
    wh.write(tmp_path, "traffic", rows)
    found = ask(Warehouse(str(tmp_path)), "traffic", by="service")
    assert [each["name"] for each in found["series"]] == [*(f"s{number:02}" for number in range(8)), "other"]
    assert found["series"][-1]["total"] == 92 + 91 + 90 + 89


def test_names_without_a_line_of_their_own_cost_their_rows_once():
    """Copied anew for each name, these would take 15 s; the gateway's loop waits for this thread meanwhile."""
    rows = [{"name": f"t{number}", "at": at, "n": 1} for number in range(20_000) for at in range(10)]
    began = time.process_time()
    lines = series(rows, lambda row: row["name"], {"n": "n"}, 10, 8)
    assert time.process_time() - began < 2
    assert [line["name"] for line in lines] == [*(f"t{number}" for number in range(8)), "other"]
    assert lines[-1]["n"] == [20_000 - 8] * 10


@for_each("chosen", FILTERS, ids=str)
def test_talkers_are_ranked_by_what_they_sent(house, chosen):
    found = ask(house, "talkers", **chosen)
    for name in ("userid", "topic", "service"):
        expected: Counter[object] = Counter()
        for row in carried(**chosen):
            expected[row[name]] += row["n"] if row["direction"] == "in" else 0
        assert {row[name]: row["n"] for row in found[f"by_{name}"] if row["n"]} == dict(expected)
        counts = [row["n"] for row in found[f"by_{name}"]]
        assert counts == sorted(counts, reverse=True)


def test_talkers_errors_and_the_summary_agree(house):
    failed = list(wh.errors())
    by_topic = {row["topic"]: row["errors"] for row in ask(house, "talkers")["by_topic"] if row["errors"]}
    assert by_topic == dict(Counter(row["topic"] for row in failed if row["topic"] for _ in range(row["n"])))
    found = ask(house, "errors")
    assert found["total"] == sum(row["n"] for row in failed) == ask(house, "summary")["errors"]
    assert {each["name"]: each["total"] for each in found["series"]} == {
        "ENOENT": 25,
        "ENOSYS": 10,
        "EPROTO": 5,
    }
    assert found["by"][0] == {"topic": "store.get", "errno": 2, "kind": "answer", "n": 25}
    assert ask(house, "errors", service="store")["total"] == 25


def test_a_step_of_the_tree_takes_what_the_next_broker_does_not(house):
    steps = {(row["from"], row["to"]): row for row in ask(house, "tree")["steps"]}
    assert steps["rank 1", "rank 0"]["mean_ns"] == 3 * wh.NS_PER_MS
    assert steps["rank 0", "client"]["mean_ns"] == wh.NS_PER_MS
    assert steps["rank 0", "client"]["n"] == 2 * steps["rank 1", "rank 0"]["n"]
    assert sum(row["share"] for row in steps.values()) == pytest.approx(1)
    assert {row["from"] for row in ask(house, "tree", rank=1)["steps"]} == {"rank 1"}


def test_a_step_to_a_broker_without_a_journal_is_not_known(tmp_path):
    rows = [row for row in wh.tree() if row["rank"] == 1]
    wh.write(tmp_path, "tree_latency", rows)
    (step,) = ask(Warehouse(str(tmp_path)), "tree")["steps"]
    assert (step["mean_ns"], step["share"]) == (None, None)


def test_usage_is_of_whole_days(house):
    found = ask(house, "talkers", since=wh.SPIKE, until=wh.SPIKE + 60)
    (most, *_) = found["usage"]
    assert (most["userid"], most["requests"], most["wire_bytes"]) == (1003, 30_000, 3_000_000)
    assert len(found["usage"]) == 3


def percentile(rows, percent):
    """The exact one of what the rows stand for."""
    times = sorted(row["le_ns"] for row in rows if row.get("le_ns") for _ in range(row["n"]))
    return times[-(-len(times) * percent // 100) - 1]


def test_a_percentile_of_many_windows_is_one_of_all_their_calls(house):
    found = ask(house, "latency")
    rows = list(wh.latency())
    for topic in found["topics"]:
        mine = [row for row in rows if row["topic"] == topic["topic"]]
        assert topic["n"] == sum(row["n"] for row in mine)
        for name, percent in (("p50_ns", 50), ("p95_ns", 95), ("p99_ns", 99)):
            assert topic[name] == percentile(mine, percent)
        assert topic["max_ns"] == max(row.get("max_ns") or 0 for row in mine)
    spike = max(range(len(found["times"])), key=lambda at: found["max_ns"][at] or 0)
    assert found["times"][spike] <= wh.SPIKE < found["times"][spike] + found["step_s"]
    assert found["unmatched"]["unmatched_no_response"] == sum(row["unmatched_no_response"] for row in rows)


def test_what_is_not_captured_is_not_unanswered(house):
    topics = {
        row["topic"]: row for row in ask(house, "latency", since=wh.FIRST, until=wh.FIRST + 3600)["topics"]
    }
    assert topics["log.append"]["not_captured"] == 2 * 3 * (3600 // wh.EVERY_S)
    assert topics["log.append"]["unmatched_no_response"] == 0


def test_refusals_by_service_and_rank(house):
    rows = list(wh.denied())
    found = ask(house, "denied")
    assert found["total"] == sum(found["n"]) == len(rows)
    assert found["kinds"] == dict(Counter(row["kind"] for row in rows))
    assert [row["ts"] for row in found["newest"]] == sorted((row["_when"] for row in rows), reverse=True)
    assert ask(house, "denied", service="secret")["total"] == sum(
        row["topic"] == "secret.read" for row in rows
    )
    assert ask(house, "denied", service="secre")["total"] == 0
    assert ask(house, "denied", rank=1)["total"] == sum(row["rank"] == 1 for row in rows)
    assert len(ask(house, "denied", limit=3)["newest"]) == 3


def test_order_names_the_pair_that_was_out_of_order(house):
    found = ask(house, "order", since=wh.SPIKE, until=wh.SPIKE + 60)
    assert (found["pairs"], found["out_of_order"], found["missing"]) == (12, 2, 1)
    (pair,) = found["findings"]
    assert (pair["origin"], pair["peer"], pair["out_of_order"]) == ("client-4", "job-1", 2)
    assert found["event_kinds"] == {"gap": 1, "reorder": 1}
    assert found["event_missing"] == 1
    quiet = ask(house, "order", since=wh.FIRST, until=wh.FIRST + 60)
    assert (quiet["pairs"], quiet["findings"], quiet["event_gaps"]) == (12, [], [])


def test_slow_consumers(house):
    found = ask(house, "slow")
    assert found["total"] == sum(row["events"] for row in wh.slow())
    assert [(row["peer"], row["what"]) for row in found["by"]] == [("web-2", "drop"), ("rank1", "shed")]
    assert found["by"][0]["bytes"] == 20 * 12_000


def test_jobs_by_status_and_task(house):
    found = ask(house, "jobs")
    rows = list(wh.jobs())
    assert {each["name"]: each["total"] for each in found["series"]} == dict(
        Counter(row["status"] for row in rows)
    )
    assert {row["task"]: row["n"] for row in found["tasks"]} == dict(Counter(row["task"] for row in rows))
    assert all(row["mean_ns"] == 3 * 10**9 for row in found["tasks"])
    assert found["newest"][0]["status"] == "running"
    assert found["newest"][0]["t_done"] is None


def test_notifications_by_priority(house):
    found = ask(house, "notifications")
    rows = list(wh.notifications())
    assert {each["name"]: each["total"] for each in found["series"]} == dict(
        Counter(row["priority"] for row in rows)
    )
    assert sum(row["n"] for row in found["by"]) == len(rows)


def test_summary_knows_the_ends_the_tables_and_the_runs(house):
    found = ask(house, "summary")
    assert found["first"] == wh.FIRST
    assert found["last"] == wh.LAST - wh.EVERY_S + 10
    assert found["fit"][0] < wh.FIRST < wh.LAST - wh.EVERY_S + 10 < found["fit"][1]
    assert found["ranks"] == [0, 1]
    assert set(found["services"]) == {*wh.SERVICES, "heartbeat", "nfp"}
    assert found["messages"] == sum(row["n"] for row in carried() if row["direction"] == "in")
    assert [run["job"] for run in found["runs"]] == ["batch", "ingest"]
    assert set(found["tables"]) == {"traffic", "rpc_latency", "tree_latency", "errors", "denied", "order_check",
                                    "event_gaps", "slow", "job_outcomes", "notifications", "user_usage"}  # fmt: skip


def test_without_bounds_it_is_the_last_day_of_the_data(house):
    found = answer(house, Question("traffic"))
    assert (found["since"], found["until"]) == (wh.LAST - wh.EVERY_S + 10 - 86400, wh.LAST - wh.EVERY_S + 10)


def test_an_empty_warehouse_answers_everything(tmp_path):
    for name in QUESTIONS:
        found = answer(Warehouse(str(tmp_path)), Question(name))
        assert found["rows"] == 0
        assert found["damaged"] == []
    assert answer(Warehouse(str(tmp_path)), Question("summary"))["fresh_s"] is None
