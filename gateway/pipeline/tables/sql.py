"""Every gold table in the SQL of DuckDB: what is made without a JVM, and what Spark is held against.

A table (``TABLES``) is a query over ``bronze``, relations that a caller gives besides, and steps that are made of them
(``STEPS``, in order; ``VIEWS`` of them are cheap to compute each time). Given are

``bronze``        rows of bronze
``reaching``      rows of bronze of more days, for NFP's jobs, which last longer than the rest
``before_calls``, ``before_events``, ``before_jobs``, ``before_hops``
                  what an earlier batch left open; empty where all of bronze is given
``since_ns``      a variable: calls that are open and not older, and jobs that were heard of since, are left open

What is left open is in ``OPEN``: the request of each open call with its first and last response (the last stands for
those between, by ``weight``), the last event of each sequence, the rows of open jobs, the final row of those that have
ended (so that what follows is known to be late), and the hop of each peer. What the steps mean stands in ``calls``,
``endpoints``, ``event_gaps``, ``job_outcomes`` and ``order_check``.
"""

from __future__ import annotations

from typing import Final

from gateway.pipeline.schema import ERRNO_MAX, LONG_MAX, table_named

_BROKERS: Final = "('child', 'parent')"
_FINAL: Final = "('COMPLETED', 'FAILED', 'EXPIRED', 'CANCELLED', 'JOB NOT FOUND')"
JOB: Final = ("kind", "detail", "ts_ns", "writer", "seq")
EVENT: Final = ("rank", "writer", "run", "peer", "peer_id", "type", "direction", "event_seq", "seq", "ts_ns")
LEG: Final = (
    "rank", "run", "origin", "matchtag", "seq", "ts_ns", "topic", "userid", "what", "streaming", "errnum", "entered",
    "source", "target", "unseen", "weight",
)  # fmt: skip
HOP: Final = ("rank", "run", "peer_id", "hop", "routes", "seq", "seen_ns")
"""Columns of what is left open."""
MACROS: Final = (
    "CREATE MACRO fact(detail, name) AS CASE WHEN json_valid(detail) THEN detail->>name END",
    f"CREATE MACRO of_broker(role) AS coalesce(role IN {_BROKERS}, false)",
    "CREATE MACRO since(start_ns, end_ns) AS CASE WHEN end_ns < start_ns THEN 0 ELSE end_ns - start_ns END",
    f"CREATE MACRO within(total_ns) AS least(total_ns, {LONG_MAX})::BIGINT",
    "CREATE MACRO day_of(ns) AS CAST(make_timestamp(ns // 1000) AS DATE)",
)

_HOPS: Final = """
    SELECT rank, run, peer_id, arg_min(hop, place) AS hop, min(place) >> 48 AS routes,
        min(place) & ((1::BIGINT << 48) - 1) AS seq, max(seen_ns) AS seen_ns
    FROM (SELECT rank, run, peer_id, hop, (routes << 48) + seq AS place, seen_ns FROM before_hops UNION ALL BY NAME
        SELECT rank, run, peer_id, origin AS hop, (routes::BIGINT << 48) + seq AS place, ts_ns AS seen_ns FROM bronze
        WHERE direction = 'in' AND type = 'request' AND origin IS NOT NULL)
    GROUP BY ALL"""
_RESOLVED: Final = """
    SELECT * FROM bronze WHERE direction = 'in'
    UNION ALL SELECT b.* REPLACE (coalesce(origin, hop) AS origin) FROM bronze b
    LEFT JOIN (SELECT rank, run, peer_id, hop FROM hops) USING (rank, run, peer_id) WHERE direction <> 'in'"""
_LEGS: Final = """
    SELECT rank, run, origin, hash(run, origin) AS key, matchtag, seq, ts_ns, topic, userid, what,
        type = 'request' AND flags & 64 <> 0 AS streaming,
        CASE WHEN type = 'response' THEN errnum WHEN what = 4 THEN reason ELSE 0 END::BIGINT AS errnum,
        NOT of_broker(CASE WHEN what = 3 THEN via_role ELSE role END) AS entered,
        CASE WHEN of_broker(role) THEN peer ELSE role END AS source,
        CASE WHEN of_broker(via_role) THEN via ELSE via_role END AS target,
        coalesce(type = 'request' AND via_role = 'own' AND capture = 'in', false) AS unseen, 1::BIGINT AS weight
    FROM (SELECT *, CASE WHEN type = 'request' AND direction = 'in' THEN 1 WHEN type = 'request' AND via_id = 0 THEN 2
            WHEN direction = 'in' THEN 3 ELSE 4 END::TINYINT AS what
        FROM resolved WHERE matchtag <> 0 AND origin IS NOT NULL AND (
            (type = 'request' AND direction <> 'out' AND flags & 4 = 0)
            OR (type = 'response' AND direction <> 'denied')))
    UNION ALL BY NAME SELECT *, hash(run, origin) AS key FROM before_calls"""
