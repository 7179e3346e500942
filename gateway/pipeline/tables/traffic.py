"""traffic: how much passed, by windows of 10 s and everything that one filters by; tree_traffic: what of it the brokers
said to each other; deliveries: to how many clients events went.

What another broker of the tree sent, or is sent, is counted in ``traffic`` where it entered or leaves; what was
refused further on than at the door had come in, and counts there. An event leaves a broker once, as one record,
however many get it: ``deliveries`` counts who does, clients and, apart from them, brokers of the tree. All are
additive: rows of disjoint parts of bronze may be added up.
"""

from __future__ import annotations

from typing import Final

from gateway.pipeline.tables.sql import SERVICE, SUMS, of_broker, windows

_TRAFFIC: Final = f"""
    SELECT ts_ns div 10000000000 AS bucket, rank, writer, transport, direction, kind, topic, type, userid, {SERVICE},
        {SUMS}
    FROM bronze
    WHERE kind <> 'flux' OR NOT ({of_broker("role")} OR coalesce(direction = 'denied' AND via_id <> 0 AND role <> 'web',
        false)) GROUP BY ALL"""
_TREE_TRAFFIC: Final = f"""
    SELECT ts_ns div 10000000000 AS bucket, rank, peer, role, direction, type, {SERVICE}, {SUMS}
    FROM bronze WHERE kind = 'flux' AND direction <> 'denied' AND {of_broker("role")} GROUP BY ALL"""

_DELIVERIES: Final = f"""
    SELECT bucket, rank, topic, {SERVICE}, userid, count(*) AS events, sum(delivered - brokers) AS n,
        sum((delivered - brokers) * payload_len) AS payload_bytes, sum((delivered - brokers) * wire_len) AS wire_bytes,
        sum(brokers) AS tree_n, sum(brokers * wire_len) AS tree_wire_bytes
    FROM (SELECT *, ts_ns div 10000000000 AS bucket,
            if({of_broker("role")}, delivered, least(delivered, if(claimed < 4294967295, claimed, 0))) AS brokers
        FROM bronze WHERE kind = 'flux' AND type = 'event' AND direction = 'out')
    GROUP BY ALL"""

TABLES: Final = {
    "deliveries": windows(10, _DELIVERIES),
    "traffic": windows(10, _TRAFFIC),
    "tree_traffic": windows(10, _TREE_TRAFFIC),
}
