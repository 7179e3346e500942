"""Words that the tables' SQL shares: macros, windows of time, sums.

A module of a table has some of ``TABLES``, ``STEPS`` (made once, and kept) and ``VIEWS`` (computed each time), by name,
each a query of DuckDB; ``catalogue`` puts them together. Queries name one another, and what they are given:

``bronze``        rows of bronze
``before_calls``, ``before_events``, ``before_jobs``, ``before_hops``
                  what an earlier batch left open; empty where all of bronze is given
``since_ns``      a variable: calls that are open and not older, and jobs that were heard of since, are left open

Numbers in them are of RFC 3: flags 4 (no response wanted) and 64 (streaming); errno 1 and 13 (EPERM, EACCES: refused
for want of rights), 61 (ENODATA: a stream of responses ended well). Roles ``child`` and ``parent`` are other brokers of
the tree; whoever has another one entered the tree at the broker that recorded it.
"""

from __future__ import annotations

from typing import Final

from gateway.pipeline.schema import LONG_MAX

MACROS: Final = (
    "CREATE MACRO fact(detail, name) AS CASE WHEN json_valid(detail) THEN detail->>name END",
    "CREATE MACRO of_broker(role) AS coalesce(role IN ('child', 'parent'), false)",
    "CREATE MACRO since(start_ns, end_ns) AS CASE WHEN end_ns < start_ns THEN 0 ELSE end_ns - start_ns END",
    f"CREATE MACRO within(total_ns) AS least(total_ns, {LONG_MAX})::BIGINT",
    "CREATE MACRO day_of(ns) AS CAST(make_timestamp(ns // 1000) AS DATE)",
)
"""A value of the JSON of a record; a role is that of another broker of the tree; time since the request, 0 where the
clock stepped back; a sum that is more than 64 bits hold; a UTC date.
"""
SERVICE: Final = "split_part(topic, '.', 1) AS service"
"""Topic up to the first dot."""


def windows(seconds: int, select: str) -> str:
    """A query that has the number of a window, ``bucket``, with its begin and its day."""
    us = f"bucket * {seconds}000000"
    return (
        f"SELECT *, make_timestamp({us}) AS window, CAST(make_timestamp({us}) AS DATE) AS dt FROM ({select})"
    )
