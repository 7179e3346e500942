"""The gold tables in DuckDB's SQL: the third computation, and what the benchmarks compare with.

``bronze`` in the queries is a relation with the columns of bronze: Parquet files, or an Arrow table. Without
the columns that follow from others (``service``), except where the plain name asks for it.
"""

from typing import Any

from gateway.pipeline.tables.sql import LATENCY, RESOLVED, TRAFFIC, matched

_BEGIN = "make_timestamp(bucket * {s} * 1000000)"
_DAY = "CAST(make_timestamp({us}) AS DATE) AS dt"
_REFUSALS = """
    SELECT * REPLACE (CASE WHEN link THEN detail->>'address' ELSE peer END AS peer,
        CASE WHEN link THEN CAST(detail->>'uid' AS BIGINT) ELSE userid END AS userid,
        CASE WHEN link THEN 'link' WHEN transport = 'websocket' THEN 'web' ELSE 'request' END AS kind,
        CASE WHEN link THEN NULL ELSE topic END AS topic),
        CASE WHEN link THEN CAST(detail->>'errno' AS INT) ELSE reason END AS errno
    FROM (SELECT *, coalesce(kind = 'state' AND topic = 'denied.link', false) AS link FROM bronze)
    WHERE link OR direction = 'denied'"""
_ERRORS = f"""
    SELECT ts_ns // 60000000000 AS bucket, rank, topic, errno, kind, userid, count(*) AS n FROM (
        SELECT ts_ns, rank, topic, errnum AS errno, 'answer' AS kind, userid FROM rpc
        WHERE n_responses > 0 AND errnum > 0 AND NOT (streaming AND errnum = 61)
        UNION ALL SELECT ts_ns, rank, topic, errno, kind, userid FROM ({_REFUSALS})
        WHERE NOT coalesce(ends_with(topic, '.disconnect'), false)
            AND ((via_id = 0 AND coalesce(role, '') NOT IN ('child', 'parent'))
            OR coalesce(type <> 'request' OR matchtag = 0 OR origin IS NULL OR flags & 4 <> 0, true)))
    WHERE errno NOT IN (1, 13) GROUP BY ALL"""

