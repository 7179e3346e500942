"""The server processes that register, and what they say then: checked before anything is done with it (pure)."""

from __future__ import annotations

from typing import Final

import msgspec

from broker.errors import HeadgateError
from broker.identity import Credentials
from broker.nesting import decoder
from broker.oslo.frames import check_name
from broker.oslo.names import LISTENER_CHARS, Reason
from broker.oslo.records import Opening
from broker.transport.zeromq.origin import credentials

RECORDS_EACH_MAX: Final = 1024
"""Records of one listener: seven priorities of each topic it listens to."""
_read_opening: Final = decoder(Opening)


class CannotOpen(HeadgateError):
    """Raised by a room that does not take a listener; the link is answered REFUSED with reason and text."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ServerLink:
    """One server process, as one pipeline knows it.

    Attributes:
        rid: the router's id of its connection.
        origin: its ``Peer-Address``.
        credentials: who it is; ``stamp``: the same as an envelope has it.
        pid: its process; 0 unknown.
        listeners: what it opened, by listener; ``dropping``: those that are to be dropped in one of the next turns.
        lapsed: it was silent for a lease, its listeners are dropped.
    """

    __slots__ = (
        "credentials",
        "dropping",
        "heard",
        "lapsed",
        "listeners",
        "origin",
        "pid",
        "pidfd",
        "rid",
        "silent",
        "stamp",
    )

    def __init__(self, rid: bytes, origin: str, who: Credentials) -> None:
        self.rid = rid
        self.origin = origin
        self.credentials = who
        self.stamp = who.encode()
        self.pid = credentials(origin)[2] or 0
        self.listeners: dict[str, Opening] = {}
        self.dropping: dict[str, Opening] = {}
        self.lapsed = False
        self.heard = True
        self.silent = 0
        self.pidfd = -1

    def __str__(self) -> str:
        return f"pid {self.pid} (uid {self.credentials.userid})"


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
    if opening.credit_bytes < 0:
        return f"saw a credit of {opening.credit_bytes} bytes, expected 0 or more"
    return "" if 0 <= opening.credit <= 1 << 31 else f"saw a credit of {opening.credit}, expected 0 to 2**31"
