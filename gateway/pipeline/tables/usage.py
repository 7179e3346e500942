"""user_usage: what each user did in a day.

What came in under a userid, what was refused or failed, and how long its calls took; rows without a userid are
nobody's. Additive: rows of disjoint parts of bronze may be added up, and are (``ADDED``), since a user is at many
ranks.
"""

from __future__ import annotations

from typing import Final

_PARTS: Final = """
    SELECT dt, userid, coalesce(type = 'request' AND kind = 'flux', false)::INT AS requests,
        coalesce(type = 'response' AND kind = 'flux', false)::INT AS responses,
        coalesce(type = 'event' AND kind = 'flux', false)::INT AS events, 0 AS denied, 0 AS errors,
        payload_len AS payload_bytes, wire_len AS wire_bytes, 0 AS rpc_ns
    FROM bronze WHERE direction = 'in' AND NOT (kind = 'flux' AND of_broker(role))
    UNION ALL SELECT dt, userid, 0, 0, 0, 1, 0, 0, 0, 0 FROM refusals WHERE errno IN (1, 13)
    UNION ALL SELECT day_of(bucket * 60000000000), userid, 0, 0, 0, 0, n, 0, 0, 0 FROM failed
    UNION ALL SELECT dt, userid, 0, 0, 0, 0, 0, 0, 0, lat_ns FROM rpc WHERE lat_ns IS NOT NULL"""


def _added(rows: str) -> str:
    """One row for each day and user of some."""
    sums = ", ".join(
        f"sum({name})::BIGINT AS {name}"
        for name in ("requests", "responses", "events", "denied", "errors", "payload_bytes", "wire_bytes")
    )
    return (
        f"SELECT dt, userid, {sums}, within(sum(rpc_ns)) AS rpc_ns FROM ({rows}) WHERE userid IS NOT NULL "
        "GROUP BY dt, userid"
    )


TABLES: Final = {"user_usage": _added(_PARTS)}
ADDED: Final = {"user_usage": _added("FROM apart")}
"""Rows of the table that were made apart (``apart``), as one."""
