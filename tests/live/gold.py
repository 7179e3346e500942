"""Bronze and gold for the tests of tables: histories as rows, a warehouse of them, and how two tables differ."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from hypothesis import HealthCheck, given, settings

from gateway.pipeline.schema import table_named
from gateway.pipeline.warehouse import Warehouse
from tests.live import oracle, traffic

NOTHING: dict[str, list[Any]] = {"too much": [], "missing": []}
"""What ``differences`` gives of tables that are the same."""


def drawn_rows(count: int) -> list[traffic.Row]:
    """Rows of so many histories that hypothesis made up, each under a rank of its own, of two trees, and of a job that
    two ranks tell of, on two dates.
    """
    drawn: list[Any] = []

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(traffic.histories())
    def draw(history: Any) -> None:
        drawn.append(history)

    draw()
    gaps = traffic.Player(traffic.Writer(rank=3000)).play([("event", 1, step, 0) for step in (1, 5, -3, 0)])
    trees = traffic.tree(12, base=1000) + traffic.tree(12, base=2000, both=True)
    return traffic.several(drawn) + gaps + trees + _job_of_two_ranks()


def _job_of_two_ranks() -> list[traffic.Row]:
    """Posted at one rank before midnight, done at the other one behind it."""
    first = traffic.Writer(rank=4000, now_ns=traffic.MIDNIGHT_NS - traffic.S)
    second = traffic.Writer(rank=4001, now_ns=traffic.MIDNIGHT_NS + traffic.S)
    for writer, status in ((first, ""), (second, "DISPATCHED"), (second, "COMPLETED")):
        player = traffic.Player(writer)
        player.job(1, status)
        writer.rows[-1]["detail"] = writer.rows[-1]["detail"].replace("job4001", "job4000")
    return first.rows + second.rows


def fill(warehouse: Warehouse, rows: list[traffic.Row], feed: str = "ingest") -> None:
    """Bronze as an addition leaves it: a file for each date."""
    warehouse.ready()
    warehouse.claim(feed)
    files = warehouse.write_rows("messages", traffic.arrow(rows))
    warehouse.add_bronze(warehouse.at("messages"), files, {})


def gold(warehouse: Warehouse, names: Iterable[str] = oracle.TABLES) -> dict[str, list[Any]]:
    """All rows of gold tables."""
    return {name: warehouse.scan(name).to_pylist() for name in names}


def added(
    rows: Iterable[dict[str, Any]], keys: Iterable[str], sums: Iterable[str]
) -> dict[Any, Counter[str]]:
    """Sums by key: rows of a stream add up."""
    table: dict[Any, Counter[str]] = {}
    for row in rows:
        key = tuple(plain(row[name]) for name in keys)
        table.setdefault(key, Counter()).update({name: row[name] for name in sums})
    return table


def plain(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def counted(table: str, rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Rows as a multiset, in the columns that do not follow from others."""
    names = [name for name in table_named(table).names if name != "service" or table == "job_outcomes"]
    return Counter(tuple(plain(row[name]) for name in names) for row in rows)


def differences(table: str, seen: list[dict[str, Any]], meant: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Some of the rows that one table has and another one has not."""
    ours, theirs = counted(table, seen), counted(table, meant)
    return {"too much": list((ours - theirs).elements())[:5], "missing": list((theirs - ours).elements())[:5]}
