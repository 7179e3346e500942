"""DISCONNECT to the workers that an earlier run of this broker knew, until each of them speaks.

Deployed NorFab's worker notices only after its hold time that the broker it talks to is another one, and registers
no earlier; but it registers anew at once when it is sent DISCONNECT (NFP, "Opening and Closing a Connection"). Its
connection comes back by itself, and the message has no content, so it may be sent before the connection has proven
whose it is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from broker.nfp.frames import Body, Packet, encode
from broker.nfp.names import Command, Sender
from broker.nfp.records import WorkerSeen
from broker.nfp.server.peers import name_of

FIRST_S: Final = 0.02
"""After the authenticator has let a key in: what is left of the handshake takes about a round trip."""
RETRY_S: Final = 0.1
"""Between two attempts to reach a worker."""
DELIVERED_S: Final = 1.0
"""A worker that was reached has that long to connect and register before it is reminded."""
KEYLESS_S: Final = 0.2
"""Without keys nothing tells that a worker is back: all that are missing are tried so often, some at a time."""
KEYLESS_MAX: Final = 500


class Disconnects:
    """The workers that have not spoken yet.

    Args:
        loop: for timers.
        send: gives an identity a message, in plain frames; False when it is not connected.
        patience_s: how long they are waited for: their hold time.

    Attributes:
        sent: how many were told.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[bytes, list[Body]], bool],
        patience_s: float,
    ) -> None:
        self._loop = loop
        self._send = send
        self._patience_s = patience_s
        self._missing: dict[str, WorkerSeen] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._by_key: dict[str, list[str]] = {}
        self._keyless: deque[str] = deque()
        self.sent = 0

    def begin(self, workers: Iterable[WorkerSeen]) -> None:
        """Tell these workers, those of the earlier run."""
        self._missing = {each.name: each for each in workers if name_of(each.name.encode()) == each.name}
        for name, worker in self._missing.items():
            self._by_key.setdefault(worker.key, []).append(name)
        self._keyless.extend(self._by_key.pop("", ()))
        if self._missing:
            self._timers[""] = self._loop.call_later(self._patience_s, self.close)
        if self._keyless:
            self._try_keyless()

    @property
    def missing(self) -> list[str]:
        """Names of those that have not spoken."""
        return list(self._missing)

    def arrived(self, key: str) -> None:
        """The authenticator has let ``key`` in."""
        for name in self._by_key.get(key, ()):
            self._try_later(name, FIRST_S)

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
        self._by_key.clear()
        self._keyless.clear()

    def _try_later(self, name: str, delay_s: float) -> None:
        if name in self._missing:
            earlier = self._timers.pop(name, None)
            if earlier is not None:
                earlier.cancel()
            self._timers[name] = self._loop.call_later(delay_s, self._try, name)

    def _try(self, name: str) -> None:
        self._try_later(name, DELIVERED_S if self._send_to(name) else RETRY_S)

    def _try_keyless(self) -> None:
        """Try the next of those whose arrival nothing tells."""
        for _ in range(min(KEYLESS_MAX, len(self._keyless))):
            name = self._keyless.popleft()
            if name in self._missing and name not in self._timers:
                self._keyless.append(name)
                if self._send_to(name):
                    self._try_later(name, DELIVERED_S)
        if self._keyless:
            self._timers["\0"] = self._loop.call_later(KEYLESS_S, self._try_keyless)

    def _send_to(self, name: str) -> bool:
        worker = self._missing[name]
        packet = Packet(
            Sender.BROKER, Command.DISCONNECT, dialect=worker.dialect, service=worker.service or "-"
        )
        reached = self._send(name.encode(), encode(packet))
        self.sent += reached
        return reached
