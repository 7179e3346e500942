"""denied: what was refused for want of rights; errors: what failed otherwise, by minute, errno, topic and user.

``kind`` of what was refused: ``web`` came by WebSocket, ``link`` is a link that was not let in (a STATE record
``denied.link`` of address, uid, errno and reason), ``answer``: a client's service said it; anything else is a
``request``. A broker that refuses says so once, wherever the request came from.

``errors`` has each failure once: calls that failed, where they entered, and refusals that are no call of anybody's: at
a client's own broker, or of requests that want no response. What is refused further on fails as a call. A stream that
ends well (ENODATA) did not fail, nor did a notice that a client left (SERVICE.disconnect).
"""

from __future__ import annotations

from typing import Final

from gateway.pipeline.schema import ERRNO_MAX
from gateway.pipeline.tables.sql import SERVICE, windows

_REFUSALS: Final = """
    SELECT * REPLACE (CASE WHEN link THEN coalesce(fact(detail, 'address'), peer) ELSE peer END AS peer,
        CASE WHEN link THEN coalesce(TRY_CAST(fact(detail, 'uid') AS BIGINT), userid) ELSE userid END AS userid,
        CASE WHEN link THEN 'link' WHEN transport = 'websocket' THEN 'web' ELSE 'request' END AS kind,
        CASE WHEN NOT link THEN topic END AS topic),
        CASE WHEN link THEN coalesce(TRY_CAST(fact(detail, 'errno') AS INTEGER), reason) ELSE reason END AS errno
    FROM (SELECT *, coalesce(kind = 'state' AND topic = 'denied.link', false) AS link FROM bronze)
    WHERE link OR direction = 'denied'"""
_DENIED: Final = """
    SELECT ts, rank, transport, claimed, rolemask, dt, peer, userid, topic, errno, kind
    FROM refusals WHERE errno IN (1, 13)
    UNION ALL SELECT ts, rank, transport, NULL, NULL, dt, via, NULL, topic, errnum, 'answer' FROM bronze
    WHERE type = 'response' AND direction = 'in' AND errnum IN (1, 13) AND NOT of_broker(role)"""
_FAILED: Final = f"""
    SELECT ts_ns // 60000000000 AS bucket, rank, topic, errno, kind, userid, count(*) AS n FROM (
        SELECT ts_ns, rank, topic, least(errnum, {ERRNO_MAX}) AS errno, 'answer' AS kind, userid FROM rpc
        WHERE errnum > 0 AND NOT (streaming AND errnum = 61)
        UNION ALL SELECT ts_ns, rank, topic, errno, kind, userid FROM refusals
        WHERE NOT coalesce(ends_with(topic, '.disconnect'), false) AND ((via_id = 0 AND NOT of_broker(role))
            OR coalesce(type <> 'request' OR matchtag = 0 OR origin IS NULL OR flags & 4 <> 0, true)))
    WHERE NOT coalesce(errno IN (1, 13), false) GROUP BY ALL"""

STEPS: Final = {"refusals": _REFUSALS}
VIEWS: Final = {"failed": _FAILED}
TABLES: Final = {"denied": _DENIED, "errors": windows(60, f"SELECT *, {SERVICE} FROM failed")}
