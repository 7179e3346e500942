"""traffic: how much passed, by windows of 10 s and everything that one filters by; tree_traffic: what of it the brokers
said to each other.

What another broker of the tree sent, or is sent, is counted in ``traffic`` where it entered or leaves; what was refused
further on than at the door had come in, and counts there. Both are additive: rows of disjoint parts of bronze may be
added up.
"""

from __future__ import annotations

from typing import Final

from gateway.pipeline.tables.sql import SERVICE, windows

_SUMS: Final = "count(*) AS n, sum(payload_len)::BIGINT AS payload_bytes, sum(wire_len)::BIGINT AS wire_bytes"
_TRAFFIC: Final = f"""
    SELECT ts_ns // 10000000000 AS bucket, rank, writer, transport, direction, kind, topic, type, userid, {SERVICE},
        {_SUMS}
    FROM bronze
    WHERE kind <> 'flux' OR NOT (of_broker(role) OR coalesce(direction = 'denied' AND via_id <> 0 AND role <> 'web',
        false)) GROUP BY ALL"""
_TREE_TRAFFIC: Final = f"""
    SELECT ts_ns // 10000000000 AS bucket, rank, peer, role, direction, type, {SERVICE}, {_SUMS}
    FROM bronze WHERE kind = 'flux' AND direction <> 'denied' AND of_broker(role) GROUP BY ALL"""

TABLES: Final = {"traffic": windows(10, _TRAFFIC), "tree_traffic": windows(10, _TREE_TRAFFIC)}