_CLOSED: Final = """
    WITH asked AS (
        SELECT *, max(CASE WHEN asks THEN seq END) OVER so_far AS call, lead(asks) OVER next AS taken
        FROM (SELECT rowid AS leg, key, matchtag, rank, seq, ts_ns, what, streaming, errnum, weight, what <= 2 AS asks
            FROM legs)
        WINDOW next AS (PARTITION BY key, matchtag, rank ORDER BY seq), so_far AS (
            PARTITION BY key, matchtag, rank ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
    ), ended AS (
        SELECT key, matchtag, rank, call, CASE WHEN bool_or(streaming AND asks) THEN min(seq) FILTER (errnum <> 0)
            ELSE min(seq) FILTER (NOT asks) END AS last_seq
        FROM asked WHERE call IS NOT NULL GROUP BY key, matchtag, rank, call
    )
    SELECT a.*, a.call IS NULL OR a.seq > coalesce(e.last_seq, a.seq) AS orphan
    FROM asked a LEFT JOIN ended e USING (key, matchtag, rank, call)"""
_CALLS: Final = """
    WITH counted AS (
        SELECT min(leg) FILTER (asks) AS leg, call, min(ts_ns) FILTER (NOT asks) AS first_ns, max(errnum) AS errnum,
            coalesce(sum(weight) FILTER (what = 3), 0)::BIGINT AS n_in,
            coalesce(sum(weight) FILTER (what = 4), 0)::BIGINT AS n_out,
            count(*) FILTER (what = 4 AND errnum <> 0) AS n_failed,
            max(ts_ns) FILTER (what = 3 OR (what = 4 AND errnum <> 0)) AS last_seen,
            max(ts_ns) FILTER (NOT asks) AS last_any, coalesce(bool_or(taken), false) AS taken
        FROM closed WHERE NOT orphan GROUP BY rank, key, matchtag, call
    ), answered AS (
        SELECT l.* EXCLUDE (seq, ts_ns, key, errnum, weight, unseen), l.ts_ns AS req_ns, l.unseen AS asked_unseen,
            c.call, c.first_ns, c.errnum, c.taken,
            CASE WHEN n_in > 0 THEN n_in + n_failed ELSE n_out END AS n_responses,
            CASE WHEN n_in > 0 THEN last_seen ELSE last_any END AS last_ns
        FROM counted c JOIN legs l ON l.rowid = c.leg
    ), seen AS (
        SELECT * EXCLUDE (asked_unseen), asked_unseen AND n_responses = 0 AS unseen,
            errnum <> 0 OR (NOT streaming AND n_responses > 0) AS ended
        FROM answered
    ), newest AS (SELECT rank, run, max(seq) AS newest FROM bronze GROUP BY ALL)
    SELECT s.* EXCLUDE (ended, taken), taken AND NOT ended AND NOT unseen AS reused,
        what = 1 AND NOT ended AND (unseen OR NOT taken) AND req_ns >= getvariable('since_ns')
            AND NOT (unseen AND coalesce(newest > call, false)) AS open
    FROM seen s LEFT JOIN newest USING (rank, run)
    UNION ALL BY NAME SELECT l.rank, l.run, l.origin, l.matchtag, l.what, l.seq AS call, l.topic, l.entered,
        l.ts_ns AS first_ns, l.errnum, l.weight AS n_responses, false AS streaming, false AS unseen, false AS reused,
        false AS open
    FROM closed c JOIN legs l ON l.rowid = c.leg WHERE c.orphan AND c.what = 3"""
_SETTLED: Final = """
    SELECT *, since(req_ns, first_ns) AS lat_ns FROM calls WHERE NOT open"""
