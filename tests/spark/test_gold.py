"""Every gold table twice: by Spark, and in plain Python (tests/live/oracle.py). The cases' rows lie together in one
bronze, each under a rank of its own: a table is made once, however many cases look at it.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gateway import pipeline
from gateway.pipeline import gold
from gateway.pipeline.errors import PipelineError
from gateway.pipeline.schema import table_named
from gateway.pipeline.tables.queries import NEEDS, statement, tables_of
from gateway.pipeline.warehouse import Warehouse
from tests.live import oracle, traffic
from tests.live.gold import NOTHING, added, differences, drawn_rows, fill
from tests.live.gold import gold as gold_of
from tests.tables import for_each

pytestmark = pytest.mark.timeout(1800)

HISTORIES = 60
"""Each is a rank."""
TREE, NUMBERS, CLOCK, LONG, PARTED, OPEN, REFUSED, NEWS = range(5000, 13_000, 1000)
"""Ranks of cases."""
SUMS = {
    "traffic": (
        ("window", "rank", "writer", "transport", "direction", "kind", "topic", "type", "userid"),
        ("n", "payload_bytes", "wire_bytes"),
    ),
    "deliveries": (("window", "rank", "topic", "userid"), ("events", "n", "payload_bytes", "wire_bytes", "tree_n")),
    "tree_traffic": (("window", "rank", "peer", "direction", "type", "service"), ("n", "wire_bytes")),
    "rpc_latency": (("window", "rank", "topic", "le_ns"), ("n", "sum_ns", *oracle.WHYS)),
    "tree_latency": (("window", "rank", "source", "target", "topic"), ("n", "sum_ns")),
    "errors": (("window", "rank", "topic", "errno", "kind", "userid"), ("n",)),
    "user_usage": (
        ("dt", "userid"),
        ("requests", "responses", "events", "denied", "errors", "payload_bytes", "wire_bytes", "rpc_ns"),
    ),
}  # fmt: skip
"""Tables whose rows add up: keys, and what is added."""


def played(rank: int, steps: list[traffic.Step], both: bool = False) -> list[traffic.Row]:
    return traffic.Player(traffic.Writer(rank=rank, both=both)).play(steps)


def cases() -> list[traffic.Row]:
    numbers = traffic.Writer(
        rank=NUMBERS
    )  # what an answer says is up to whoever answers: 32 bits, an errno has 31
    for tag, number in enumerate((2, 2**31, 2**32 - 1), 1):
        numbers.request(1, tag, "job.b")
        numbers.response(1, tag, "job.b", number)
    refused = traffic.Writer(rank=REFUSED)  # at once: nothing else of this client is known
    for tag, reason in ((1, 38), (2, 1)):
        refused.request(7, tag, "no.such", direction="denied", reason=reason)
    refused.request(8, 3, "job.b")
    refused.response(8, 3, "job.b", 13)
    refused.event(8, "a.b", 1)
    rows = numbers.rows + refused.rows + traffic.tree(20, base=TREE)
    # a stream of responses, still open at the end, under a clock that steps back
    said = [("response", 1, 1, "job.get", 0), ("wait", -traffic.S), ("event", 2, 1, 0)]
    rows += played(LONG, [("request", 1, 1, "job.get", traffic.STREAMING), *said * 4], both=True)
    # the request is the last one of the first part, its refusal the first one of the second
    rows += played(PARTED, [("event", 2, 1, 0), ("forbidden", 1, 1, "kvs.get", 1), *[("event", 2, 1, 0)] * 3])
    return rows + played(OPEN, [("event", 2, 1, 0), ("request", 1, 1, "job.get", 0), ("event", 2, 1, 0)])


def clock_set() -> list[traffic.Row]:
    """From 1970 to now, while calls are open: a few of them are together more than 64 bits hold."""
    writer = traffic.Writer(rank=CLOCK, now_ns=traffic.S)
    for tag in range(1, 8):
        writer.request(1, tag, "job.b", userid=77)
    writer.now_ns = traffic.MIDNIGHT_NS
    for tag in range(1, 8):
        writer.response(1, tag, "job.b", 0)
    return writer.rows


def of_rank(rows: Iterable[dict[str, Any]], rank: int) -> list[dict[str, Any]]:
    return [row for row in rows if row["rank"] == rank]


@pytest.fixture(scope="module")
def rows() -> list[traffic.Row]:
    return drawn_rows(HISTORIES) + cases()


@pytest.fixture(scope="module")
def made(
    spark: Any, rows: list[traffic.Row], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    warehouse = Warehouse(tmp_path_factory.mktemp("gold") / "w")
    fill(warehouse, rows + clock_set())
    run = gold.batch(spark, warehouse)
    tables = gold_of(warehouse)
    assert run.rows_in == len(rows) + 14
    assert run.rows_out == sum(map(len, tables.values()))
    assert warehouse.feed() == {"feed": "ingest", "bronze": 0, "gold": 0}
    assert gold.batch(spark, warehouse).rows_in == 0, "nothing was touched"
    return tables


@for_each("table", oracle.TABLES)
def test_a_table_is_the_oracles(table: str, made: dict[str, list[Any]], rows: list[traffic.Row]) -> None:
    meant = oracle.TABLES[table](rows)
    seen = [row for row in made[table] if row.get("rank") != CLOCK and row.get("userid") != 77]
    assert meant, "the histories do not touch this table"
    assert tuple(seen[0]) == table_named(table).names
    if table == "user_usage":  # what answered these calls is a user of other rows, too
        seen = [row for row in seen if row["userid"] != 500]
        meant = [row for row in meant if row["userid"] != 500]
    assert differences(table, seen, meant) == NOTHING


def test_a_call_over_several_brokers_counts_once(made: dict[str, list[Any]]) -> None:
    ranks = range(TREE, TREE + 4)
    names = ("rpc", "rpc_latency", "errors", "traffic", "tree_traffic", "tree_latency")
    of = {name: [row for row in made[name] if row["rank"] in ranks] for name in names}
    assert Counter(row["rank"] - TREE for row in of["rpc"]) == {2: 20, 3: 20}
    assert {row["rank"] - TREE: row["lat_ns"] for row in of["rpc"]} == {
        2: 3 * traffic.STEP_NS,
        3: 5 * traffic.STEP_NS,
    }
    assert sum(row["n"] for row in of["rpc_latency"]) == 40
    assert Counter(row["type"] for row in of["traffic"] for _ in range(row["n"])) == {
        "request": 40,
        "response": 40,
    }
    assert sum(row["n"] for row in of["errors"]) == 4
    assert sum(row["n"] for row in of["tree_traffic"]) == 2 * 20 * (1 + 2)
    took = Counter[tuple[int, str, str]]()
    for row in of["tree_latency"]:
        took[row["rank"] - TREE, row["source"], row["target"]] += row["sum_ns"]
    up = took[1, f"rank {TREE + 3}", f"rank {TREE}"]
    assert took[3, "client", f"rank {TREE + 1}"] - up == up - took[0, f"rank {TREE + 1}", "client"]
    assert took[0, f"rank {TREE + 1}", "client"] == 20 * traffic.STEP_NS


def test_an_answer_may_have_any_number_for_an_error(made: dict[str, list[Any]]) -> None:
    assert sorted(row["errnum"] for row in of_rank(made["rpc"], NUMBERS)) == [2, 2**31, 2**32 - 1]
    failed = of_rank(made["errors"], NUMBERS)
    assert sorted((row["errno"], row["n"]) for row in failed) == [(2, 1), (2**31 - 1, 2)]


def test_a_clock_that_is_set_while_calls_are_open(made: dict[str, list[Any]]) -> None:
    assert {row["lat_ns"] for row in of_rank(made["rpc"], CLOCK)} == {traffic.MIDNIGHT_NS - traffic.S}
    for name in ("rpc_latency", "tree_latency"):
        assert [row["sum_ns"] for row in of_rank(made[name], CLOCK)] == [2**63 - 1]
    assert max(row["rpc_ns"] for row in made["user_usage"] if row["userid"] == 77) == 2**63 - 1


def test_who_is_refused_is_counted_whoever_says_so(made: dict[str, list[Any]]) -> None:
    """By the own broker, where it is a call like those that are refused elsewhere, and by a service."""
    seen = {row["matchtag"]: row for row in of_rank(made["rpc"], REFUSED)}
    assert {tag: row["errnum"] for tag, row in seen.items()} == {1: 38, 2: 1, 3: 13}
    assert (seen[1]["outcome"], seen[1]["n_responses"], seen[1]["lat_ns"], seen[1]["origin"]) == (
        "answered",
        1,
        0,
        None,
    )
    assert sum(row["n"] for row in of_rank(made["rpc_latency"], REFUSED)) == 3
    barred = {row["kind"]: (row["userid"], row["errno"]) for row in of_rank(made["denied"], REFUSED)}
    assert barred == {"request": (1001, 1), "answer": (1002, 13)}
    assert [(row["kind"], row["errno"]) for row in of_rank(made["errors"], REFUSED)] == [("request", 38)]
    for userid in {row["userid"] for row in made["denied"]} - {None}:
        counted = sum(row["denied"] for row in made["user_usage"] if row["userid"] == userid)
        assert counted == sum(row["userid"] == userid for row in made["denied"])


# ---------------------------------------------------------------- a stream


def cut(rows: list[traffic.Row], seed: int) -> tuple[list[traffic.Row], list[traffic.Row]]:
    """Each writer's records in two, at a random place; those of the cases in the middle."""
    rng = random.Random(seed)
    of_writer = Counter(row["writer"] for row in rows)
    places = {
        name: count // 2 if name in ("rank9000",) else rng.randint(0, count)
        for name, count in of_writer.items()
    }
    seen: Counter[str] = Counter()
    parts: tuple[list[traffic.Row], list[traffic.Row]] = ([], [])
    for row in oracle.in_order(rows):
        parts[seen[row["writer"]] >= places[row["writer"]]].append(row)
        seen[row["writer"]] += 1
    return parts


