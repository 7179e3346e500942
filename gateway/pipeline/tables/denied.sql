-- denied: what was refused for want of rights; errors: what failed otherwise, by minute, errno, topic and user.

-- kind of what was refused: web came by WebSocket, link is a link that was not let in (a STATE record denied.link of
-- address, uid, errno and reason); anything else is a request. A broker that refuses says so once, wherever the request
-- came from. Made once, and kept.
-- name: refusals
SELECT ts, ts_ns, dt, rank, transport, claimed, rolemask, tree, via_id, type, flags, matchtag, origin,
    CASE WHEN link THEN coalesce(try_variant_get(facts, '$.address', 'string'), peer) ELSE peer END AS peer,
    CASE WHEN link THEN coalesce(try_variant_get(facts, '$.uid', 'bigint'), userid) ELSE userid END AS userid,
    CASE WHEN link THEN 'link' WHEN transport = 'websocket' THEN 'web' ELSE 'request' END AS kind,
    CASE WHEN NOT link THEN topic END AS topic,
    CASE WHEN link THEN coalesce(try_variant_get(facts, '$.errno', 'int'), reason) ELSE reason END AS errno
FROM (SELECT *, try_parse_json(detail) AS facts, kind = 'state' AND topic <=> 'denied.link' AS link FROM bronze)
WHERE link OR direction = 'denied'

-- kind answer: a client's service said it, to the user of the call that it answers.
-- name: denied
SELECT ts, rank, transport, peer, claimed, userid, rolemask, topic, errno, kind, dt
FROM refusals WHERE errno IN (1, 13)
UNION ALL SELECT ts, rank, transport, via, NULL, calls.userid, NULL, coalesce(calls.topic, bronze.topic),
    CAST(bronze.errnum AS INT), 'answer', dt
FROM bronze LEFT JOIN (SELECT rank, run, barred AS seq, userid, topic FROM calls WHERE barred IS NOT NULL) AS calls
    USING (rank, run, seq)
WHERE type = 'response' AND direction = 'in' AND errnum IN (1, 13) AND NOT tree

-- Each failure once: calls that failed, where they entered, and refusals that are no call of anybody's: at a client's
-- own broker, or of requests that want no response. What is refused further on fails as a call. A stream that ends well
-- (ENODATA) did not fail, nor did a notice that a client left (SERVICE.disconnect).
-- name: failed
SELECT ts_ns div 60000000000 AS bucket, rank, topic, errno, kind, userid, count(*) AS n FROM (
    SELECT ts_ns, rank, topic, CAST(least(errnum, 2147483647) AS INT) AS errno, 'answer' AS kind, userid FROM rpc
    WHERE what = 1 AND errnum > 0 AND NOT (streaming AND errnum = 61)
    UNION ALL SELECT ts_ns, rank, topic, errno, kind, userid FROM refusals
    WHERE NOT coalesce(endswith(topic, '.disconnect'), false)
        AND ((via_id = 0 AND NOT tree)
            OR coalesce(type <> 'request' OR matchtag = 0 OR origin IS NULL OR flags & 4 <> 0, true)))
WHERE NOT coalesce(errno IN (1, 13), false) GROUP BY ALL

-- name: errors
SELECT *, timestamp_seconds(bucket * 60) AS window, CAST(timestamp_seconds(bucket * 60) AS DATE) AS dt
FROM (SELECT *, substring_index(topic, '.', 1) AS service FROM failed)