_RPC: Final = """
    SELECT make_timestamp(req_ns // 1000) AS req_ts, req_ns AS ts_ns, rank, origin, matchtag, topic,
        split_part(topic, '.', 1) AS service, userid, lat_ns, since(req_ns, last_ns) AS last_ns,
        CASE WHEN n_responses > 0 THEN errnum END AS errnum, n_responses, streaming,
        CASE WHEN n_responses > 0 THEN 'answered' WHEN unseen THEN 'not captured' WHEN reused THEN 'reused'
            ELSE 'unanswered' END AS outcome,
        day_of(req_ns) AS dt
    FROM settled WHERE what = 1 AND entered"""
_REFUSALS: Final = """
    SELECT * REPLACE (CASE WHEN link THEN coalesce(fact(detail, 'address'), peer) ELSE peer END AS peer,
        CASE WHEN link THEN coalesce(TRY_CAST(fact(detail, 'uid') AS BIGINT), userid) ELSE userid END AS userid,
        CASE WHEN link THEN 'link' WHEN transport = 'websocket' THEN 'web' ELSE 'request' END AS kind,
        CASE WHEN NOT link THEN topic END AS topic),
        CASE WHEN link THEN coalesce(TRY_CAST(fact(detail, 'errno') AS INTEGER), reason) ELSE reason END AS errno
    FROM (SELECT *, coalesce(kind = 'state' AND topic = 'denied.link', false) AS link FROM bronze)
    WHERE link OR direction = 'denied'"""
_FAILED: Final = f"""
    SELECT ts_ns // 60000000000 AS bucket, rank, topic, errno, kind, userid, count(*) AS n FROM (
        SELECT ts_ns, rank, topic, least(errnum, {ERRNO_MAX}) AS errno, 'answer' AS kind, userid FROM rpc
        WHERE errnum > 0 AND NOT (streaming AND errnum = 61)
        UNION ALL SELECT ts_ns, rank, topic, errno, kind, userid FROM refusals
        WHERE NOT coalesce(ends_with(topic, '.disconnect'), false) AND ((via_id = 0 AND NOT of_broker(role))
            OR coalesce(type <> 'request' OR matchtag = 0 OR origin IS NULL OR flags & 4 <> 0, true)))
    WHERE NOT coalesce(errno IN (1, 13), false) GROUP BY ALL"""
_EVENTS: Final = f"""
    SELECT *, CASE WHEN rank > 0 THEN peer_id ELSE 0 END AS source
    FROM (SELECT * FROM before_events UNION ALL BY NAME SELECT {", ".join(EVENT)} FROM bronze)
    WHERE type = 'event' AND direction = 'in' AND event_seq > 0"""
_JOBS: Final = f"SELECT {', '.join(JOB)} FROM reaching WHERE kind = 'nfp'"
_FACTS: Final = f"""
    SELECT *, coalesce(status IN {_FINAL}, false) AS final FROM (
        SELECT *, (ts_ns, writer, seq) AS place, {
    ", ".join(
        f"fact(detail, '{name}') AS {name}"
        for name in ("uuid", "service", "task", "client", "status", "worker")
    )
}, TRY_CAST(fact(detail, 'attempt') AS BIGINT) AS attempt
        FROM (SELECT *, false AS fresh FROM before_jobs UNION ALL BY NAME SELECT *, true AS fresh FROM jobs)
        WHERE kind = 'nfp') WHERE uuid IS NOT NULL"""
_HEARD: Final = """
    SELECT uuid, max(ts_ns) >= getvariable('since_ns') AS recent, bool_or(final) AS ended,
        (bool_or(final AND fresh) OR max(ts_ns) < getvariable('since_ns')) AND NOT bool_or(final AND NOT fresh) AS told
    FROM facts GROUP BY uuid"""

STEPS: Final = {
    "hops": _HOPS, "resolved": _RESOLVED, "legs": _LEGS, "closed": _CLOSED, "calls": _CALLS, "settled": _SETTLED,
    "rpc": _RPC, "refusals": _REFUSALS, "failed": _FAILED, "events": _EVENTS, "jobs": _JOBS, "facts": _FACTS,
    "heard": _HEARD,
}  # fmt: skip
VIEWS: Final = frozenset(("resolved", "settled", "rpc", "refusals", "failed", "events", "facts", "heard"))


def _windows(seconds: int, select: str) -> str:
    """A query by ``bucket`` with the begin of the window and its day."""
    us = f"bucket * {seconds}000000"
    return (
        f"SELECT *, make_timestamp({us}) AS window, CAST(make_timestamp({us}) AS DATE) AS dt FROM ({select})"
    )


