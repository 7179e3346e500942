"""What adds up in the broker's file: accounting, and names of workers that left."""

from __future__ import annotations

import sqlite3
from typing import Final

from broker.nfp.records import ACCOUNTS_MAX, KNOWN_MAX, OTHERS, Used
from broker.nfp.store.database import transaction

_COLUMNS: Final = "holder, key, service, jobs, failed, bytes_in, bytes_out, busy_s, expired, cancelled"
_FOLD: Final = """
INSERT INTO usage
SELECT ?, '', ?, sum(jobs), sum(failed), sum(bytes_in), sum(bytes_out), sum(busy_s), sum(expired), sum(cancelled)
    FROM usage WHERE (holder, key, service) IN folded HAVING count(*) > 0
ON CONFLICT (holder, key, service) DO UPDATE SET
    jobs = jobs + excluded.jobs, failed = failed + excluded.failed, bytes_in = bytes_in + excluded.bytes_in,
    bytes_out = bytes_out + excluded.bytes_out, busy_s = busy_s + excluded.busy_s,
    expired = expired + excluded.expired, cancelled = cancelled + excluded.cancelled
"""


def usage(connection: sqlite3.Connection) -> list[Used]:
    """All sums, the largest users first."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM usage ORDER BY busy_s DESC, holder, key, service")  # noqa: S608
    return [Used(*row) for row in rows]


def forget_workers(connection: sqlite3.Connection, known_max: int = KNOWN_MAX) -> None:
    """Delete the names of workers that left first when there are too many."""
    count = connection.execute("SELECT count(*) FROM workers WHERE gone IS NOT NULL").fetchone()[0]
    if count > known_max:
        connection.execute(
            "DELETE FROM workers WHERE name IN"
            " (SELECT name FROM workers WHERE gone IS NOT NULL ORDER BY gone LIMIT ?)",
            (count - known_max,),
        )


def fold_usage(connection: sqlite3.Connection, rows_max: int = ACCOUNTS_MAX) -> None:
    """Add up the smallest under ``OTHERS`` when there are too many rows, as ``Accounting`` does in memory."""
    count = connection.execute("SELECT count(*) FROM usage").fetchone()[0]
    if count <= rows_max:
        return
    with transaction(connection):
        connection.execute(
            "CREATE TEMP TABLE folded AS SELECT holder, key, service FROM usage WHERE holder <> ?"
            " ORDER BY busy_s, jobs LIMIT ?",
            (OTHERS, count - rows_max // 2),
        )
        connection.execute(_FOLD, (OTHERS, OTHERS))
        connection.execute(
            "DELETE FROM usage WHERE holder <> ? AND (holder, key, service) IN folded", (OTHERS,)
        )
        connection.execute("DROP TABLE folded")
