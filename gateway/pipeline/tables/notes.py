"""notifications: envelopes of oslo.messaging's notifications; slow: what was not delivered, or not recorded, because
somebody did not keep up.

One row for each notification that came in; topic and the like are null where the proxy did not see them. ``slow`` is
made of STATE records: ``drop`` events that a subscriber lost, ``discarded`` messages that waited for a link that ended,
``shed`` records that the journal lost.
"""

from __future__ import annotations

from typing import Final

_NOTIFICATIONS: Final = """
    SELECT ts, fact(detail, 'exchange') AS exchange, fact(detail, 'topic') AS topic,
        fact(detail, 'event_type') AS event_type, fact(detail, 'priority') AS priority,
        fact(detail, 'publisher_id') AS publisher_id, payload_len, dt
    FROM bronze WHERE kind = 'oslo' AND direction = 'in' AND fact(detail, 'what') = 'notification'"""
_SLOW: Final = """
    SELECT ts, rank, CASE WHEN what = 'shed' THEN writer WHEN peer_id <> 0 THEN coalesce(peer, fact(detail, 'peer'))
            ELSE fact(detail, 'peer') END AS peer, what,
        TRY_CAST(fact(detail, CASE what WHEN 'drop' THEN 'events' WHEN 'shed' THEN 'records' ELSE 'discarded' END)
            AS BIGINT) AS events,
        TRY_CAST(fact(detail, 'bytes') AS BIGINT) AS bytes, coalesce(fact(detail, 'reason'), fact(detail, 'cause'))
            AS reason, dt
    FROM (SELECT *, CASE topic WHEN 'drop' THEN 'drop' WHEN 'gap' THEN 'shed' WHEN 'link.down' THEN 'discarded' END
        AS what FROM bronze WHERE kind = 'state')
    WHERE what IN ('drop', 'shed') OR TRY_CAST(fact(detail, 'discarded') AS BIGINT) > 0 AND what = 'discarded'"""

TABLES: Final = {"notifications": _NOTIFICATIONS, "slow": _SLOW}
