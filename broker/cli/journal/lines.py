"""A record as one line for people, or as JSON."""

from __future__ import annotations

from typing import Any, Final

from broker.cli import content
from broker.cli.exits import error_name
from broker.cli.journal.shared_options import clock
from broker.cli.screen import Screen
from broker.errors import DecodeError
from broker.identity import USERID_UNKNOWN
from broker.journal.reading.records import Record
from broker.safe_text import one_line
from broker.wire.message import NODEID_ANY

SHOWN_CHARS: Final = 80
"""How much of a payload or detail is shown in a line."""
_LEFT_OUT: Final = frozenset({"body"})
_ARROWS: Final = {"in": "->", "out": "<-", "denied": "XX"}
STYLES: Final = {"denied": "red", "out": "dim"}


def as_value(record: Record, payloads: bool = True) -> dict[str, Any]:
    """For ``--json``: every field; ``payload`` as a JSON value, a text or ``{"hex": ...}``."""
    told = {name: _clean(getattr(record, name)) for name in record.__struct_fields__ if name not in _LEFT_OUT}
    told["time"] = clock(record.ts_ns).replace(" ", "T") + "Z"
    if payloads:
        told["payload"] = _payload_value(record)
    return told


def _clean(value: Any) -> Any:
    """Text that JSON can carry: bytes that are not UTF-8 are shown as what they are."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _payload_value(record: Record) -> Any:
    try:
        payload = record.payload
    except (DecodeError, IndexError):
        return None
    return None if payload is None else content.as_value(payload)


def as_text(record: Record) -> str:
    """One line: time, writer and number, direction, kind or type, who, user, topic, what came of it, payload."""
    words = [
        clock(record.ts_ns),
        f"{record.writer}:{record.seq}",
        _ARROWS.get(record.direction, record.direction),
        record.type or record.kind,
        _who(record),
        _user(record),
        record.topic,
        *_facts(record),
        _content(record),
    ]
    return one_line(" ".join(word for word in words if word))


def show(screen: Screen, record: Record) -> None:
    """Print it."""
    if screen.as_json:
        screen.record(as_value(record), "")
    else:
        screen.line(as_text(record), STYLES.get(record.direction, "yellow" if record.kind == "state" else ""))


def _who(record: Record) -> str:
    peer = record.peer or "-"
    return f"{peer}({record.via})" if record.via else peer


def _user(record: Record) -> str:
    if record.userid is None:
        return ""
    user = "?" if record.userid == USERID_UNKNOWN else str(record.userid)
    if record.delivered is None and record.claimed not in (record.userid, USERID_UNKNOWN, 0):
        user += f"(claimed {record.claimed})"
    return f"user={user}"


def _facts(record: Record) -> list[str]:
    facts = []
    if record.nodeid not in (None, NODEID_ANY):
        facts.append(f"rank={record.nodeid}")
    if record.type in ("request", "response") and record.matchtag:
        facts.append(f"tag={record.matchtag}")
    if record.errnum:
        facts.append(error_name(record.errnum))
    if record.type == "event":
        facts.append(f"seq={record.event_seq}")
    if record.delivered is not None:
        facts.append(f"delivered={record.delivered}")
        if record.claimed not in (0, USERID_UNKNOWN):
            facts.append(f"brokers={record.claimed}")
    if record.reason:
        facts.append(f"denied:{error_name(record.reason)}")
    return facts


def _content(record: Record) -> str:
    if record.detail is not None:
        text = record.detail
    elif record.stripped and record.payload_len:
        return f"[{record.payload_len} bytes not captured]"
    else:
        try:
            text = content.as_text(record.payload)
        except (DecodeError, IndexError):
            return "[damaged]"
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}... {record.payload_len} bytes"
