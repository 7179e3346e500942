-- Requests and their responses (RFC 6), call by call, and rpc: every call that wanted a response, where it entered the
-- tree, with what came of it.
--
-- Key of a call is (rank, run, origin, matchtag). The rows of a key are walked by their number, which is the order in
-- which the broker handled them; times only date them. A request opens a call. A response belongs to the call that is
-- open; it ends it when the call asked for one response, or with an errnum. A response while none is open is an orphan.
-- A request while a call is open takes its tag: the earlier one is reused, and what comes is the later one's. A request
-- that the broker refused is a call, and its own answer: what the broker sends then is that again. Nobody needs to know
-- its origin. What a built-in service denied (via is this broker) had come in: that is an answer.
--
-- What came in counts. With capture = both a response has an echo where it went out, which is passed over; but an
-- answer that the broker itself made (it refused, or the provider went away) is seen only there, and so it counts where
-- nothing came in. With capture = in the answers of built-in services are not seen at all: such a call is unseen until
-- something is.
--
-- A call passes several brokers, each of which tells of it: entered says where it did that first. source and target
-- name its neighbours in the tree, of others the role, so that they are few, however many clients there are.

-- The hop of each peer: whose rows are those that carry no origin (a response on its last leg, a request refused as it
-- was received) says the peer. It is the origin of the requests that the peer sent itself, those with the fewest
-- routes.
-- name: hops
SELECT rank, run, peer_id, min_by(origin, place) AS hop, min(place) AS place, max(seen_ns) AS seen_ns FROM (
    SELECT rank, run, peer_id, origin, min(shiftleft(CAST(routes AS BIGINT), 48) + seq) AS place,
        max(ts_ns) AS seen_ns
    FROM (SELECT rank, run, peer_id, origin, routes, seq, ts_ns FROM before WHERE kind = 'hop'
        UNION ALL SELECT rank, run, peer_id, origin, routes, seq, ts_ns FROM bronze
        WHERE direction = 'in' AND type = 'request' AND origin IS NOT NULL)
    GROUP BY rank, run, peer_id, origin)
GROUP BY rank, run, peer_id

-- bronze with origin filled in so. Where no row needs it, bronze itself stands for it (queries.statement).
-- name: resolved
SELECT * EXCEPT (origin, hop), if(direction = 'in', origin, coalesce(origin, hop)) AS origin
FROM bronze LEFT JOIN (SELECT rank, run, peer_id, hop FROM hops) USING (rank, run, peer_id)

-- Rows that calls are made of, with a tag and an origin (a refused request needs none) and wanting a response; what is
-- 1 a request that came in, 2 one that was refused, 3 a response that came in, 4 one that went out; said is what a call
-- is told of by its request, and stands with the request alone: the fewer strings are sorted, the better. A call that
-- was left open comes back as its request that had responses before.
-- name: legs
SELECT xxhash64(run, origin) AS key, rank, matchtag, seq, ts_ns, what, what <= 2 AS asks,
    what <= 2 AND flags & 64 <> 0 AS streaming,
    CASE WHEN type = 'response' THEN errnum WHEN what IN (2, 4) THEN CAST(reason AS BIGINT) ELSE 0 END AS errnum,
    NOT if(what = 3, via_tree, tree) AS entered, if(what = 3, topic, NULL) AS topic,
    CASE WHEN what <= 2 THEN struct(run, origin, topic, userid, if(tree, peer, role) AS source,
        if(via_tree, via, via_role) AS target) END AS said,
    coalesce(type = 'request' AND via_role = 'own' AND capture = 'in', false) AS unseen,
    CAST(NULL AS STRUCT<n_in: BIGINT, n_out: BIGINT, first_ns: BIGINT, last_in_ns: BIGINT, last_out_ns: BIGINT>)
        AS had
FROM (SELECT *, CASE WHEN type = 'request' AND direction = 'in' THEN 1 WHEN type = 'request' AND via_id = 0 THEN 2
        WHEN direction = 'in' THEN 3 ELSE 4 END AS what
    FROM resolved WHERE matchtag <> 0 AND (
        (type = 'request' AND direction <> 'out' AND flags & 4 = 0
            AND (origin IS NOT NULL OR (direction = 'denied' AND via_id = 0)))
        OR (type = 'response' AND direction <> 'denied' AND origin IS NOT NULL)))
UNION ALL SELECT xxhash64(run, origin), rank, matchtag, seq, ts_ns, 1, true, streaming, 0, entered, NULL,
    struct(run, origin, topic, userid, source, target), unseen, struct(n_in, n_out, first_ns, last_in_ns, last_out_ns)
FROM before WHERE kind = 'call'

-- Each leg with its call, the number of the last request of its key, and what that said. Keys are hashed, and the tasks
-- share them: one shuffle, one sort, and all that follows is of rows that lie together.
-- name: asked
SELECT * EXCEPT (said), max(CASE WHEN asks THEN seq END) OVER so_far AS call,
    last_value(said) IGNORE NULLS OVER so_far AS said,
    last_value(CASE WHEN asks THEN streaming END) IGNORE NULLS OVER so_far AS streams, lead(asks) OVER next AS taken
