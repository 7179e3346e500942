-- traffic: how much passed, by windows of 10 s and everything that one filters by; tree_traffic: what of it the brokers
-- said to each other; deliveries: to how many clients events went.
--
-- What another broker of the tree sent, or is sent, is counted in traffic where it entered or leaves; what was refused
-- further on than at the door had come in, and counts there. An event leaves a broker once, as one record, however many
-- get it: deliveries counts who does, clients and, apart from them, brokers of the tree. All are additive: rows of
-- disjoint parts of bronze may be added up.

-- name: traffic
SELECT *, timestamp_seconds(bucket * 10) AS window, CAST(timestamp_seconds(bucket * 10) AS DATE) AS dt FROM passed

-- Made once, and kept: user_usage adds it up, too.
-- name: passed
SELECT ts_ns div 10000000000 AS bucket, rank, writer, transport, direction, kind, topic, type, userid, service,
    count(*) AS n, sum(payload_len) AS payload_bytes, sum(wire_len) AS wire_bytes
FROM bronze
WHERE kind <> 'flux' OR NOT (tree OR coalesce(direction = 'denied' AND via_id <> 0 AND role <> 'web', false))
GROUP BY ALL

-- name: tree_traffic
SELECT *, timestamp_seconds(bucket * 10) AS window, CAST(timestamp_seconds(bucket * 10) AS DATE) AS dt
FROM (
    SELECT ts_ns div 10000000000 AS bucket, rank, peer, role, direction, type, service,
        count(*) AS n, sum(payload_len) AS payload_bytes, sum(wire_len) AS wire_bytes
    FROM bronze
    WHERE kind = 'flux' AND direction <> 'denied' AND tree
    GROUP BY ALL)

-- name: deliveries
SELECT *, timestamp_seconds(bucket * 10) AS window, CAST(timestamp_seconds(bucket * 10) AS DATE) AS dt
FROM (
    SELECT bucket, rank, topic, service, userid, count(*) AS events,
        sum(delivered - brokers) AS n, sum((delivered - brokers) * payload_len) AS payload_bytes,
        sum((delivered - brokers) * wire_len) AS wire_bytes,
        sum(brokers) AS tree_n, sum(brokers * wire_len) AS tree_wire_bytes
    FROM (
        SELECT *, ts_ns div 10000000000 AS bucket,
            if(tree, delivered, least(delivered, if(claimed < 4294967295, claimed, 0))) AS brokers
        FROM bronze WHERE kind = 'flux' AND type = 'event' AND direction = 'out')
    GROUP BY ALL)