class Streamed(NamedTuple):
    """The warehouse, the first part of the rows, its tables, and those of all."""

    place: str
    first: list[traffic.Row]
    tables: dict[str, list[Any]]
    together: dict[str, list[Any]]


@pytest.fixture(scope="module")
def streamed(spark: Any, rows: list[traffic.Row], tmp_path_factory: pytest.TempPathFactory) -> Streamed:
    """The first part of the rows, its tables by ``batch``, then those of a step over the rest, and what is open."""
    warehouse = Warehouse(tmp_path_factory.mktemp("stream") / "w")
    first, rest = cut(rows, seed=7)
    fill(warehouse, first, "stream")
    gold.batch(spark, warehouse)
    assert warehouse.feed()["gold"] == 0
    tables = gold_of(warehouse)
    fill(warehouse, rest, "stream")
    run = gold.step(spark, warehouse)
    assert run is not None
    assert (run.rows_in, run.batch_id, warehouse.feed()["gold"]) == (len(rest), 1, 1)
    assert gold.step(spark, warehouse) is None
    kinds = Counter(row["kind"] for row in warehouse.scan("_open").to_pylist())
    assert set(kinds) == {"call", "hop", "event", "job"}
    gold.tell_open(spark, warehouse)
    before = {name: warehouse.at(name).delta.version() for name in gold.NAMES}
    gold.tell_open(spark, warehouse)
    assert {name: warehouse.at(name).delta.version() for name in gold.NAMES} == before, "told once"
    return Streamed(warehouse.place, first, tables, gold_of(warehouse))


