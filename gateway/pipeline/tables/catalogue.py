"""Every gold table by name, as one statement, and what a batch leaves open for the next one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.pipeline.schema import table_named
from gateway.pipeline.tables import calls, denied, events, jobs, latency, notes, order, traffic, usage
from gateway.pipeline.tables.sql import of_broker

CALLS: Final = "calls"
TABLES: Final = {
    **traffic.TABLES, **calls.TABLES, **latency.TABLES, **denied.TABLES, **events.TABLES, **order.TABLES,
    **usage.TABLES, **jobs.TABLES, **notes.TABLES,
}  # fmt: skip
"""Each gold table as one query."""
OPEN: Final = {**calls.OPEN, **events.OPEN, **jobs.OPEN}
"""What is left open, by its kind."""
_VIEWS: Final = {**calls.VIEWS, **denied.VIEWS, **events.VIEWS, **order.VIEWS, **jobs.VIEWS}

LOOK: Final = f"""
    SELECT count(*) AS n, max(ts_ns) AS newest_ns, count_if(direction <> 'in' AND origin IS NULL) AS hops,
        count_if(type IN ('request', 'response')) AS calls,
        count_if(kind = 'flux' AND direction <> 'denied' AND {of_broker("role")}) AS tree,
        count_if(direction = 'denied' OR errnum > 0 OR topic = 'denied.link') AS refused,
        count_if(type = 'event' AND direction = 'in' AND event_seq > 0) AS events,
        count_if(kind = 'flux' AND direction = 'out') AS out, count_if(kind = 'nfp') AS jobs,
        count_if(kind = 'oslo') AS oslo, count_if(kind = 'state' AND topic <> 'denied.link') AS states
    FROM bronze"""
"""What is looked for first, in one pass: a table that can have no row is not made."""
NEEDS: Final[Mapping[str, Sequence[str]]] = {
    "traffic": ["n"], "tree_traffic": ["tree"], "rpc": ["calls", "open call"], "rpc_latency": ["calls", "open call"],
    "tree_latency": ["calls", "open call"], "denied": ["refused"], "errors": ["refused"], "event_gaps": ["events"],
    "order_check": ["out"], "deliveries": ["out"], "user_usage": ["n", "open call"],
    "job_outcomes": ["jobs", "open job"], "notifications": ["oslo"], "slow": ["states"],
}  # fmt: skip
"""Rows of which kind a table is made of."""
LEAVES: Final = {"call": "calls", "hop": "calls", "event": "events", "job": "jobs"}
"""Of which kind of rows something is left open."""


def statement(query: str, *, hops: bool) -> str:
    """A query with the views that it names in it, and those that these name; ``hops``: some rows lack an origin."""
    views = {**_VIEWS, "resolved": calls.RESOLVED if hops else "SELECT * FROM bronze"}

    def put(text: str) -> str:
        return re.sub(
            rf"\b(FROM|JOIN)\s+({'|'.join(views)})\b",
            lambda found: f"{found[1]} ({put(views[found[2]])}) AS {found[2]}",
            text,
        )

    return put(query)


def rows_of(table: str, dates: Sequence[str] | None, *, hops: bool) -> str:
    """The rows of a gold table (of some dates), in the columns of its schema."""
    columns = ", ".join(
        f"CAST(`{each.name}` AS {each.ddl.split()[-1]}) AS `{each.name}`"
        for each in table_named(table).columns
    )
    found = f"SELECT {columns} FROM ({statement(TABLES[table], hops=hops)})"
    if dates is None:
        return found
    return f"{found} WHERE dt IN ({', '.join(f'DATE{each!r}' for each in dates) or 'NULL'})"


def left_open(kind: str, *, hops: bool) -> str:
    """What of a kind is left open, in those columns of ``_open`` that it has."""
    dt = "CAST(timestamp_micros(ts_ns div 1000) AS DATE) AS dt"
    return f"SELECT *, '{kind}' AS kind, {dt} FROM ({statement(OPEN[kind], hops=hops)})"
