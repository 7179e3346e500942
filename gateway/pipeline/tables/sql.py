"""Words that the tables' SQL shares.

A module of a table has some of ``TABLES`` and ``VIEWS``, by name, each a query of Spark SQL; ``catalogue`` makes one
statement of a table and of the views that it names (as ``WITH`` they would be planned for twice as long). Queries
name one another, and what they are given:

``bronze``        rows of bronze
``resolved``      the same with ``origin`` filled in (``calls``)
``calls``         what became of each call (``calls``); made once, and kept
``before``        what an earlier batch left open, in the columns of the table ``_open``; empty where all of bronze is
                  given
``since_ns``      a parameter: calls that are open and not older, and jobs that were heard of since, are left open

Numbers in them are of RFC 3: flags 4 (no response wanted) and 64 (streaming); errno 1 and 13 (EPERM, EACCES: refused
for want of rights), 61 (ENODATA: a stream of responses ended well). Roles ``child`` and ``parent`` are other brokers of
the tree; whoever has another one entered the tree at the broker that recorded it.

Spark's own ways: ``greatest`` and ``least`` pass over NULL; a sum beyond 64 bits is an error; a view that is named
twice in a statement is computed twice; an aggregate that keeps strings sorts its rows, one that groups by them does
not.
"""

from __future__ import annotations

from typing import Final

from gateway.pipeline.schema import LONG_MAX

SERVICE: Final = "substring_index(topic, '.', 1) AS service"
"""Topic up to the first dot."""
SUMS: Final = "count(*) AS n, sum(payload_len) AS payload_bytes, sum(wire_len) AS wire_bytes"
FACTS: Final = "try_parse_json(detail) AS facts"
"""The JSON of a record; null where it is none."""


def fact(name: str, kind: str = "string") -> str:
    """A value of ``facts``; null where there is none, or none of that kind."""
    return f"try_variant_get(facts, '$.{name}', '{kind}')"


def of_broker(role: str) -> str:
    """Whether a role is that of another broker of the tree."""
    return f"coalesce({role} IN ('child', 'parent'), false)"


def since(start_ns: str, end_ns: str) -> str:
    """Time since the request, 0 where the clock stepped back; null where there is no end."""
    return f"CASE WHEN {end_ns} < {start_ns} THEN 0 ELSE {end_ns} - {start_ns} END"


def total(name: str) -> str:
    """A sum of times; what is more than 64 bits hold is the most that they do."""
    return f"coalesce(try_sum({name}), if(count({name}) > 0, {LONG_MAX}, 0))"


def day_of(ns: str) -> str:
    """A UTC date."""
    return f"CAST(timestamp_micros({ns} div 1000) AS DATE)"


def windows(seconds: int, select: str) -> str:
    """A query that has the number of a window, ``bucket``, with its begin and its day."""
    begin = f"timestamp_seconds(bucket * {seconds})"
    return f"SELECT *, {begin} AS window, CAST({begin} AS DATE) AS dt FROM ({select})"