@for_each("table", oracle.TABLES)
def test_what_a_stream_has_open_is_told_by_batch_as_it_is(table: str, streamed: Streamed) -> None:
    assert added_or_same(table, streamed.tables[table], oracle.TABLES[table](streamed.first))


@for_each("table", [name for name in oracle.TABLES if name != "order_check"])
def test_a_stream_is_together_what_one_batch_is(
    table: str, streamed: Streamed, rows: list[traffic.Row]
) -> None:
    """Also of calls that were told as unanswered, and then were answered: they count once. But a job that was told is
    not told again, whatever is heard of it late; nor is who was refused, when the broker got to know its origin later.
    """
    seen, meant = streamed.together[table], oracle.TABLES[table](rows)
    if table == "job_outcomes":
        late = told_and_heard_of(streamed.first, rows)
        seen, meant = ([row for row in each if row["uuid"] not in late] for each in (seen, meant))
    if table == "rpc":
        seen, meant = (
            [{**row, "origin": None} if row["lat_ns"] == 0 else row for row in each] for each in (seen, meant)
        )
    assert added_or_same(table, seen, meant)


def told_and_heard_of(first: list[traffic.Row], rows: list[traffic.Row]) -> set[str]:
    """Jobs whose end was among the first rows, and that others tell of, too."""
    heard = [Counter[str](), Counter[str]()]
    ended = set()
    for part, counted in zip((first, rows), heard, strict=True):
        for row in part:
            if row["kind"] == "nfp":
                said = json.loads(row["detail"])
                counted[str(said.get("uuid"))] += 1
                if part is first and said.get("status") in oracle.FINAL:
                    ended.add(str(said["uuid"]))
    return {uuid for uuid in ended if heard[0][uuid] != heard[1][uuid]}