QUERIES = {
    "traffic": f"SELECT {_BEGIN.format(s=10)} AS window, *, {_DAY.format(us='bucket * 10000000')} FROM ({TRAFFIC})",
    "rpc": matched(
        f"""
        SELECT make_timestamp(ts_ns // 1000) AS req_ts, ts_ns, rank, origin, matchtag, topic, userid, lat_ns,
            CASE WHEN n_responses > 0 THEN greatest(CASE WHEN n_in > 0 THEN last_in ELSE last_any END - ts_ns, 0)
                END AS last_ns,
            CASE WHEN n_responses > 0 THEN errnum END AS errnum, n_responses, streaming,
            CASE WHEN n_responses > 0 THEN 'answered' WHEN unseen THEN 'not captured' WHEN reused THEN 'reused'
                ELSE 'unanswered' END AS outcome,
            {_DAY.format(us="ts_ns // 1000")} FROM rpc"""
    ),
    "rpc_latency": f"SELECT {_BEGIN.format(s=60)} AS window, *, {_DAY.format(us='bucket * 60000000')} "
    f"FROM ({matched(LATENCY)})",
    "tree_traffic": f"""
        SELECT {_BEGIN.format(s=10)} AS window, *, {_DAY.format(us="bucket * 10000000")} FROM (
            SELECT ts_ns // 10000000000 AS bucket, rank, peer, role, direction, type,
                split_part(topic, '.', 1) AS service, count(*) AS n, sum(payload_len) AS payload_bytes,
                sum(wire_len) AS wire_bytes
            FROM bronze WHERE kind = 'flux' AND direction <> 'denied' AND role IN ('child', 'parent') GROUP BY ALL)""",
    "tree_latency": matched(
        f"""
        SELECT {_BEGIN.format(s=60)} AS window, *, {_DAY.format(us="bucket * 60000000")} FROM (
            SELECT ts_ns // 60000000000 AS bucket, rank, source, target, topic, count(*) AS n,
                sum(lat_ns)::BIGINT AS sum_ns, max(lat_ns) AS max_ns
            FROM hop WHERE lat_ns IS NOT NULL GROUP BY ALL)"""
    ),
    "denied": f"""
        SELECT ts, rank, transport, claimed, rolemask, dt, peer, userid, topic, errno, kind
        FROM ({_REFUSALS}) WHERE errno IN (1, 13)
        UNION ALL SELECT ts, rank, transport, NULL, NULL, dt, via, NULL, topic, errnum, 'answer' FROM bronze
        WHERE type = 'response' AND direction = 'in' AND errnum IN (1, 13)
            AND coalesce(role, '') NOT IN ('child', 'parent')""",
    "errors": matched(
        f"""
        SELECT {_BEGIN.format(s=60)} AS window, *, {_DAY.format(us="bucket * 60000000")} FROM ({_ERRORS})"""
    ),
    "event_gaps": """
        SELECT *, CASE WHEN step = 0 THEN 'duplicate' WHEN step > 2147483647 THEN 'reorder' ELSE 'gap' END AS kind,
            CASE WHEN step BETWEEN 1 AND 2147483647 THEN step - 1 ELSE 0 END AS missing
        FROM (
            SELECT *, (next_seq - prev_seq + 4294967295) % 4294967295 AS step FROM (
                SELECT rank, writer, run, peer, ts, dt, event_seq AS next_seq, lag(event_seq) OVER (
                    PARTITION BY rank, run, CASE WHEN rank > 0 THEN peer_id END ORDER BY seq) AS prev_seq
                FROM bronze WHERE type = 'event' AND direction = 'in' AND event_seq > 0)
            WHERE prev_seq IS NOT NULL)
        WHERE step <> 1""",
    "order_check": f"""
        WITH {RESOLVED},
        sides AS (
            SELECT rank, run, direction, type, seq, ts, dt, coalesce(nodeid, errnum, event_seq) AS word, topic,
                CASE WHEN type <> 'event' THEN origin END AS origin,
                CASE WHEN type = 'event' THEN 0 WHEN direction = 'in' THEN via_id ELSE peer_id END AS dest,
                CASE WHEN type = 'event' THEN NULL WHEN direction = 'in' THEN via ELSE peer END AS peer,
                CASE WHEN type = 'event' THEN 0 ELSE matchtag END AS tag
            FROM resolved WHERE kind = 'flux' AND direction <> 'denied'
                AND CASE WHEN type = 'event' THEN event_seq > 0 ELSE origin IS NOT NULL END
        ),
        nth AS (
            SELECT *, row_number() OVER (
                PARTITION BY rank, run, direction, type, origin, dest, tag, word, topic ORDER BY seq) AS nth
                FROM sides ), pairs AS ( SELECT i.*, o.seq AS out_seq FROM (SELECT * FROM nth WHERE direction =
                'in') i LEFT JOIN (SELECT * FROM nth WHERE direction = 'out') o ON i.rank = o.rank AND i.run =
                o.run AND i.type = o.type AND i.origin IS NOT DISTINCT FROM o.origin AND i.dest = o.dest AND
                i.tag = o.tag AND i.word = o.word AND i.topic = o.topic AND i.nth = o.nth WHERE (i.rank, i.run)
                IN (SELECT (rank, run) FROM bronze WHERE direction = 'out' AND kind = 'flux') ) SELECT rank,
                run, origin, max(peer) AS peer, type, count(*) AS n, count(*) FILTER (EXISTS ( SELECT 1 FROM
                pairs e WHERE e.rank = p.rank AND e.run = p.run AND e.type = p.type AND e.dest = p.dest AND
                e.origin IS NOT DISTINCT FROM p.origin AND e.seq > p.seq AND e.out_seq < p.out_seq)) AS
                out_of_order, count(*) FILTER (out_seq IS NULL) AS missing, min(ts) AS first_ts, max(ts) AS
                last_ts, dt FROM pairs p GROUP BY rank, run, origin, dest, type, dt""",
    "user_usage": matched(
        f"""
        SELECT dt, userid, sum(requests)::BIGINT AS requests, sum(responses)::BIGINT AS responses,
            sum(events)::BIGINT AS events, sum(denied)::BIGINT AS denied, sum(errors)::BIGINT AS errors,
            sum(payload)::BIGINT AS payload_bytes, sum(wire)::BIGINT AS wire_bytes, sum(ns)::BIGINT AS rpc_ns
        FROM (
            SELECT dt, userid, (type = 'request' AND kind = 'flux')::INT AS requests,
                coalesce(type = 'response', false)::INT AS responses, coalesce(type = 'event', false)::INT AS events,
                0 AS denied, 0 AS errors, payload_len AS payload, wire_len AS wire, 0 AS ns
            FROM bronze WHERE direction = 'in' AND (kind <> 'flux' OR coalesce(role, '') NOT IN ('child', 'parent'))
            UNION ALL SELECT dt, userid, 0, 0, 0, 1, 0, 0, 0, 0 FROM ({_REFUSALS}) WHERE errno IN (1, 13)
            UNION ALL SELECT CAST(make_timestamp(bucket * 60000000) AS DATE), userid, 0, 0, 0, 0, n, 0, 0, 0
            FROM ({_ERRORS})
            UNION ALL SELECT CAST(make_timestamp(ts_ns // 1000) AS DATE), userid, 0, 0, 0, 0, 0, 0, 0, lat_ns
            FROM rpc WHERE lat_ns IS NOT NULL)
        WHERE userid IS NOT NULL GROUP BY dt, userid"""
    ),
    "job_outcomes": """
        WITH facts AS (SELECT ts, ts_ns, (ts_ns, writer, seq) AS place, detail->>'uuid' AS uuid,
            detail->>'status' AS status, detail->>'service' AS service, detail->>'task' AS task,
            detail->>'client' AS client, detail->>'worker' AS worker, CAST(detail->>'attempt' AS BIGINT) AS attempt
            FROM bronze WHERE kind = 'nfp')
        SELECT uuid, arg_min(service, place) FILTER (service IS NOT NULL) AS service,
            arg_min(task, place) FILTER (task IS NOT NULL) AS task,
            arg_min(client, place) FILTER (client IS NOT NULL) AS client,
            arg_max(status, place) FILTER (status IS NOT NULL) AS status,
            coalesce(max(attempt), 1) AS attempts,
            count(DISTINCT worker) AS workers, min(ts) AS t_submit,
            min(ts) FILTER (status IN ('COMPLETED', 'FAILED', 'EXPIRED', 'CANCELLED', 'JOB NOT FOUND')) AS t_done,
            min(ts_ns) FILTER (status IN ('COMPLETED', 'FAILED', 'EXPIRED', 'CANCELLED', 'JOB NOT FOUND'))
                - min(ts_ns) AS duration_ns, CAST(min(ts) AS DATE) AS dt
        FROM facts WHERE uuid IS NOT NULL GROUP BY uuid""",
    "notifications": """
        SELECT ts, detail->>'exchange' AS exchange, detail->>'topic' AS topic, detail->>'event_type' AS event_type,
            detail->>'priority' AS priority, detail->>'publisher_id' AS publisher_id, payload_len, dt
        FROM bronze WHERE kind = 'oslo' AND direction = 'in' AND detail->>'what' = 'notification'""",
    "slow": """
        SELECT * FROM (
            SELECT ts, rank, NULL::BIGINT AS bytes, dt,
                CASE topic WHEN 'drop' THEN 'drop' WHEN 'gap' THEN 'shed' WHEN 'link.down' THEN 'discarded' END
                AS what, CAST(coalesce(detail->>'events', detail->>'records', detail->>'discarded') AS BIGINT)
                AS events, CASE WHEN topic = 'gap' THEN writer WHEN peer_id <> 0 THEN peer ELSE detail->>'peer'
                END AS peer, CASE topic WHEN 'gap' THEN detail->>'cause' ELSE detail->>'reason' END AS reason
                FROM bronze WHERE kind = 'state' AND topic IN ('drop', 'gap', 'link.down')) WHERE events > 0""",
}
"""Each gold table as one query."""


def table(name: str, bronze: Any) -> list[dict[str, Any]]:
    """A gold table over an Arrow table of bronze rows."""
    import duckdb

    with duckdb.connect() as base:
        base.execute("SET timezone = 'UTC'")
        base.register("bronze", bronze)
        cursor = base.execute(QUERIES[name])
        names = [each[0] for each in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
