"""notifications: envelopes of oslo.messaging's notifications; slow: what was not delivered, or not recorded, because
somebody did not keep up.

One row for each notification that came in; topic and the like are null where the proxy did not see them. ``slow`` is
made of STATE records: ``drop`` events that a subscriber lost, ``discarded`` messages that waited for a link that ended,
``shed`` records that the journal lost.
"""

from __future__ import annotations

from typing import Final

from gateway.pipeline.tables.sql import FACTS, fact

_NOTIFICATIONS: Final = f"""
    SELECT ts, {fact("exchange")} AS exchange, {fact("topic")} AS topic, {fact("event_type")} AS event_type,
        {fact("priority")} AS priority, {fact("publisher_id")} AS publisher_id, payload_len, dt
    FROM (SELECT *, {FACTS} FROM bronze WHERE kind = 'oslo' AND direction = 'in')
    WHERE {fact("what")} = 'notification'"""
_SLOW: Final = f"""
    SELECT ts, rank, CASE WHEN what = 'shed' THEN writer WHEN peer_id <> 0 THEN coalesce(peer, {fact("peer")})
            ELSE {fact("peer")} END AS peer, what,
        CASE what WHEN 'drop' THEN {fact("events", "bigint")} WHEN 'shed' THEN {fact("records", "bigint")}
            ELSE {fact("discarded", "bigint")} END AS events,
        {fact("bytes", "bigint")} AS bytes, coalesce({fact("reason")}, {fact("cause")}) AS reason, dt
    FROM (SELECT *, {FACTS}, CASE topic WHEN 'drop' THEN 'drop' WHEN 'gap' THEN 'shed' WHEN 'link.down' THEN 'discarded'
        END AS what FROM bronze WHERE kind = 'state')
    WHERE what IN ('drop', 'shed') OR what = 'discarded' AND {fact("discarded", "bigint")} > 0"""

TABLES: Final = {"notifications": _NOTIFICATIONS, "slow": _SLOW}