_SERVICE: Final = "split_part(topic, '.', 1) AS service"
_SUMS: Final = "count(*) AS n, sum(payload_len)::BIGINT AS payload_bytes, sum(wire_len)::BIGINT AS wire_bytes"
_TRAFFIC: Final = f"""
    SELECT ts_ns // 10000000000 AS bucket, rank, writer, transport, direction, kind, topic, type, userid, {_SERVICE},
        {_SUMS}
    FROM bronze
    WHERE kind <> 'flux' OR NOT (of_broker(role) OR coalesce(direction = 'denied' AND via_id <> 0 AND role <> 'web',
        false)) GROUP BY ALL"""
_TREE_TRAFFIC: Final = f"""
    SELECT ts_ns // 10000000000 AS bucket, rank, peer, role, direction, type, {_SERVICE}, {_SUMS}
    FROM bronze WHERE kind = 'flux' AND direction <> 'denied' AND of_broker(role) GROUP BY ALL"""
_RPC_LATENCY: Final = f"""
    SELECT bucket, rank, topic, {_SERVICE},
        lat_ns | ((1::BIGINT << greatest(length(bin(lat_ns)) - 5, 0)::BIGINT) - 1) AS le_ns,
        count(lat_ns) AS n, within(coalesce(sum(lat_ns), 0)) AS sum_ns, max(lat_ns) AS max_ns,
        count(*) FILTER (cause = 1) AS unmatched_no_response, count(*) FILTER (cause = 6) AS not_captured,
        count(*) FILTER (cause = 2) AS unmatched_no_request, count(*) FILTER (cause = 3) AS unmatched_noresponse,
        count(*) FILTER (cause = 4) AS unmatched_untagged, count(*) FILTER (cause = 5) AS reused_tags
    FROM (
        SELECT coalesce(req_ns, first_ns) // 60000000000 AS bucket, rank, topic, lat_ns, CASE WHEN what = 3 THEN 2
            WHEN unseen THEN 6 WHEN reused THEN 5 WHEN n_responses = 0 THEN 1 END AS cause
        FROM settled WHERE what <> 2 AND entered
        UNION ALL SELECT ts_ns // 60000000000, rank, topic, NULL, CASE WHEN flags & 4 <> 0 THEN 3 ELSE 4 END
        FROM bronze WHERE type = 'request' AND direction = 'in' AND NOT of_broker(role)
            AND (flags & 4 <> 0 OR matchtag = 0 OR origin IS NULL)
    ) GROUP BY ALL"""
_TREE_LATENCY: Final = f"""
    SELECT req_ns // 60000000000 AS bucket, rank, source, target, topic, {_SERVICE}, count(*) AS n,
        within(sum(lat_ns)) AS sum_ns, max(lat_ns) AS max_ns
    FROM settled WHERE what = 1 AND lat_ns IS NOT NULL GROUP BY ALL"""
_DENIED: Final = """
    SELECT ts, rank, transport, claimed, rolemask, dt, peer, userid, topic, errno, kind
    FROM refusals WHERE errno IN (1, 13)
    UNION ALL SELECT ts, rank, transport, NULL, NULL, dt, via, NULL, topic, errnum, 'answer' FROM bronze
    WHERE type = 'response' AND direction = 'in' AND errnum IN (1, 13) AND NOT of_broker(role)"""
_EVENT_GAPS: Final = """
    SELECT *, make_timestamp(ts_ns // 1000) AS ts, day_of(ts_ns) AS dt,
        CASE WHEN step = 0 THEN 'duplicate' WHEN step > 2147483647 THEN 'reorder' ELSE 'gap' END AS kind,
        CASE WHEN step BETWEEN 1 AND 2147483647 THEN step - 1 ELSE 0 END AS missing
    FROM (
        SELECT *, (next_seq - prev_seq + 4294967295) % 4294967295 AS step FROM (
            SELECT rank, writer, run, peer, ts_ns, event_seq AS next_seq, lag(event_seq) OVER (
                PARTITION BY rank, writer, run, source ORDER BY seq) AS prev_seq FROM events)
        WHERE prev_seq IS NOT NULL)
    WHERE step <> 1"""
