"""order_check: did messages between two endpoints go out in the order in which they came in (RFC 3, in-order
delivery)?

Only of runs that captured deliveries. The j-th message that came in with some identity (origin, destination, type,
matchtag, nodeid, errnum or sequence, topic) is the j-th that went out with it; what is compared is the order of
different ones. An event goes out to many at once, in one record: its destination is empty, its identity is its
sequence.
``out_of_order``: messages that went out behind one that had come in after them; ``missing``: that never went out.
"""

from __future__ import annotations

from typing import Final

_ORDER_CHECK: Final = """
    WITH sides AS (
        SELECT rank, run, direction, type, seq, ts, dt, coalesce(nodeid, errnum, event_seq) AS word, topic,
            CASE WHEN type <> 'event' THEN origin END AS origin,
            CASE WHEN type = 'event' THEN 0 WHEN direction = 'in' THEN via_id ELSE peer_id END AS dest,
            CASE WHEN type = 'event' THEN NULL WHEN direction = 'in' THEN via ELSE peer END AS peer,
            CASE WHEN type = 'event' THEN 0 ELSE matchtag END AS tag
        FROM resolved WHERE kind = 'flux' AND direction <> 'denied'
            AND (rank, run) IN (SELECT (rank, run) FROM bronze WHERE direction = 'out' AND kind = 'flux')
            AND CASE WHEN type = 'event' THEN event_seq > 0 ELSE origin IS NOT NULL END
    ), nth AS (
        SELECT *, row_number() OVER (
            PARTITION BY rank, run, direction, type, origin, dest, tag, word, topic ORDER BY seq) AS nth FROM sides
    ), pairs AS (
        SELECT i.*, o.seq AS out_seq FROM (SELECT * FROM nth WHERE direction = 'in') i
        LEFT JOIN (SELECT * FROM nth WHERE direction = 'out') o ON i.rank = o.rank AND i.run = o.run
            AND i.type = o.type AND i.origin IS NOT DISTINCT FROM o.origin AND i.dest = o.dest AND i.tag = o.tag
            AND i.word IS NOT DISTINCT FROM o.word AND i.topic IS NOT DISTINCT FROM o.topic AND i.nth = o.nth
    ), overtaken AS (
        SELECT *, coalesce(max(CASE WHEN out_seq IS NOT NULL THEN seq END) OVER (
            PARTITION BY rank, run, origin, dest, type ORDER BY out_seq
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > seq, false) AND out_seq IS NOT NULL AS late FROM pairs)
    SELECT rank, run, origin, max(peer) AS peer, type, count(*) AS n, count(*) FILTER (late) AS out_of_order,
        count(*) FILTER (out_seq IS NULL) AS missing, min(ts) AS first_ts, max(ts) AS last_ts, dt
    FROM overtaken GROUP BY rank, run, origin, dest, type, dt"""

TABLES: Final = {"order_check": _ORDER_CHECK}