FROM legs
WINDOW next AS (PARTITION BY key, matchtag, rank ORDER BY seq), so_far AS (
    PARTITION BY key, matchtag, rank ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)

-- The same with whether it is an orphan: behind a row that ended the call, or before any.
-- name: closed
SELECT *, call IS NULL OR coalesce(max(
    CASE WHEN what = 2 OR (NOT asks AND (NOT streams OR errnum <> 0)) THEN seq END) OVER (
    PARTITION BY key, matchtag, rank ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) >= call, false)
    AS orphan
FROM asked

-- Of an unseen call only its refusal is recorded, and that right behind the request: it is open as long as nothing else
-- came behind it. Where nothing is left open (queries.NEVER) nobody needs to know.
-- name: newest
SELECT rank, run, max(seq) AS newest FROM bronze WHERE :since_ns < 9223372036854775807 GROUP BY rank, run

-- One row for each call, those refused (what 2) and orphans (3) among them; barred is its response that said EPERM or
-- EACCES. Strings are keys, not sums, or Spark would sort all rows once more instead of hashing them.
-- name: counted
SELECT rank, matchtag, call, said.*, stray, min(what) AS what, bool_or(streaming) AS streaming,
    bool_or(entered) FILTER (WHERE asks OR orphan) AS entered, bool_or(unseen) AS asked_unseen,
    max(ts_ns) FILTER (WHERE asks) AS req_ns, max(errnum) AS errnum,
    max(CASE WHEN what = 3 AND errnum IN (1, 13) THEN seq END) AS barred,
    min(coalesce(had.first_ns, if(what = 1, NULL, ts_ns))) AS first_ns,
    coalesce(max(had.n_in), 0) + count_if(what = 3) AS n_in,
    coalesce(max(had.n_out), 0) + count_if(what IN (2, 4)) AS n_out,
    count_if(what = 4 AND errnum <> 0) AS n_failed,
    max(coalesce(had.last_in_ns, if(what = 3 OR (what = 4 AND errnum <> 0), ts_ns, NULL))) AS last_in_ns,
    max(coalesce(had.last_out_ns, if(what IN (2, 4), ts_ns, NULL))) AS last_out_ns,
    coalesce(bool_or(taken), false) AS taken
FROM (SELECT * EXCEPT (call, said, topic), if(orphan, seq, call) AS call, if(orphan, NULL, said) AS said,
        if(orphan, topic, NULL) AS stray FROM closed WHERE NOT orphan OR what = 3)
GROUP BY key, matchtag, rank, call, said, stray

-- name: answered
SELECT * EXCEPT (stray, topic), coalesce(topic, stray) AS topic, if(n_in > 0, n_in + n_failed, n_out) AS n_responses,
    if(n_in > 0, last_in_ns, last_out_ns) AS last_ns FROM counted

-- name: seen
SELECT *, asked_unseen AND n_responses = 0 AS unseen,
    errnum <> 0 OR (NOT streaming AND n_responses > 0) AS ended FROM answered

-- Calls, with their latency until the first response. reused: its tag was taken; open: it waits for a response that
-- could be seen, and is not older than since_ns. Made once, and kept.
-- name: calls
SELECT /*+ BROADCAST(newest) */ * EXCEPT (ended, taken, newest),
    CASE WHEN first_ns < req_ns THEN 0 ELSE first_ns - req_ns END AS lat_ns,
    taken AND NOT ended AND NOT unseen AS reused,
    what = 1 AND NOT ended AND (unseen OR NOT taken) AND req_ns >= :since_ns
        AND NOT (unseen AND coalesce(newest > call, false)) AS open
FROM seen LEFT JOIN newest USING (rank, run)

-- name: rpc
SELECT timestamp_micros(req_ns div 1000) AS req_ts, req_ns AS ts_ns, rank, origin, matchtag, topic,
    substring_index(topic, '.', 1) AS service, userid, lat_ns,
    CASE WHEN last_ns < req_ns THEN 0 ELSE last_ns - req_ns END AS last_ns,
    if(n_responses > 0, errnum, NULL) AS errnum, n_responses, streaming,
    CASE WHEN n_responses > 0 THEN 'answered' WHEN unseen THEN 'not captured' WHEN reused THEN 'reused'
        ELSE 'unanswered' END AS outcome,
    CAST(timestamp_micros(req_ns div 1000) AS DATE) AS dt, what
FROM calls WHERE what <= 2 AND entered AND NOT open

-- Each open call as it is, which the next batch takes for its request.
-- name: open call
SELECT rank, run, origin, matchtag, call AS seq, req_ns AS ts_ns, topic, userid, streaming, entered, source, target,
    asked_unseen AS unseen, n_in, n_out, first_ns, last_in_ns, last_out_ns FROM calls WHERE open

-- name: open hop
SELECT rank, run, peer_id, hop AS origin, CAST(shiftright(place, 48) AS INT) AS routes,
    place & (shiftleft(1L, 48) - 1) AS seq, seen_ns AS ts_ns
FROM hops WHERE seen_ns >= :since_ns
