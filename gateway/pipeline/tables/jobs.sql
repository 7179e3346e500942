-- job_outcomes: what became of each job of NFP.
--
-- One row a job: the last status seen (by time, then by number), and how long it took until a final one was first seen;
-- a final status is one behind which nothing comes. A job is heard of at any rank and over days, so the rows of all
-- ranks are looked at together; they are few.

-- name: facts
SELECT *, coalesce(status IN ('COMPLETED', 'FAILED', 'EXPIRED', 'CANCELLED', 'JOB NOT FOUND'), false) AS final,
    struct(ts_ns, writer, seq) AS place
FROM (
    SELECT writer, seq, ts_ns, detail, fresh, try_variant_get(facts, '$.uuid', 'string') AS uuid,
        try_variant_get(facts, '$.service', 'string') AS service, try_variant_get(facts, '$.task', 'string') AS task,
        try_variant_get(facts, '$.client', 'string') AS client, try_variant_get(facts, '$.status', 'string') AS status,
        try_variant_get(facts, '$.worker', 'string') AS worker, try_variant_get(facts, '$.attempt', 'bigint') AS attempt
    FROM (
        SELECT *, try_parse_json(detail) AS facts FROM (
            SELECT writer, seq, ts_ns, detail, false AS fresh FROM before WHERE kind = 'job'
            UNION ALL SELECT writer, seq, ts_ns, detail, true FROM bronze WHERE kind = 'nfp')))
WHERE uuid IS NOT NULL

-- Told are jobs that ended, and those that nothing was heard of since :since_ns.
-- name: heard
SELECT uuid, max(ts_ns) >= :since_ns AS recent, bool_or(final) AS ended,
    (bool_or(final AND fresh) OR max(ts_ns) < :since_ns) AND NOT bool_or(final AND NOT fresh) AS told
FROM facts GROUP BY uuid

-- Of what is said more than once the first value counts, and of the status the last one.
-- name: job_outcomes
SELECT *, timestamp_micros(from_ns div 1000) AS t_submit, timestamp_micros(to_ns div 1000) AS t_done,
    to_ns - from_ns AS duration_ns, CAST(timestamp_micros(from_ns div 1000) AS DATE) AS dt
FROM (
    SELECT uuid, min_by(service, place) FILTER (WHERE service IS NOT NULL) AS service,
        min_by(task, place) FILTER (WHERE task IS NOT NULL) AS task,
        min_by(client, place) FILTER (WHERE client IS NOT NULL) AS client,
        max_by(status, place) FILTER (WHERE status IS NOT NULL) AS status, coalesce(max(attempt), 1) AS attempts,
        CAST(count(DISTINCT worker) AS INT) AS workers, min(ts_ns) AS from_ns,
        min(ts_ns) FILTER (WHERE final) AS to_ns
    FROM facts LEFT SEMI JOIN (SELECT uuid FROM heard WHERE told) USING (uuid) GROUP BY uuid)

-- The rows of jobs that are not told yet, and of those that ended the final one, so that what follows is known to be
-- late.
-- name: open job
SELECT writer, seq, ts_ns, detail FROM (
    SELECT *, row_number() OVER (PARTITION BY uuid, final ORDER BY ts_ns, seq) AS nth FROM facts
    JOIN (SELECT uuid, ended FROM heard WHERE recent) USING (uuid))
WHERE NOT ended OR (final AND nth = 1)