def added_or_same(table: str, seen: list[Any], meant: list[Any]) -> bool:
    if table not in SUMS:
        return differences(table, seen, meant) == NOTHING
    return added(seen, *SUMS[table]) == added(meant, *SUMS[table])


def test_calls_are_open_over_steps(streamed: Streamed) -> None:
    (long,) = of_rank(streamed.together["rpc"], LONG)
    assert (long["n_responses"], long["outcome"]) == (4, "answered")
    (still,) = of_rank(streamed.together["rpc"], OPEN)
    assert still["outcome"] == "unanswered"


def test_what_the_page_counts_by_hand_is_the_same(
    spark: Any, rows: list[traffic.Row], streamed: Streamed
) -> None:
    """Each line of its table: what it says of a table is what it says of bronze; but for order, which no step makes."""
    page = (Path(pipeline.__file__).parent / "README.md").read_text()
    lines = re.findall(r"^\| `(SELECT .*?)` \| `(SELECT .*?)` \|$", page, re.MULTILINE)
    lines = [line for line in lines if "order_check" not in line[0]]
    assert {table for one, _ in lines for table in re.findall(r"FROM (\w+)", one)} >= set(SUMS)
    pipeline.views(spark, streamed.place)
    both = ", ".join(f"({query})" for line in lines for query in line)
    counted = list(spark.sql(f"SELECT {both}").first())
    assert all(counted), "each of them counts something"
    assert counted[::2] == counted[1::2]


# ---------------------------------------------------------------- plans


def test_plans_shuffle_by_key_and_have_no_python(spark: Any, rows: list[traffic.Row], tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path / "w")
    fill(warehouse, traffic.tree(1) + played(1, [("event", 1, 1, 0), ("job", 1, "")]))
    bronze = warehouse.at("messages")
    plans = {}
    with tables_of(spark, bronze.read) as tables:
        for kind in (kind for kinds in NEEDS.values() for kind in kinds):
            tables.look[kind] += 1
        for name in gold.NAMES:
            found = tables.rows(name)
            assert found is not None
            plans[name] = found._jdf.queryExecution().executedPlan().toString()
        matched = tables.sql(statement("calls", hops=False))
        plans["calls"] = matched._jdf.queryExecution().executedPlan().toString()
    for name, plan in plans.items():
        assert not re.search("Python|Arrow", plan), name
        assert "SinglePartition" not in plan, name
        if name not in ("rpc", "denied", "notifications", "slow"):
            assert "Exchange hashpartitioning" in plan, name
    assert plans["calls"].count("Exchange") == 1, "by key, once; two windows and an aggregate behind it"


# ---------------------------------------------------------------- jobs that others disturb


def test_a_late_date_sets_its_neighbours_right(spark: Any, tmp_path: Path) -> None:
    """The answers of calls made before midnight come into bronze after gold was made."""
    writer = traffic.Writer(rank=1, now_ns=traffic.MIDNIGHT_NS - traffic.S)
    for tag in (1, 2, 3):
        writer.request(1, tag, "job.b")
    writer.event(1, "hb", 1)
    before = list(writer.rows)
    writer.now_ns += 2 * traffic.S
    for tag in (1, 2):
        writer.response(1, tag, "job.b")
    writer.event(1, "hb", 3)
    warehouse = Warehouse(tmp_path / "w")
    names = ("rpc", "event_gaps")
    fill(warehouse, before)
    gold.batch(spark, warehouse, tables=names)
    assert [row["n_responses"] for row in warehouse.scan("rpc").to_pylist()] == [0, 0, 0]
    fill(warehouse, writer.rows[len(before) :])
    run = gold.batch(spark, warehouse, tables=names)
    assert run.offsets == {"dates": ["2026-03-02"]}
    assert warehouse.feed()["gold"] == -1, "only some tables were made"
    for name, found in gold_of(warehouse, names).items():
        assert differences(name, found, oracle.TABLES[name](writer.rows)) == NOTHING, name


