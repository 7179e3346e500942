-- order_check: did messages between two endpoints go out in the order in which they came in (RFC 3, in-order delivery)?
--
-- Only of runs that captured deliveries. The j-th message that came in with some identity (origin, destination, type,
-- matchtag, nodeid, errnum or sequence, topic) is the j-th that went out with it; what is compared is the order of
-- different ones. An event goes out to many at once, in one record: its destination is empty, its identity is its
-- sequence. Rows of two endpoints go to one task (pair), by one shuffle.

-- name: sides
SELECT xxhash64(rank, run, type, origin, dest) AS pair, * FROM (
    SELECT rank, run, direction, type, seq, ts, dt, coalesce(nodeid, errnum, event_seq) AS word, topic,
        CASE WHEN type <> 'event' THEN origin END AS origin,
        CASE WHEN type = 'event' THEN 0 WHEN direction = 'in' THEN via_id ELSE peer_id END AS dest,
        CASE WHEN type <> 'event' AND direction = 'in' THEN via END AS peer,
        CASE WHEN type = 'event' THEN 0 ELSE matchtag END AS tag
    FROM resolved WHERE kind = 'flux' AND direction <> 'denied'
        AND CASE WHEN type = 'event' THEN event_seq > 0 ELSE origin IS NOT NULL END)
LEFT SEMI JOIN (SELECT DISTINCT rank, run FROM bronze WHERE direction = 'out' AND kind = 'flux')
    USING (rank, run)

-- name: pairs
SELECT pair, rank, run, type, origin, dest, max(seq) FILTER (WHERE direction = 'in') AS seq,
    max(seq) FILTER (WHERE direction = 'out') AS out_seq, max(peer) AS peer,
    max(ts) FILTER (WHERE direction = 'in') AS ts, max(dt) FILTER (WHERE direction = 'in') AS dt
FROM (
    SELECT *, row_number() OVER (
        PARTITION BY pair, rank, run, type, origin, dest, tag, word, topic, direction ORDER BY seq) AS nth
    FROM (SELECT /*+ REPARTITION(pair) */ * FROM sides))
GROUP BY pair, rank, run, type, origin, dest, tag, word, topic, nth

-- name: overtaken
SELECT *, coalesce(max(CASE WHEN out_seq IS NOT NULL THEN seq END) OVER (
    PARTITION BY pair, rank, run, origin, dest, type ORDER BY out_seq
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > seq, false) AND out_seq IS NOT NULL AS late
FROM pairs WHERE seq IS NOT NULL

-- out_of_order: messages that went out behind one that had come in after them; missing: that never went out.
-- name: order_check
SELECT rank, run, origin, max(peer) AS peer, type, count(*) AS n, count_if(late) AS out_of_order,
    count_if(out_seq IS NULL) AS missing, min(ts) AS first_ts, max(ts) AS last_ts, dt
FROM overtaken GROUP BY pair, rank, run, origin, dest, type, dt
