"""Calls, rpc_latency and traffic once more, in the SQL that DuckDB speaks: what ``bench`` compares with, and
the tests.

``bronze`` is a relation with the columns of bronze. The columns that follow from others (window, service, dt)
are left out.
"""

from __future__ import annotations

from typing import Final

RESOLVED: Final = """
    hops AS (
        SELECT rank, run, peer_id, arg_min(origin, (routes, seq)) AS hop FROM bronze
        WHERE direction = 'in' AND type = 'request' AND origin IS NOT NULL GROUP BY ALL
    ),
    resolved AS (
        SELECT b.* REPLACE (CASE WHEN direction = 'in' THEN origin ELSE coalesce(origin, hop) END AS origin)
        FROM bronze b LEFT JOIN hops USING (rank, run, peer_id)
    )
"""

LEGS: Final = """
    legs AS (
        SELECT rank, run, origin, hash(run, origin) AS key, matchtag, seq, ts_ns, topic, userid, direction,
            type = 'request' AND (direction = 'in' OR via_id = 0) AS asks,
            type = 'request' AND flags & 64 <> 0 AS streaming,
            CASE WHEN type = 'response' THEN errnum WHEN direction = 'denied' AND via_id <> 0 THEN reason ELSE 0 END
                AS errnum,
            coalesce(CASE WHEN type = 'response' AND direction = 'in' THEN via_role ELSE role END, '')
                NOT IN ('child', 'parent') AS entered,
            CASE WHEN role IN ('child', 'parent') THEN peer ELSE role END AS source,
            CASE WHEN via_role IN ('child', 'parent') THEN via ELSE via_role END AS target,
            coalesce(type = 'request' AND via_role = 'own' AND capture = 'in', false) AS unseen
        FROM {rows}
        WHERE matchtag <> 0 AND origin IS NOT NULL AND (
            (type = 'request' AND direction <> 'out' AND flags & 4 = 0)
            OR (type = 'response' AND direction <> 'denied'))
    )
"""
"""Rows that calls are made of; ``rows`` is bronze or resolved."""

CALLS: Final = """
    asked AS (
        SELECT *, max(CASE WHEN asks THEN seq END) OVER w AS call, lead(asks) OVER n AS taken
        FROM legs WINDOW n AS (PARTITION BY key, matchtag, rank ORDER BY seq),
            w AS (PARTITION BY key, matchtag, rank ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
    ),
    ended AS (
        SELECT key, matchtag, rank, call, CASE WHEN bool_or(streaming AND asks) THEN min(seq) FILTER (errnum <> 0)
            ELSE min(seq) FILTER (NOT asks) END AS last_seq
        FROM asked WHERE call IS NOT NULL GROUP BY key, matchtag, rank, call
    ),
    closed AS (
        SELECT a.*, a.call IS NULL OR a.seq > coalesce(e.last_seq, a.seq) AS orphan
        FROM asked a LEFT JOIN ended e USING (key, matchtag, rank, call)
    ),
    calls AS (
        SELECT rank, any_value(run) AS run, any_value(origin) AS origin, matchtag, call,
            any_value(ts_ns) FILTER (asks) AS ts_ns, any_value(topic) FILTER (asks) AS topic,
            any_value(userid) FILTER (asks) AS userid, bool_or(streaming AND asks) AS streaming,
            any_value(direction) FILTER (asks) AS asked_how, any_value(entered) FILTER (asks) AS entered,
            any_value(source) FILTER (asks) AS source, any_value(target) FILTER (asks) AS target,
            bool_or(unseen AND asks) AS asked_unseen,
            min(ts_ns) FILTER (NOT asks) AS first_ns, max(errnum) AS errnum,
            count(*) FILTER (NOT asks AND direction = 'in') AS n_in,
            count(*) FILTER (NOT asks AND direction <> 'in') AS n_out,
            count(*) FILTER (NOT asks AND direction <> 'in' AND errnum <> 0) AS n_err,
            max(ts_ns) FILTER (NOT asks AND (direction = 'in' OR errnum <> 0)) AS last_in,
            max(ts_ns) FILTER (NOT asks) AS last_any,
            bool_or(coalesce(taken, false)) AS taken
        FROM closed WHERE NOT orphan GROUP BY rank, key, matchtag, call
    ),
    hop AS (
        SELECT *, CASE WHEN n_in > 0 THEN n_in + n_err ELSE n_out END AS n_responses,
            asked_unseen AND n_in + n_out = 0 AS unseen,
            CASE WHEN first_ns IS NOT NULL THEN greatest(first_ns - ts_ns, 0) END AS lat_ns
        FROM calls WHERE asked_how = 'in'
    ),
    rpc AS (
        SELECT *, taken AND NOT unseen AND errnum = 0 AND (streaming OR n_responses = 0) AS reused
        FROM hop WHERE entered
    )
"""

LATENCY: Final = """
    SELECT bucket, rank, topic, lat_ns | ((1::BIGINT << greatest(length(bin(lat_ns)) - 5, 0)::BIGINT) - 1) AS le_ns,
        count(lat_ns) AS n, coalesce(sum(lat_ns), 0)::BIGINT AS sum_ns, max(lat_ns) AS max_ns,
        count(*) FILTER (cause = 1) AS unmatched_no_response, count(*) FILTER (cause = 6) AS not_captured,
        count(*) FILTER (cause = 2) AS unmatched_no_request, count(*) FILTER (cause = 3) AS unmatched_noresponse,
        count(*) FILTER (cause = 4) AS unmatched_untagged, count(*) FILTER (cause = 5) AS reused_tags
    FROM (
        SELECT ts_ns // 60000000000 AS bucket, rank, topic, lat_ns,
            CASE WHEN unseen THEN 6 WHEN reused THEN 5 WHEN n_responses = 0 THEN 1 END AS cause
        FROM rpc
        UNION ALL SELECT ts_ns // 60000000000, rank, topic, NULL, 2 FROM closed
            WHERE orphan AND direction = 'in' AND NOT asks AND entered
        UNION ALL SELECT ts_ns // 60000000000, rank, topic, NULL, CASE WHEN flags & 4 <> 0 THEN 3 ELSE 4 END
        FROM bronze WHERE type = 'request' AND direction = 'in' AND coalesce(role, '') NOT IN ('child', 'parent')
            AND (flags & 4 <> 0 OR matchtag = 0 OR origin IS NULL)
    ) GROUP BY ALL
"""

TRAFFIC: Final = """
    SELECT ts_ns // 10000000000 AS bucket, rank, writer, transport, direction, kind, topic, type, userid,
        count(*) AS n, sum(payload_len) AS payload_bytes, sum(wire_len) AS wire_bytes
    FROM bronze
    WHERE kind <> 'flux' OR (coalesce(role, '') NOT IN ('child', 'parent')
        AND (direction <> 'denied' OR via_id = 0 OR coalesce(role, '') = 'web')) GROUP BY ALL
"""


def matched(select: str, *, others: bool = True) -> str:
    """A query over calls; ``others``: bronze has rows other than ``in``, whose origins are to be found."""
    legs = LEGS.format(rows="resolved" if others else "bronze")
    return "WITH " + ",".join([RESOLVED] * others + [legs, CALLS]) + select
