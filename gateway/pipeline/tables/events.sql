-- event_gaps: where the sequence of events (RFC 3, "Event Message Type") does not go on by one.

-- Rank 0 numbers events, whoever published them, so its row of events is one sequence; elsewhere each peer that events
-- come from (the parent) has one.
-- name: events
SELECT *, if(rank > 0, peer_id, 0) AS source FROM (
    SELECT rank, writer, run, peer, peer_id, event_seq, seq, ts_ns FROM before WHERE kind = 'event'
    UNION ALL SELECT rank, writer, run, peer, peer_id, event_seq, seq, ts_ns FROM bronze
    WHERE type = 'event' AND direction = 'in' AND event_seq > 0)

-- Sequences follow by number of the record within a run; 0xFFFFFFFF is followed by 1, 0 is an event not numbered yet
-- and belongs to no sequence. One row for each step that is not +1: duplicate the same number again, gap numbers left
-- out, reorder a step back, which is shorter than the step forward would be.
-- name: event_gaps
SELECT *, timestamp_micros(ts_ns div 1000) AS ts, CAST(timestamp_micros(ts_ns div 1000) AS DATE) AS dt,
    CASE WHEN step = 0 THEN 'duplicate' WHEN step > 2147483647 THEN 'reorder' ELSE 'gap' END AS kind,
    if(step BETWEEN 1 AND 2147483647, step - 1, 0) AS missing
FROM (
    SELECT *, (next_seq - prev_seq + 4294967295) % 4294967295 AS step FROM (
        SELECT rank, writer, run, peer, ts_ns, event_seq AS next_seq, lag(event_seq) OVER (
            PARTITION BY rank, writer, run, source ORDER BY seq) AS prev_seq FROM events)
    WHERE prev_seq IS NOT NULL)
WHERE step <> 1

-- The last event of each sequence.
-- name: open event
SELECT rank, writer, run, peer, peer_id, event_seq, seq, ts_ns FROM (
    SELECT *, row_number() OVER (PARTITION BY rank, writer, run, source ORDER BY seq DESC) AS nth
    FROM events WHERE ts_ns >= :since_ns)
WHERE nth = 1
