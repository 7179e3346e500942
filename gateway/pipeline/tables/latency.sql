-- rpc_latency: a histogram of latencies by minute, rank and topic, and what could not be matched, by cause;
-- tree_latency: the sums at every broker that the calls passed.

-- The latency of a call is that until its first response. A bucket of the histogram ends at le_ns, a time whose binary
-- digits behind the first five are all set: 16 buckets an octave, so that a percentile read from them is above the
-- exact one by at most a sixteenth.
--
-- A call that the broker refused at once took 0. A call is counted in the minute of its request; an orphan in its own.
-- Without a response a call is not_captured when nobody could see one, reused when its tag was taken while it was open,
-- else unmatched_no_response; a stream cut short so is reused although it has a latency. unmatched_noresponse and
-- unmatched_untagged are requests that clients sent and that no response can be found for: they want none, or have no
-- tag or no origin.
-- name: rpc_latency
SELECT *, timestamp_seconds(bucket * 60) AS window, CAST(timestamp_seconds(bucket * 60) AS DATE) AS dt
FROM (
    SELECT bucket, rank, topic, substring_index(topic, '.', 1) AS service, le_ns, count(lat_ns) AS n,
        coalesce(try_sum(lat_ns), if(count(lat_ns) > 0, 9223372036854775807, 0)) AS sum_ns, max(lat_ns) AS max_ns,
        count_if(cause = 'no response') AS unmatched_no_response, count_if(cause = 'unseen') AS not_captured,
        count_if(cause = 'no request') AS unmatched_no_request, count_if(cause = 'unwanted') AS unmatched_noresponse,
        count_if(cause = 'untagged') AS unmatched_untagged, count_if(cause = 'reused') AS reused_tags
    FROM (
        SELECT coalesce(req_ns, first_ns) div 60000000000 AS bucket, rank, topic, lat_ns,
            lat_ns | (shiftleft(1L, greatest(length(bin(lat_ns)) - 5, 0)) - 1) AS le_ns,
            CASE WHEN what = 3 THEN 'no request' WHEN unseen THEN 'unseen' WHEN reused THEN 'reused'
                WHEN n_responses = 0 THEN 'no response' END AS cause
        FROM calls WHERE entered AND NOT open
        UNION ALL SELECT ts_ns div 60000000000, rank, topic, NULL, NULL,
            if(flags & 4 <> 0, 'unwanted', 'untagged')
        FROM bronze WHERE type = 'request' AND direction = 'in' AND NOT tree
            AND (flags & 4 <> 0 OR matchtag = 0 OR origin IS NULL))
    GROUP BY ALL)

-- What each broker saw of the calls that passed it: between two neighbours the sums of one are those of the same calls
-- as the other's, so that their difference is the time that the step took, whatever their clocks say.
-- name: tree_latency
SELECT *, timestamp_seconds(bucket * 60) AS window, CAST(timestamp_seconds(bucket * 60) AS DATE) AS dt
FROM (
    SELECT req_ns div 60000000000 AS bucket, rank, source, target, topic, substring_index(topic, '.', 1) AS service,
        count(*) AS n, coalesce(try_sum(lat_ns), if(count(lat_ns) > 0, 9223372036854775807, 0)) AS sum_ns,
        max(lat_ns) AS max_ns
    FROM calls WHERE what = 1 AND lat_ns IS NOT NULL AND NOT open GROUP BY ALL)
