"""Requests and their responses (RFC 6), call by call, and ``rpc``: every call that wanted a response, where it entered
the tree, with what came of it.

Key of a call is (rank, run, origin, matchtag). The rows of a key are walked by their number, which is the order in
which the broker handled them; times only date them. A request opens a call. A response belongs to the call that is
open; it ends it when the call asked for one response, or with an errnum. A response while none is open is an
*orphan*. A request while a call is open takes its tag: the earlier one is *reused*, and what comes is the later
one's. Requests that a broker denied open calls, too, so that their answers are not taken for somebody else's; they
are no calls. What a built-in service denied (``via`` is this broker) had come in: that is an answer.

What came in counts. With ``capture = both`` a response has an echo where it went out, which is passed over; but an
answer that the broker itself made (it refused, or the provider went away) is seen only there, and so it counts where
nothing came in. With ``capture = in`` the answers of built-in services are not seen at all: such a call is *unseen*
until something is.

A call passes several brokers, each of which tells of it: ``entered`` says where it did that first. ``source`` and
``target`` name its neighbours in the tree, of others the role, so that they are few, however many clients there are.

Steps, from rows to calls:

``hops``      the hop of each peer: whose rows are those that carry no origin (a response on its last leg, a request
              refused as it was received) says the peer. It is the origin of the requests that the peer sent itself,
              those with the fewest routes
``resolved``  bronze with ``origin`` filled in so
``legs``      rows that calls are made of, with a tag and an origin and wanting a response; ``what``: 1 a request that
              came in, 2 one that was refused, 3 a response that came in, 4 one that went out
``part``      the legs of one slice of the keys, for sorting takes memory: the next two are made slice by slice
``closed``    each leg with its call, the number of the last request of its key, and whether it is an orphan: behind
              the row that ended the call, or before any. Keys are hashed: strings are neither sorted nor compared
``calls``     one row for each call, denied request (``what`` 2) and orphan (3). ``reused``: its tag was ``taken``;
              ``open``: it waits for a response that could be seen, and is not older than ``since_ns``. Of an unseen
              call only its refusal is recorded, and that right behind the request: it is open as long as nothing else
              came behind it
``settled``   those that are not open, with their latency, until the first response

Left open is the request of each open call with its first and last response (the last stands for those between, by
``weight``), and the hops.
"""

from __future__ import annotations

from typing import Final

from gateway.pipeline.tables.sql import SERVICE

LEG: Final = (
    "rank", "run", "origin", "matchtag", "seq", "ts_ns", "topic", "userid", "what", "streaming", "errnum", "entered",
    "source", "target", "unseen", "weight",
)  # fmt: skip
HOP: Final = ("rank", "run", "peer_id", "hop", "routes", "seq", "seen_ns")
"""Columns of what is left open."""
_HOPS: Final = """
    SELECT rank, run, peer_id, arg_min(hop, place) AS hop, min(place) >> 48 AS routes,
        min(place) & ((1::BIGINT << 48) - 1) AS seq, max(seen_ns) AS seen_ns
    FROM (SELECT rank, run, peer_id, hop, (routes << 48) + seq AS place, seen_ns FROM before_hops UNION ALL BY NAME
        SELECT rank, run, peer_id, origin AS hop, (routes::BIGINT << 48) + seq AS place, ts_ns AS seen_ns FROM bronze
        WHERE direction = 'in' AND type = 'request' AND origin IS NOT NULL)
    GROUP BY ALL"""
_RESOLVED: Final = """
    SELECT b.* REPLACE (CASE WHEN direction = 'in' THEN origin ELSE coalesce(origin, hop) END AS origin) FROM bronze b
    LEFT JOIN (SELECT rank, run, peer_id, hop FROM hops) USING (rank, run, peer_id)"""
_LEGS: Final = """
    SELECT rank, run, origin, hash(run, origin) AS key, matchtag, seq, ts_ns, topic, userid, what,
        type = 'request' AND flags & 64 <> 0 AS streaming,
        CASE WHEN type = 'response' THEN errnum WHEN what = 4 THEN reason ELSE 0 END::BIGINT AS errnum,
        NOT of_broker(CASE WHEN what = 3 THEN via_role ELSE role END) AS entered,
        CASE WHEN of_broker(role) THEN peer ELSE role END AS source,
        CASE WHEN of_broker(via_role) THEN via ELSE via_role END AS target,
        coalesce(type = 'request' AND via_role = 'own' AND capture = 'in', false) AS unseen, 1::BIGINT AS weight
    FROM (SELECT *, CASE WHEN type = 'request' AND direction = 'in' THEN 1 WHEN type = 'request' AND via_id = 0 THEN 2
            WHEN direction = 'in' THEN 3 ELSE 4 END::TINYINT AS what
        FROM resolved WHERE matchtag <> 0 AND origin IS NOT NULL AND (
            (type = 'request' AND direction <> 'out' AND flags & 4 = 0)
            OR (type = 'response' AND direction <> 'denied')))
    UNION ALL BY NAME SELECT *, hash(run, origin) AS key FROM before_calls"""
_CLOSED: Final = """
    WITH asked AS (
        SELECT *, max(CASE WHEN asks THEN seq END) OVER so_far AS call, lead(asks) OVER next AS taken
        FROM (SELECT leg, key, matchtag, rank, seq, ts_ns, what, streaming, errnum, weight, what <= 2 AS asks FROM part)
        WINDOW next AS (PARTITION BY key, matchtag, rank ORDER BY seq), so_far AS (
            PARTITION BY key, matchtag, rank ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
    ), ended AS (
        SELECT key, matchtag, rank, call, CASE WHEN bool_or(streaming AND asks) THEN min(seq) FILTER (errnum <> 0)
            ELSE min(seq) FILTER (NOT asks) END AS last_seq
        FROM asked WHERE call IS NOT NULL GROUP BY key, matchtag, rank, call
    )
    SELECT a.*, a.call IS NULL OR a.seq > coalesce(e.last_seq, a.seq) AS orphan
    FROM asked a LEFT JOIN ended e USING (key, matchtag, rank, call)"""
