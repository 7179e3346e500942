-- notifications: envelopes of oslo.messaging's notifications; slow: what was not delivered, or not recorded, because
-- somebody did not keep up.

-- One row for each notification that came in; topic and the like are null where the proxy did not see them.
-- name: notifications
SELECT ts, try_variant_get(facts, '$.exchange', 'string') AS exchange,
    try_variant_get(facts, '$.topic', 'string') AS topic,
    try_variant_get(facts, '$.event_type', 'string') AS event_type,
    try_variant_get(facts, '$.priority', 'string') AS priority,
    try_variant_get(facts, '$.publisher_id', 'string') AS publisher_id, payload_len, dt
FROM (SELECT *, try_parse_json(detail) AS facts FROM bronze WHERE kind = 'oslo' AND direction = 'in')
WHERE try_variant_get(facts, '$.what', 'string') = 'notification'

-- Of STATE records: drop is events that a subscriber lost, discarded messages that waited for a link that ended, shed
-- records that the journal lost.
-- name: slow
SELECT ts, rank,
    CASE WHEN what = 'shed' THEN writer
        WHEN peer_id <> 0 THEN coalesce(peer, try_variant_get(facts, '$.peer', 'string'))
        ELSE try_variant_get(facts, '$.peer', 'string') END AS peer, what,
    CASE what WHEN 'drop' THEN try_variant_get(facts, '$.events', 'bigint')
        WHEN 'shed' THEN try_variant_get(facts, '$.records', 'bigint')
        ELSE try_variant_get(facts, '$.discarded', 'bigint') END AS events,
    try_variant_get(facts, '$.bytes', 'bigint') AS bytes,
    coalesce(try_variant_get(facts, '$.reason', 'string'), try_variant_get(facts, '$.cause', 'string')) AS reason, dt
FROM (
    SELECT *, try_parse_json(detail) AS facts, CASE topic WHEN 'drop' THEN 'drop' WHEN 'gap' THEN 'shed'
        WHEN 'link.down' THEN 'discarded' END AS what
    FROM bronze WHERE kind = 'state')
WHERE what IN ('drop', 'shed') OR what = 'discarded' AND try_variant_get(facts, '$.discarded', 'bigint') > 0
