"""Every gold table by name, the steps that they are made of, and what a batch leaves open for the next one."""

from __future__ import annotations

from typing import Final

from gateway.pipeline.schema import table_named
from gateway.pipeline.tables import calls, denied, events, jobs, latency, notes, order, traffic, usage

TABLES: Final = {
    **traffic.TABLES, **calls.TABLES, **latency.TABLES, **denied.TABLES, **events.TABLES, **order.TABLES,
    **usage.TABLES, **jobs.TABLES, **notes.TABLES,
}  # fmt: skip
"""Each gold table as one query; ``query`` gives it the columns of the schema."""
STEPS: Final = {**calls.STEPS, **denied.STEPS, **jobs.STEPS}
SLICED: Final = calls.SLICED
VIEWS: Final = {**calls.VIEWS, **denied.VIEWS, **events.VIEWS, **jobs.VIEWS}
OPEN: Final = {**calls.OPEN, **events.OPEN, **jobs.OPEN}
"""What is left open, by name: ``calls``, ``hops``, ``events``, ``jobs``."""


def query(table: str) -> str:
    """The rows of a gold table, in the columns of its schema."""
    names = ", ".join(f'"{name}"' for name in table_named(table).names)
    return f"SELECT {names} FROM ({TABLES[table]})"
