"""job_outcomes: what became of each job of NFP.

One row a job: the last status seen (by time, then by number), and how long it took until a final one was first seen; a
final status is one behind which nothing comes. A job is heard of at any rank and over days, so the rows of all ranks
are looked at together; they are few.

Told are jobs that ended, and those that nothing was heard of since ``:since_ns``. Left open are the rows of the others,
and of those that ended the final one, so that what follows is known to be late.
"""

from __future__ import annotations

from typing import Final

from gateway.pipeline.tables.sql import FACTS, day_of, fact

_COLUMNS: Final = "writer, seq, ts_ns, detail"
"""Of what is left open."""
_FINAL: Final = "('COMPLETED', 'FAILED', 'EXPIRED', 'CANCELLED', 'JOB NOT FOUND')"
_SAID: Final = ", ".join(
    f"{fact(name)} AS {name}" for name in ("uuid", "service", "task", "client", "status", "worker")
)
_FACTS: Final = f"""
    SELECT *, coalesce(status IN {_FINAL}, false) AS final, struct(ts_ns, writer, seq) AS place FROM (
        SELECT {_COLUMNS}, fresh, {_SAID}, {fact("attempt", "bigint")} AS attempt FROM (
            SELECT *, {FACTS} FROM (
                SELECT {_COLUMNS}, false AS fresh FROM before WHERE kind = 'job'
                UNION ALL SELECT {_COLUMNS}, true FROM bronze WHERE kind = 'nfp')))
    WHERE uuid IS NOT NULL"""
_HEARD: Final = """
    SELECT uuid, max(ts_ns) >= :since_ns AS recent, bool_or(final) AS ended,
        (bool_or(final AND fresh) OR max(ts_ns) < :since_ns) AND NOT bool_or(final AND NOT fresh) AS told
    FROM facts GROUP BY uuid"""


def _at(pick: str, name: str) -> str:
    """The first value that was said, or the last one."""
    return f"{pick}({name}, place) FILTER (WHERE {name} IS NOT NULL) AS {name}"


_JOB_OUTCOMES: Final = f"""
    SELECT *, timestamp_micros(from_ns div 1000) AS t_submit, timestamp_micros(to_ns div 1000) AS t_done,
        to_ns - from_ns AS duration_ns, {day_of("from_ns")} AS dt
    FROM (
        SELECT uuid, {_at("min_by", "service")}, {_at("min_by", "task")}, {_at("min_by", "client")},
            {_at("max_by", "status")}, coalesce(max(attempt), 1) AS attempts,
            CAST(count(DISTINCT worker) AS INT) AS workers, min(ts_ns) AS from_ns,
            min(ts_ns) FILTER (WHERE final) AS to_ns
        FROM facts LEFT SEMI JOIN (SELECT uuid FROM heard WHERE told) USING (uuid) GROUP BY uuid)"""
_OPEN: Final = f"""
    SELECT {_COLUMNS} FROM (
        SELECT *, row_number() OVER (PARTITION BY uuid, final ORDER BY ts_ns, seq) AS nth FROM facts
        JOIN (SELECT uuid, ended FROM heard WHERE recent) USING (uuid))
    WHERE NOT ended OR (final AND nth = 1)"""

VIEWS: Final = {"facts": _FACTS, "heard": _HEARD}
TABLES: Final = {"job_outcomes": _JOB_OUTCOMES}
OPEN: Final = {"job": _OPEN}
