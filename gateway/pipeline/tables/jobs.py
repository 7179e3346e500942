"""job_outcomes: what became of each job of NFP.

One row a job: the last status seen (by time, then by number), and how long it took until a final one was first seen; a
final status is one behind which nothing comes. A job is heard of at any rank and over days, so the rows of all ranks
are looked at together; they are few.

Told are jobs that ended, and those that nothing was heard of since ``since_ns``. Left open are the rows of the others,
and of those that ended the final one, so that what follows is known to be late.
"""

from __future__ import annotations

from typing import Final

JOB: Final = ("kind", "detail", "ts_ns", "writer", "seq")
"""Columns of what is left open."""
_FINAL: Final = "('COMPLETED', 'FAILED', 'EXPIRED', 'CANCELLED', 'JOB NOT FOUND')"
_SAID: Final = ", ".join(
    f"fact(detail, '{name}') AS {name}" for name in ("uuid", "service", "task", "client", "status", "worker")
)
_JOBS: Final = f"SELECT {', '.join(JOB)} FROM bronze WHERE kind = 'nfp'"
_FACTS: Final = f"""
    SELECT *, coalesce(status IN {_FINAL}, false) AS final FROM (
        SELECT *, (ts_ns, writer, seq) AS place, {_SAID}, TRY_CAST(fact(detail, 'attempt') AS BIGINT) AS attempt
        FROM (SELECT *, false AS fresh FROM before_jobs UNION ALL BY NAME SELECT *, true AS fresh FROM jobs)
        WHERE kind = 'nfp') WHERE uuid IS NOT NULL"""
_HEARD: Final = """
    SELECT uuid, max(ts_ns) >= getvariable('since_ns') AS recent, bool_or(final) AS ended,
        (bool_or(final AND fresh) OR max(ts_ns) < getvariable('since_ns')) AND NOT bool_or(final AND NOT fresh) AS told
    FROM facts GROUP BY uuid"""
_JOB_OUTCOMES: Final = """
    SELECT *, make_timestamp(from_ns // 1000) AS t_submit, make_timestamp(to_ns // 1000) AS t_done,
        to_ns - from_ns AS duration_ns, day_of(from_ns) AS dt
    FROM (
        SELECT uuid, arg_min(service, place) AS service, arg_min(task, place) AS task, arg_min(client, place) AS
            client, arg_max(status, place) AS status, coalesce(max(attempt), 1) AS attempts, count(DISTINCT worker) AS
            workers, min(ts_ns) AS from_ns, min(ts_ns) FILTER (final) AS to_ns
        FROM facts WHERE uuid IN (SELECT uuid FROM heard WHERE told) GROUP BY uuid)"""
_OPEN: Final = f"""
    SELECT {", ".join(JOB)} FROM facts JOIN heard USING (uuid) WHERE recent AND (NOT ended OR final)
    QUALIFY NOT ended OR row_number() OVER (PARTITION BY uuid, final ORDER BY ts_ns, seq) = 1"""

STEPS: Final = {"jobs": _JOBS}
VIEWS: Final = {"facts": _FACTS, "heard": _HEARD}
TABLES: Final = {"job_outcomes": _JOB_OUTCOMES}
OPEN: Final = {"jobs": _OPEN}
