"""The queries of ``*.sql`` by name, and statements made of them: a view that a query names is put in its place, in
brackets (as ``WITH`` it would be planned for twice as long).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from gateway.pipeline.schema import table_named

LOOK: Final = "look"
"""One row of how many rows there are of each kind, and ``newest_ns``."""
BRONZE: Final = "bronze"
KEPT: Final[Mapping[str, Sequence[str]]] = {
    "calls": ["calls", "open call"], "passed": ["n"], "refusals": ["refused"],
}  # fmt: skip
"""What several tables are made of, and rows of which kind it is made of: made once, and kept."""
NEEDS: Final[Mapping[str, Sequence[str]]] = {
    "traffic": ["n"], "tree_traffic": ["tree"], "rpc": ["calls", "open call"], "rpc_latency": ["calls", "open call"],
    "tree_latency": ["calls", "open call"], "denied": ["refused"], "errors": ["refused"], "event_gaps": ["events"],
    "order_check": ["out"], "deliveries": ["out"], "user_usage": ["n", "open call"],
    "job_outcomes": ["jobs", "open job"], "notifications": ["oslo"], "slow": ["states"],
}  # fmt: skip
"""Rows of which kind a table is made of."""
LEAVES: Final = {"call": "calls", "hop": "calls", "event": "events", "job": "jobs"}
"""Of which kind of rows something is left open."""
_NAME: Final = re.compile(r"^-- name: (.+)\n", re.MULTILINE)
_COMMENT: Final = re.compile(r"^--.*\n", re.MULTILINE)


@cache
def queries() -> dict[str, str]:
    """What the files of this package say, by name."""
    found: dict[str, str] = {}
    for file in files("gateway.pipeline.tables").iterdir():
        if file.name.endswith(".sql"):
            _head, *parts = _NAME.split(file.read_text("utf-8"))
            found.update(
                zip(parts[::2], (_COMMENT.sub("", each).strip() for each in parts[1::2]), strict=True)
            )
    return found


def statement(name: str, *, hops: bool) -> str:
    """A query with the views that it names in it, and those that these name: behind FROM or JOIN, in capitals, without
    an alias of its own; but for bronze and what is KEPT, which are views of the session. ``hops``: some rows lack an
    origin.
    """
    views = {key: text for key, text in queries().items() if key != BRONZE and key not in KEPT}
    if not hops:
        views["resolved"] = "SELECT * FROM bronze"

    def put(text: str) -> str:
        return re.sub(
            rf"\b(FROM|JOIN)\s+({'|'.join(views)})\b",
            lambda found: f"{found[1]} ({put(views[found[2]])}) AS {found[2]}",
            text,
        )

    return put(queries()[name])


def rows_of(table: str, dates: Sequence[str] | None, *, hops: bool) -> str:
    """The rows of a gold table (of some dates), in the columns of its schema."""
    columns = ", ".join(
        f"CAST(`{each.name}` AS {each.ddl.split()[-1]}) AS `{each.name}`"
        for each in table_named(table).columns
    )
    found = f"SELECT {columns} FROM ({statement(table, hops=hops)})"
    if dates is None:
        return found
    return f"{found} WHERE dt IN ({', '.join(f'DATE{each!r}' for each in dates) or 'NULL'})"


def left_open(kind: str, *, hops: bool) -> str:
    """What of a kind is left open, in those columns of ``_open`` that it has."""
    dt = "CAST(timestamp_micros(ts_ns div 1000) AS DATE) AS dt"
    return f"SELECT *, '{kind}' AS kind, {dt} FROM ({statement(f'open {kind}', hops=hops)})"
