"""denied: what was refused for want of rights; errors: what failed otherwise, by minute, errno, topic and user.

``kind`` of what was refused: ``web`` came by WebSocket, ``link`` is a link that was not let in (a STATE record
``denied.link`` of address, uid, errno and reason), ``answer``: a client's service said it, to the user of the
call that it answers; anything else is a ``request``. A broker that refuses says so once, wherever the request came
from.

``errors`` has each failure once: calls that failed, where they entered, and refusals that are no call of anybody's: at
a client's own broker, or of requests that want no response. What is refused further on fails as a call. A stream that
ends well (ENODATA) did not fail, nor did a notice that a client left (SERVICE.disconnect).
"""

from __future__ import annotations

from typing import Final

from gateway.pipeline.schema import ERRNO_MAX
from gateway.pipeline.tables.sql import FACTS, SERVICE, day_of, fact, of_broker, windows

_REFUSALS: Final = f"""
    SELECT ts, ts_ns, dt, rank, transport, claimed, rolemask, role, via_id, type, flags, matchtag, origin,
        CASE WHEN link THEN coalesce({fact("address")}, peer) ELSE peer END AS peer,
        CASE WHEN link THEN coalesce({fact("uid", "bigint")}, userid) ELSE userid END AS userid,
        CASE WHEN link THEN 'link' WHEN transport = 'websocket' THEN 'web' ELSE 'request' END AS kind,
        CASE WHEN NOT link THEN topic END AS topic,
        CASE WHEN link THEN coalesce({fact("errno", "int")}, reason) ELSE reason END AS errno
    FROM (SELECT *, {FACTS}, kind = 'state' AND topic <=> 'denied.link' AS link FROM bronze)
    WHERE link OR direction = 'denied'"""
_DENIED: Final = f"""
    SELECT ts, rank, transport, peer, claimed, userid, rolemask, topic, errno, kind, dt
    FROM refusals WHERE errno IN (1, 13)
    UNION ALL SELECT timestamp_micros(barred.ts_ns div 1000), rank, barred.transport, barred.via, NULL, userid, NULL,
        topic, CAST(errnum AS INT), 'answer', {day_of("barred.ts_ns")} FROM calls WHERE barred IS NOT NULL
    UNION ALL SELECT ts, rank, transport, via, NULL, NULL, NULL, topic, CAST(errnum AS INT), 'answer', dt FROM bronze
    WHERE type = 'response' AND direction = 'in' AND errnum IN (1, 13) AND NOT {of_broker("role")}
        AND (matchtag = 0 OR origin IS NULL)"""
_FAILED: Final = f"""
    SELECT ts_ns div 60000000000 AS bucket, rank, topic, errno, kind, userid, count(*) AS n FROM (
        SELECT ts_ns, rank, topic, CAST(least(errnum, {ERRNO_MAX}) AS INT) AS errno, 'answer' AS kind, userid FROM rpc
        WHERE what = 1 AND errnum > 0 AND NOT (streaming AND errnum = 61)
        UNION ALL SELECT ts_ns, rank, topic, errno, kind, userid FROM refusals
        WHERE NOT coalesce(endswith(topic, '.disconnect'), false) AND ((via_id = 0 AND NOT {of_broker("role")})
            OR coalesce(type <> 'request' OR matchtag = 0 OR origin IS NULL OR flags & 4 <> 0, true)))
    WHERE NOT coalesce(errno IN (1, 13), false) GROUP BY ALL"""

VIEWS: Final = {"refusals": _REFUSALS, "barred": _DENIED, "failed": _FAILED}
TABLES: Final = {"denied": "SELECT * FROM barred", "errors": windows(60, f"SELECT *, {SERVICE} FROM failed")}
