"""The server processes that register: what they say then, how their end is noticed, their listeners that are dropped.

Listeners are dropped because their link has ended, or was silent for a lease: some in each turn. A process with
thousands of them would else keep everybody waiting: here, at the directory, and wherever that is heard.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from broker.errors import HeadgateError
from broker.identity import Credentials
from broker.nesting import decoder
from broker.oslo.frames import check_name
from broker.oslo.names import LISTENER_CHARS, Reason
from broker.oslo.origin import credentials
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.socket import Frames
from broker.oslo.records import Opening

RECORDS_EACH_MAX: Final = 1024
"""Records of one listener: seven priorities of each topic it listens to."""
DROPS_MAX: Final = 64
"""Listeners that are dropped in one turn; few are dropped at once."""
_decode_opening: Final = decoder(Opening)


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

    def watch(self, reactor: Reactor, died: Callable[[ServerLink], None]) -> bool:
        """Have ``died`` called at once when the process ends; False: the kernel cannot tell, the lease has to do.

        Raises:
            ProcessLookupError: it has ended.
        """
        if not self.pid:
            return True
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            raise
        except OSError:  # not allowed in this container, or no descriptor left
            return False
        reactor.add_reader(self.pidfd, lambda: died(self))
        return True

    def unwatch(self, reactor: Reactor) -> None:
        """Its end need not be told any more. Harmless twice."""
        if self.pidfd >= 0:
            reactor.remove_reader(self.pidfd)
            with contextlib.suppress(OSError):
                os.close(self.pidfd)
            self.pidfd = -1


class CannotOpen(HeadgateError):
    """Raised by a room that does not take a listener; the link is answered REFUSED with reason and text."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def read_opening(rest: list[bytes]) -> Opening:
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
        return _decode_opening(rest[0])
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


class ListenerDrops:
    """What is to be dropped of each link, one of each link in turn.

    Args:
        reactor: whose turns.
        drop: drops one listener of ``link.dropping``.
        finished: takes a link that has ended, and what waited for it, when its last listener was dropped.
    """

    def __init__(
        self,
        reactor: Reactor,
        drop: Callable[[ServerLink, str], None],
        finished: Callable[[ServerLink, list[Frames]], None],
    ) -> None:
        self._reactor = reactor
        self._drop = drop
        self._finished = finished
        self._queue: deque[tuple[ServerLink, deque[str], list[Frames] | None]] = deque()
        self._turn = -1
        self._left = 0

    def put(self, link: ServerLink, waiting: list[Frames] | None = None) -> None:
        """Drop all listeners of ``link``; ``waiting``: it has ended, and that waited for it."""
        link.dropping.update(link.listeners)
        link.listeners = {}
        self._queue.append((link, deque(link.dropping), waiting))
        if len(self._queue) == 1:
            self._go_on()

    def clear(self) -> None:
        """Drop nothing any more."""
        self._queue.clear()

    def _go_on(self) -> None:
        if self._turn != self._reactor.turns:
            self._turn, self._left = self._reactor.turns, DROPS_MAX
        try:
            while self._queue and self._left:
                self._next()
        finally:
            if self._queue:
                self._reactor.call_soon(self._go_on)

    def _next(self) -> None:
        link, listeners, waiting = self._queue.popleft()
        if listeners:
            self._left -= 1
            listener = listeners.popleft()
            self._queue.append((link, listeners, waiting))
            if listener in link.dropping:  # else it has moved to another link meanwhile
                self._drop(link, listener)
        elif waiting is not None:
            self._finished(link, waiting)
