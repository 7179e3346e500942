"""A short session as the pipeline writes it: windows begin before what they hold, and nothing at an edge is lost."""

import pytest

from gateway.history.files import Reading
from gateway.history.reader import Question, answer
from gateway.history.scope import Scope
from gateway.history.tables import EXACT, Warehouse
from tests.live import warehouse as wh
from tests.live.warehouse import BEGIN, ONCE, WHEN
from tests.tables import for_each

COUNTED = {
    "denied": lambda said: said["total"],
    "slow": lambda said: said["total"],
    "jobs": lambda said: said["total"],
    "notifications": lambda said: said["total"],
    "order": lambda said: said["pairs"],
    "traffic": lambda said: sum(each["total"] for each in said["series"]),
    "talkers": lambda said: said["by_userid"][0]["n"] if said["by_userid"] else 0,
    "latency": lambda said: sum(n for n in said["n"] if n),
    "summary": lambda said: said["messages"],
}
EXPECTED = dict.fromkeys(COUNTED, 1) | {"slow": 3, "traffic": 9, "talkers": 9, "latency": 9, "summary": 9}


def written(place):
    for table, row in ONCE.items():
        wh.write(place, table, [{"_when": WHEN, **row}])
    return Warehouse(str(place))


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """What nobody writes to."""
    return written(tmp_path_factory.mktemp("house"))


@for_each("name", COUNTED)
def test_without_bounds_everything_of_a_short_session_is_there(house, name):
    said = answer(house, Question(name))
    assert (said["since"], said["until"]) == (wh.FIRST + 12_900, wh.FIRST + 13_020)
    assert COUNTED[name](said) == EXPECTED[name]


def test_the_extent_holds_the_last_window_and_all_that_was_in_it(house):
    assert house.extent() == (BEGIN, BEGIN + 10)
    said = answer(house, Question("summary"))
    assert (said["first"], said["last"]) == (BEGIN, BEGIN + 10)


@for_each("name", COUNTED)
def test_what_the_dashboard_asks_for_ends_behind_the_data(house, name):
    """Its spans end at ``last``: they hold all up to there, and nothing behind it."""
    first, last = house.extent()
    assert COUNTED[name](answer(house, Question(name, last - 3600, last))) == EXPECTED[name]
    assert COUNTED[name](answer(house, Question(name, first, last))) == EXPECTED[name]


@for_each("name", sorted(set(COUNTED) - {"order", "latency"}))
def test_both_edges_are_exact(house, name):
    """What ends where the time begins is not in it, and neither is what begins where the time ends."""
    after, before = Question(name, BEGIN + 10, BEGIN + 70), Question(name, BEGIN - 60, BEGIN)
    assert COUNTED[name](answer(house, after)) == 0
    assert COUNTED[name](answer(house, before)) == 0


def test_a_minute_of_latencies_counts_where_any_of_it_is_asked_for(house):
    minute = BEGIN // 60 * 60
    for since, until, n in (
        (minute + 50, minute + 60, 9),
        (minute + 60, minute + 70, 0),
        (minute - 9, minute, 0),
    ):
        assert COUNTED["latency"](answer(house, Question("latency", since, until))) == n


def test_a_window_that_reaches_over_midnight_is_in_the_partition_of_the_day_before(tmp_path):
    midnight = wh.FIRST + wh.DAY_S
    row = {**ONCE["traffic"], "_when": midnight - 5, "window": wh.at(midnight - 5)}
    wh.write(tmp_path, "traffic", [row])
    said = answer(Warehouse(str(tmp_path)), Question("traffic", midnight, midnight + 60))
    assert [each["n"][0] for each in said["series"]] == [9]


def test_a_time_before_the_first_window_widens_the_extent(tmp_path):
    house = written(tmp_path)
    wh.write(tmp_path, "denied", [{"_when": BEGIN - 95, **ONCE["denied"], "ts": wh.at(BEGIN - 95)}], "early")
    wh.write(tmp_path, "slow", [{"_when": BEGIN + 25, **ONCE["slow"], "ts": wh.at(BEGIN + 25)}], "late")
    assert house.extent() == (BEGIN - 100, BEGIN + 30)
    for name, n in (("denied", 2), ("slow", 6)):
        assert COUNTED[name](answer(house, Question(name))) == n


def test_tables_of_exact_times_come_before_minutes_and_days(tmp_path):
    assert "rpc_latency" not in EXACT
    wh.write(tmp_path, "rpc_latency", [{"_when": WHEN, **ONCE["rpc_latency"]}])
    minute = BEGIN // 60 * 60
    assert Warehouse(str(tmp_path)).extent() == (minute, minute + 60)


def test_a_row_without_a_time_is_of_the_begin_of_its_day(tmp_path):
    house = written(tmp_path)
    wh.write(tmp_path, "slow", [{"_when": WHEN, **ONCE["slow"], "ts": None}], "untimed")
    rows = [row for batch in house.read("slow", ["events"], Scope(wh.FIRST, wh.FIRST + 1), Reading())
            for row in batch.to_pylist()]  # fmt: skip
    assert rows == [{"us": wh.FIRST * 10**6, "events": 3}]
