"""DISCONNECT to the workers that an earlier run of this broker knew, until each of them speaks.

Deployed NorFab's worker notices only after its hold time that the broker it talks to is another one, and registers
no earlier; but it registers anew at once when it is sent DISCONNECT (NFP, "Opening and Closing a Connection"). Its
connection comes back by itself, and the message has no content, so it may be sent before it is known whether the
connection may have that name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from broker.nfp.frames import Body, Packet, encode
from broker.nfp.names import Command, Sender
from broker.nfp.records import WorkerSeen
from broker.nfp.server.peers import name_of

FIRST_S: Final = 0.02
"""After a connection was let in: a worker that says something by itself does so by then."""
DELIVERED_S: Final = 1.0
"""A worker that was told has that long to connect and register before it is reminded."""
Send = Callable[[list[Body]], bool]
"""Gives one connection a message, in plain frames; False when it is gone, or known by now."""


class Disconnects:
    """The workers that have not spoken yet.

    Args:
        loop: for timers.
        patience_s: how long they are waited for: their hold time.

    Attributes:
        sent: how many were told.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, patience_s: float) -> None:
        self._loop = loop
        self._patience_s = patience_s
        self._missing: dict[str, WorkerSeen] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.sent = 0

    def begin(self, workers: Iterable[WorkerSeen]) -> None:
        """Tell these workers, those of the earlier run."""
        self._missing = {each.name: each for each in workers if name_of(each.name.encode()) == each.name}
        if self._missing:
            self._timers[""] = self._loop.call_later(self._patience_s, self.close)

    @property
    def missing(self) -> list[str]:
        """Names of those that have not spoken."""
        return list(self._missing)

    def arrived(self, name: str, send: Send) -> None:
        """A connection that calls itself ``name`` was let in."""
        if name in self._missing:
            self._tell_later(name, send, FIRST_S)

    def spoke(self, name: str) -> None:
        """``name`` is back."""
        if self._missing.pop(name, None) is not None:
            timer = self._timers.pop(name, None)
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """No more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._missing.clear()

    def _tell_later(self, name: str, send: Send, delay_s: float) -> None:
        earlier = self._timers.pop(name, None)
        if earlier is not None:
            earlier.cancel()
        self._timers[name] = self._loop.call_later(delay_s, self._tell, name, send)

    def _tell(self, name: str, send: Send) -> None:
        del self._timers[name]
        worker = self._missing[name]
        packet = Packet(
            Sender.BROKER, Command.DISCONNECT, dialect=worker.dialect, service=worker.service or "-"
        )
        if send(encode(packet)):  # else it is tried when it has connected anew
            self.sent += 1
            self._tell_later(name, send, DELIVERED_S)