_CALLS: Final = """
    WITH counted AS (
        SELECT min(leg) FILTER (asks) AS leg, call, min(ts_ns) FILTER (NOT asks) AS first_ns, max(errnum) AS errnum,
            coalesce(sum(weight) FILTER (what = 3), 0)::BIGINT AS n_in,
            coalesce(sum(weight) FILTER (what = 4), 0)::BIGINT AS n_out,
            count(*) FILTER (what = 4 AND errnum <> 0) AS n_failed,
            max(ts_ns) FILTER (what = 3 OR (what = 4 AND errnum <> 0)) AS last_seen,
            max(ts_ns) FILTER (NOT asks) AS last_any, coalesce(bool_or(taken), false) AS taken
        FROM closed WHERE NOT orphan GROUP BY rank, key, matchtag, call
    ), answered AS (
        SELECT l.* EXCLUDE (leg, seq, ts_ns, key, errnum, weight, unseen), l.ts_ns AS req_ns, l.unseen AS asked_unseen,
            c.call, c.first_ns, c.errnum, c.taken,
            CASE WHEN n_in > 0 THEN n_in + n_failed ELSE n_out END AS n_responses,
            CASE WHEN n_in > 0 THEN last_seen ELSE last_any END AS last_ns
        FROM counted c JOIN part l USING (leg)
    ), seen AS (
        SELECT * EXCLUDE (asked_unseen), asked_unseen AND n_responses = 0 AS unseen,
            errnum <> 0 OR (NOT streaming AND n_responses > 0) AS ended
        FROM answered
    )
    SELECT s.* EXCLUDE (ended, taken), taken AND NOT ended AND NOT unseen AS reused,
        what = 1 AND NOT ended AND (unseen OR NOT taken) AND req_ns >= getvariable('since_ns')
            AND NOT (unseen AND coalesce(newest > call, false)) AS open
    FROM seen s LEFT JOIN last_rows USING (rank, run)
    UNION ALL BY NAME SELECT l.rank, l.run, l.origin, l.matchtag, l.what, l.seq AS call, l.topic, l.entered,
        l.ts_ns AS first_ns, l.errnum, l.weight AS n_responses, false AS streaming, false AS unseen, false AS reused,
        false AS open
    FROM closed c JOIN part l USING (leg) WHERE c.orphan AND c.what = 3"""
_PART: Final = """
    SELECT rowid AS leg, * FROM legs WHERE key % getvariable('slices')::UBIGINT = getvariable('slice')"""
_NEWEST: Final = "SELECT rank, run, max(seq) AS newest FROM bronze GROUP BY ALL"
_SETTLED: Final = """
    SELECT *, since(req_ns, first_ns) AS lat_ns FROM calls WHERE NOT open"""
_RPC: Final = f"""
    SELECT make_timestamp(req_ns // 1000) AS req_ts, req_ns AS ts_ns, rank, origin, matchtag, topic,
        {SERVICE}, userid, lat_ns, since(req_ns, last_ns) AS last_ns,
        CASE WHEN n_responses > 0 THEN errnum END AS errnum, n_responses, streaming,
        CASE WHEN n_responses > 0 THEN 'answered' WHEN unseen THEN 'not captured' WHEN reused THEN 'reused'
            ELSE 'unanswered' END AS outcome,
        day_of(req_ns) AS dt
    FROM settled WHERE what = 1 AND entered"""
_THEIRS: Final = """
    SELECT legs.* FROM legs JOIN (SELECT rank, run, origin, matchtag, call FROM calls WHERE open)
        USING (rank, run, origin, matchtag) WHERE seq >= call"""
_SAME: Final = ", ".join(
    f"any_value({name}) AS {name}"
    for name in ("streaming", "errnum", "topic", "userid", "entered", "source", "target", "unseen")
)
_OPEN: Final = f"""
    WITH theirs AS MATERIALIZED ({_THEIRS})
    SELECT {", ".join(LEG)} FROM theirs WHERE what <= 2
    UNION ALL BY NAME SELECT rank, run, origin, matchtag, what, {_SAME}, min(seq) AS seq, min(ts_ns) AS ts_ns,
        1::BIGINT AS weight FROM theirs WHERE what > 2 GROUP BY rank, run, origin, matchtag, what
    UNION ALL BY NAME SELECT rank, run, origin, matchtag, what, {_SAME}, max(seq) AS seq, max(ts_ns) AS ts_ns,
        (sum(weight) - 1)::BIGINT AS weight FROM theirs WHERE what > 2 GROUP BY rank, run, origin, matchtag, what
    HAVING sum(weight) > 1"""

STEPS: Final = {"hops": _HOPS, "legs": _LEGS, "last_rows": _NEWEST, "closed": _CLOSED, "calls": _CALLS}
SLICED: Final = {"calls": ("legs", "closed")}
"""Made slice by slice of the first, of which it has as many as its rows need; the second is made anew for each."""
VIEWS: Final = {"part": _PART, "resolved": _RESOLVED, "settled": _SETTLED, "rpc": _RPC}
TABLES: Final = {"rpc": "FROM rpc"}
OPEN: Final = {
    "calls": _OPEN,
    "hops": f"SELECT {', '.join(HOP)} FROM hops WHERE seen_ns >= getvariable('since_ns')",
}
