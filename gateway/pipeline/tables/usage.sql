-- user_usage: what each user did in a day.
--
-- What came in under a userid, what was refused or failed, and how long its calls took; rows without a userid are
-- nobody's. Additive: rows of disjoint parts of bronze may be added up.

-- name: user_usage
SELECT dt, userid, sum(requests) AS requests, sum(responses) AS responses, sum(events) AS events,
    sum(denied) AS denied, sum(errors) AS errors, sum(payload_bytes) AS payload_bytes, sum(wire_bytes) AS wire_bytes,
    coalesce(try_sum(rpc_ns), if(count(rpc_ns) > 0, 9223372036854775807, 0)) AS rpc_ns
FROM (
    SELECT CAST(timestamp_seconds(bucket * 10) AS DATE) AS dt, userid,
        if(kind = 'flux' AND type <=> 'request', n, 0) AS requests,
        if(kind = 'flux' AND type <=> 'response', n, 0) AS responses,
        if(kind = 'flux' AND type <=> 'event', n, 0) AS events, 0L AS denied, 0L AS errors,
        payload_bytes, wire_bytes, CAST(NULL AS BIGINT) AS rpc_ns
    FROM passed WHERE direction = 'in'
    UNION ALL SELECT dt, userid, 0, 0, 0, 1, 0, 0, 0, NULL FROM denied
    UNION ALL SELECT CAST(timestamp_seconds(bucket * 60) AS DATE), userid, 0, 0, 0, 0, n, 0, 0, NULL FROM failed
    UNION ALL SELECT dt, userid, 0, 0, 0, 0, 0, 0, 0, lat_ns FROM rpc WHERE lat_ns IS NOT NULL)
WHERE userid IS NOT NULL GROUP BY dt, userid