_ORDER_CHECK: Final = """
    WITH sides AS (
        SELECT rank, run, direction, type, seq, ts, dt, coalesce(nodeid, errnum, event_seq) AS word, topic,
            CASE WHEN type <> 'event' THEN origin END AS origin,
            CASE WHEN type = 'event' THEN 0 WHEN direction = 'in' THEN via_id ELSE peer_id END AS dest,
            CASE WHEN type = 'event' THEN NULL WHEN direction = 'in' THEN via ELSE peer END AS peer,
            CASE WHEN type = 'event' THEN 0 ELSE matchtag END AS tag
        FROM resolved WHERE kind = 'flux' AND direction <> 'denied'
            AND (rank, run) IN (SELECT (rank, run) FROM bronze WHERE direction = 'out' AND kind = 'flux')
            AND CASE WHEN type = 'event' THEN event_seq > 0 ELSE origin IS NOT NULL END
    ), nth AS (
        SELECT *, row_number() OVER (
            PARTITION BY rank, run, direction, type, origin, dest, tag, word, topic ORDER BY seq) AS nth FROM sides
    ), pairs AS (
        SELECT i.*, o.seq AS out_seq FROM (SELECT * FROM nth WHERE direction = 'in') i
        LEFT JOIN (SELECT * FROM nth WHERE direction = 'out') o ON i.rank = o.rank AND i.run = o.run
            AND i.type = o.type AND i.origin IS NOT DISTINCT FROM o.origin AND i.dest = o.dest AND i.tag = o.tag
            AND i.word IS NOT DISTINCT FROM o.word AND i.topic IS NOT DISTINCT FROM o.topic AND i.nth = o.nth
    ), overtaken AS (
        SELECT *, coalesce(max(CASE WHEN out_seq IS NOT NULL THEN seq END) OVER (
            PARTITION BY rank, run, origin, dest, type ORDER BY out_seq
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > seq, false) AND out_seq IS NOT NULL AS late FROM pairs)
    SELECT rank, run, origin, max(peer) AS peer, type, count(*) AS n, count(*) FILTER (late) AS out_of_order,
        count(*) FILTER (out_seq IS NULL) AS missing, min(ts) AS first_ts, max(ts) AS last_ts, dt
    FROM overtaken GROUP BY rank, run, origin, dest, type, dt"""
_USER_USAGE: Final = """
    SELECT dt, userid, sum(requests)::BIGINT AS requests, sum(responses)::BIGINT AS responses,
        sum(events)::BIGINT AS events, sum(denied)::BIGINT AS denied, sum(errors)::BIGINT AS errors,
        sum(payload)::BIGINT AS payload_bytes, sum(wire)::BIGINT AS wire_bytes, within(sum(ns)) AS rpc_ns
    FROM (
        SELECT dt, userid, coalesce(type = 'request' AND kind = 'flux', false)::INT AS requests,
            coalesce(type = 'response' AND kind = 'flux', false)::INT AS responses,
            coalesce(type = 'event' AND kind = 'flux', false)::INT AS events, 0 AS denied, 0 AS errors,
            payload_len AS payload, wire_len AS wire, 0 AS ns
        FROM bronze WHERE direction = 'in' AND NOT (kind = 'flux' AND of_broker(role))
        UNION ALL SELECT dt, userid, 0, 0, 0, 1, 0, 0, 0, 0 FROM refusals WHERE errno IN (1, 13)
        UNION ALL SELECT day_of(bucket * 60000000000), userid, 0, 0, 0, 0, n, 0, 0, 0 FROM failed
        UNION ALL SELECT dt, userid, 0, 0, 0, 0, 0, 0, 0, lat_ns FROM rpc WHERE lat_ns IS NOT NULL)
    WHERE userid IS NOT NULL GROUP BY dt, userid"""
_JOB_OUTCOMES: Final = """
    SELECT *, make_timestamp(from_ns // 1000) AS t_submit, make_timestamp(to_ns // 1000) AS t_done,
        to_ns - from_ns AS duration_ns, day_of(from_ns) AS dt
    FROM (
        SELECT uuid, arg_min(service, place) AS service, arg_min(task, place) AS task, arg_min(client, place) AS client,
            arg_max(status, place) AS status, coalesce(max(attempt), 1) AS attempts, count(DISTINCT worker) AS workers,
            min(ts_ns) AS from_ns, min(ts_ns) FILTER (final) AS to_ns
        FROM facts WHERE uuid IN (SELECT uuid FROM heard WHERE told) GROUP BY uuid)"""
