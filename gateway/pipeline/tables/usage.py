"""user_usage: what each user did in a day.

What came in under a userid, what was refused or failed, and how long its calls took; rows without a userid are
nobody's. Additive: rows of disjoint parts of bronze may be added up.
"""

from __future__ import annotations

from typing import Final

from gateway.pipeline.tables.sql import of_broker, total

_PARTS: Final = f"""
    SELECT dt, userid, CAST(kind = 'flux' AND type <=> 'request' AS BIGINT) AS requests,
        CAST(kind = 'flux' AND type <=> 'response' AS BIGINT) AS responses,
        CAST(kind = 'flux' AND type <=> 'event' AS BIGINT) AS events, 0L AS denied, 0L AS errors,
        payload_len AS payload_bytes, wire_len AS wire_bytes, CAST(NULL AS BIGINT) AS rpc_ns
    FROM bronze WHERE direction = 'in' AND NOT (kind = 'flux' AND {of_broker("role")})
    UNION ALL SELECT dt, userid, 0, 0, 0, 1, 0, 0, 0, NULL FROM barred
    UNION ALL SELECT CAST(timestamp_seconds(bucket * 60) AS DATE), userid, 0, 0, 0, 0, n, 0, 0, NULL FROM failed
    UNION ALL SELECT dt, userid, 0, 0, 0, 0, 0, 0, 0, lat_ns FROM rpc WHERE lat_ns IS NOT NULL"""
_SUMS: Final = ", ".join(
    f"sum({name}) AS {name}"
    for name in ("requests", "responses", "events", "denied", "errors", "payload_bytes", "wire_bytes")
)

TABLES: Final = {
    "user_usage": f"""
    SELECT dt, userid, {_SUMS}, {total("rpc_ns")} AS rpc_ns FROM ({_PARTS}) WHERE userid IS NOT NULL
    GROUP BY dt, userid"""
}