def test_a_step_that_was_killed_is_gone_on_with(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had added to one table: that one gets nothing twice; ``batch`` was ahead with another: it is waited for."""
    monkeypatch.setattr(gold, "STEPPED", ("traffic", "rpc"))
    writer = traffic.Writer(rank=1, now_ns=traffic.MIDNIGHT_NS + traffic.S)
    warehouse = Warehouse(tmp_path / "w")
    seen = 0
    for number in range(3):
        writer.request(1, 1, "job.b")
        writer.response(1, 1, "job.b")
        fill(warehouse, writer.rows[seen:], "stream")
        seen = len(writer.rows)
        if number == 0:
            gold.batch(spark, warehouse, tables=["traffic"])
    with monkeypatch.context() as killed:
        killed.setattr(gold, "_carry", lambda *_how: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            gold.step(spark, warehouse)
    assert (warehouse.at("rpc").done("gold"), warehouse.feed()["gold"]) == (0, -1)
    until = []
    while run := gold.step(spark, warehouse):
        until.append(run.batch_id)
    assert until == [0, 2]
    assert sum(warehouse.scan("traffic", ["n"])["n"].to_pylist()) == 6
    assert warehouse.scan("rpc").num_rows == 3


def test_what_fails_is_one_line_and_changes_nothing(spark: Any, tmp_path: Path) -> None:
    """The place of a table takes no files; a file of bronze is gone."""
    warehouse = Warehouse(tmp_path / "w")
    fill(warehouse, played(1, [("event", 1, 1, 0), ("job", 1, "")]))
    gold.batch(spark, warehouse, tables=["traffic"])
    before, days = gold_of(warehouse), warehouse.dates("messages")
    place = Path(warehouse.table("traffic"))
    (place / f"dt={days[0]}").rename(tmp_path / "kept")
    (place / f"dt={days[0]}").write_text("where a folder was")
    with pytest.raises(Exception, match=r"traffic.*dt=2026-") as told:
        gold.batch(spark, warehouse, days, tables=["traffic", "job_outcomes"])
    assert "\n" not in str(told.value)
    (place / f"dt={days[0]}").unlink()
    (tmp_path / "kept").rename(place / f"dt={days[0]}")
    assert gold_of(warehouse) == before
    assert not list(place.glob("part-*")), "nothing stays of what the job wrote"
    Path(warehouse.table("messages"), warehouse.at("messages").files()[0].path).unlink()
    with pytest.raises(PipelineError, match=r"\.parquet") as told:
        gold.batch(spark, warehouse, days, tables=["traffic"])
    assert "\n" not in str(told.value)


def test_gold_has_a_pool_of_its_own_so_that_bronze_waits_for_no_table(
    spark: Any, made: dict[str, list[Any]]
) -> None:
    scheduler = spark.sparkContext._jsc.sc()
    assert scheduler.getSchedulingMode().toString() == "FAIR"
    assert scheduler.getPoolForName(gold.TAG).isDefined()
    assert not scheduler.getPoolForName("no such pool").isDefined()


def test_what_is_no_json_says_nothing(spark: Any) -> None:
    """A record that was cut, with a beginning that can be read."""
    whole, torn = (played(1, [("job", 1, "")])[0] for _turn in range(2))
    torn["detail"] = whole["detail"][:-1]
    with tables_of(
        spark, lambda session: session.createDataFrame(traffic.arrow([whole | {"seq": 2}, torn]))
    ) as tables:
        found = tables.rows("job_outcomes")
        assert found is not None
        assert [row["uuid"] for row in found.collect()] == [json.loads(whole["detail"])["uuid"]]
