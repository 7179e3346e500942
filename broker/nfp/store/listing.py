"""Questions to the broker's file: accounting and lists of jobs."""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from broker.nfp.records import Used
from broker.nfp.store.database import transaction

USAGE_ROWS_MAX: Final = 20_000
"""Rows of accounting: anybody with a new key makes one. Beyond it the smallest are added up under ``OTHERS``."""
OTHERS: Final = "others"
LIST_MAX: Final = 10_000
"""Jobs in one list."""

_COLUMNS: Final = "holder, key, service, jobs, failed, bytes_in, bytes_out, busy_s"


class Listed(NamedTuple):
    """A job in a list."""

    uuid: str
    service: str
    task: str
    holder: str
    userid: int
    state: str
    """open, done, failed, cancelled or expired."""
    submitted_s: float
    """Wall clock."""
    slots: int
    finished: int
    """Slots with a result."""


_JOBS: Final = """
SELECT j.uuid, j.service, j.task, j.holder, j.userid, coalesce(c.state, 'open') AS state, j.submitted_s,
    (SELECT count(*) FROM slots s WHERE s.job = j.id),
    (SELECT count(*) FROM slots s JOIN results r ON r.slot = s.id WHERE s.job = j.id)
FROM jobs j LEFT JOIN closed c ON c.job = j.id
WHERE (?1 = '' OR coalesce(c.state, 'open') = ?1) AND (?2 = '' OR j.service = ?2) AND (?3 = '' OR j.holder = ?3)
ORDER BY j.id DESC LIMIT ?4
"""
_FOLD: Final = """
INSERT INTO usage
SELECT ?, '', service, sum(jobs), sum(failed), sum(bytes_in), sum(bytes_out), sum(busy_s)
    FROM usage WHERE (holder, key, service) IN folded GROUP BY service
ON CONFLICT (holder, key, service) DO UPDATE SET
    jobs = jobs + excluded.jobs, failed = failed + excluded.failed, bytes_in = bytes_in + excluded.bytes_in,
    bytes_out = bytes_out + excluded.bytes_out, busy_s = busy_s + excluded.busy_s
"""


def usage(connection: sqlite3.Connection) -> list[Used]:
    """All sums, the largest users first."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM usage ORDER BY busy_s DESC, holder, key, service")  # noqa: S608
    return [Used(*row) for row in rows]


def jobs(
    connection: sqlite3.Connection, *, state: str, service: str, holder: str, limit: int
) -> list[Listed]:
    """See ``Store.jobs``."""
    return [Listed(*row) for row in connection.execute(_JOBS, (state, service, holder, min(limit, LIST_MAX)))]


def fold_usage(connection: sqlite3.Connection, rows_max: int = USAGE_ROWS_MAX) -> None:
    """Add up the smallest users of each service under ``OTHERS`` when there are too many rows."""
    count = connection.execute("SELECT count(*) FROM usage").fetchone()[0]
    if count <= rows_max:
        return
    with transaction(connection):
        connection.execute(
            "CREATE TEMP TABLE folded AS SELECT holder, key, service FROM usage WHERE holder <> ?"
            " ORDER BY busy_s, jobs LIMIT ?",
            (OTHERS, count - rows_max // 2),
        )
        connection.execute(_FOLD, (OTHERS,))
        connection.execute(
            "DELETE FROM usage WHERE holder <> ? AND (holder, key, service) IN folded", (OTHERS,)
        )
        connection.execute("DROP TABLE folded")