_NOTIFICATIONS: Final = """
    SELECT ts, fact(detail, 'exchange') AS exchange, fact(detail, 'topic') AS topic,
        fact(detail, 'event_type') AS event_type, fact(detail, 'priority') AS priority,
        fact(detail, 'publisher_id') AS publisher_id, payload_len, dt
    FROM bronze WHERE kind = 'oslo' AND direction = 'in' AND fact(detail, 'what') = 'notification'"""
_SLOW: Final = """
    SELECT ts, rank, CASE WHEN what = 'shed' THEN writer WHEN peer_id <> 0 THEN coalesce(peer, fact(detail, 'peer'))
            ELSE fact(detail, 'peer') END AS peer, what,
        TRY_CAST(fact(detail, CASE what WHEN 'drop' THEN 'events' WHEN 'shed' THEN 'records' ELSE 'discarded' END)
            AS BIGINT) AS events,
        TRY_CAST(fact(detail, 'bytes') AS BIGINT) AS bytes, coalesce(fact(detail, 'reason'), fact(detail, 'cause'))
            AS reason, dt
    FROM (SELECT *, CASE topic WHEN 'drop' THEN 'drop' WHEN 'gap' THEN 'shed' WHEN 'link.down' THEN 'discarded' END
        AS what FROM bronze WHERE kind = 'state')
    WHERE what IN ('drop', 'shed') OR TRY_CAST(fact(detail, 'discarded') AS BIGINT) > 0 AND what = 'discarded'"""

TABLES: Final = {
    "traffic": _windows(10, _TRAFFIC),
    "tree_traffic": _windows(10, _TREE_TRAFFIC),
    "rpc": "FROM rpc",
    "rpc_latency": _windows(60, _RPC_LATENCY),
    "tree_latency": _windows(60, _TREE_LATENCY),
    "denied": _DENIED,
    "errors": _windows(60, f"SELECT *, {_SERVICE} FROM failed"),
    "event_gaps": _EVENT_GAPS,
    "order_check": _ORDER_CHECK,
    "user_usage": _USER_USAGE,
    "job_outcomes": _JOB_OUTCOMES,
    "notifications": _NOTIFICATIONS,
    "slow": _SLOW,
}
"""Each gold table as one query; ``query`` gives it the columns of the schema."""

_THEIRS: Final = """
    SELECT legs.* FROM legs JOIN (SELECT rank, run, origin, matchtag, call FROM calls WHERE open)
        USING (rank, run, origin, matchtag) WHERE seq >= call"""
_SAME: Final = ", ".join(
    f"any_value({name}) AS {name}"
    for name in ("streaming", "errnum", "topic", "userid", "entered", "source", "target", "unseen")
)
OPEN: Final = {
    "calls": f"""
        WITH theirs AS MATERIALIZED ({_THEIRS})
        SELECT {", ".join(LEG)} FROM theirs WHERE what <= 2
        UNION ALL BY NAME SELECT rank, run, origin, matchtag, what, {_SAME}, min(seq) AS seq, min(ts_ns) AS ts_ns,
            1::BIGINT AS weight FROM theirs WHERE what > 2 GROUP BY rank, run, origin, matchtag, what
        UNION ALL BY NAME SELECT rank, run, origin, matchtag, what, {_SAME}, max(seq) AS seq, max(ts_ns) AS ts_ns,
            (sum(weight) - 1)::BIGINT AS weight FROM theirs WHERE what > 2 GROUP BY rank, run, origin, matchtag, what
        HAVING sum(weight) > 1""",
    "events": f"""
        SELECT {", ".join(EVENT)} FROM events WHERE ts_ns >= getvariable('since_ns')
        QUALIFY row_number() OVER (PARTITION BY rank, writer, run, source ORDER BY seq DESC) = 1""",
    "jobs": f"""
        SELECT {", ".join(JOB)} FROM facts JOIN heard USING (uuid) WHERE recent AND (NOT ended OR final)
        QUALIFY NOT ended OR row_number() OVER (PARTITION BY uuid, final ORDER BY ts_ns, seq) = 1""",
    "hops": f"SELECT {', '.join(HOP)} FROM hops WHERE seen_ns >= getvariable('since_ns')",
}  # fmt: skip
"""What is left open, by name."""


def query(table: str) -> str:
    """The rows of a gold table, in the columns of its schema."""
    names = ", ".join(f'"{name}"' for name in table_named(table).names)
    return f"SELECT {names} FROM ({TABLES[table]})"
