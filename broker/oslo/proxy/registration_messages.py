"""What server processes say when they register: checked before anything is done with it (pure)."""

from __future__ import annotations

from typing import Final

import msgspec

from broker.errors import HeadgateError
from broker.nesting import decoder
from broker.oslo.frames import check_name
from broker.oslo.names import LISTENER_CHARS, Reason
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.server_link import ServerLink
from broker.oslo.records import Opening

RECORDS_EACH_MAX: Final = 1024
"""Records of one listener: seven priorities of each topic it listens to."""
_read_opening: Final = decoder(Opening)


class CannotOpen(HeadgateError):
    """Raised by a room that does not take a listener; the link is answered REFUSED with reason and text."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def read(rest: list[bytes]) -> Opening:
    """The opening that came behind an OPEN.

    Raises:
        CannotOpen: it is none, or makes no sense.
    """
    opening = _decoded(rest)
    problem = _problem(opening)
    if problem:
        raise CannotOpen(Reason.MALFORMED, problem)
    return opening


def _decoded(rest: list[bytes]) -> Opening:
    if len(rest) != 1:
        raise CannotOpen(Reason.MALFORMED, f"saw OPEN with {len(rest)} frames behind it, expected 1")
    try:
        return _read_opening(rest[0])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CannotOpen(Reason.MALFORMED, f"saw a body of OPEN that is none: {str(error)[:128]}") from None


def _problem(opening: Opening) -> str:
    """What is wrong with it; "" nothing."""
    listener = opening.listener
    if len(listener) != LISTENER_CHARS or not listener.isascii() or not listener.isalnum():
        return f"saw the listener {listener[:64]!r}, expected {LISTENER_CHARS} hexadecimal characters"
    if not 1 <= len(opening.records) <= RECORDS_EACH_MAX:
        return f"saw {len(opening.records)} records, expected 1 to {RECORDS_EACH_MAX}"
    try:
        for record in opening.records:
            check_name(record.exchange, "exchange")
            check_name(record.topic, "topic")
            check_name(record.server, "server")
            check_name(record.pool or "", "pool")
            if record.listener != listener:
                return f"saw a record of the listener {record.listener[:64]!r}, expected {listener!r}"
    except ValueError as error:
        return str(error)
    for name in ("credit_bytes", "held", "held_bytes"):
        if getattr(opening, name) < 0:
            return f"saw {name} {getattr(opening, name)}, expected 0 or more"
    return "" if 0 <= opening.credit <= 1 << 31 else f"saw a credit of {opening.credit}, expected 0 to 2**31"


def objection(acl: AccessControl, link: ServerLink, opening: Opening) -> str:
    """Why the rules do not allow that listener of ``link``; "" they do."""
    who = link.credentials
    for record in opening.records:
        if not acl.may_listen(who, record.exchange, record.topic):
            return f"uid {who.userid} may not listen at {record.exchange[:64]}/{record.topic[:64]}"
    return ""
