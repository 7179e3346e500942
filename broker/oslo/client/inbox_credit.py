"""How much one pipeline may send ahead to a listener, counted at its inbox (pure).

Credit for a message is given back when the application has taken it. What came and is not given back yet is **held**: a
proxy that the listener opens at counts that as given out already, by the proxy before it (``records.Opening``).
"""

# compiled: mypyc

from __future__ import annotations

from typing import Final

from broker.oslo.names import Pipeline

CREDIT: Final = 1024
"""Casts, or notifications, that a proxy may send ahead of what was taken; fewer where an inbox holds fewer."""
CALLS: Final = 10_000
"""The same of calls, which wait in no queue of the proxy: as many as an inbox holds by default."""
SMALL: Final = 128
"""A window of so many at most has credit for each message given back at once: it is soon used up."""
CREDIT_PARTS: Final = 8
"""Of others credit is given back when such a part was taken, of messages or bytes ..."""
CREDIT_BYTES: Final = 4 << 20
"""... or as much, where that is less; the rest is given back at the next look (``registrations``)."""


class InboxCredit:
    """The credit of one pipeline. The thread of the sockets writes what came and what was given back, whoever has the
    inbox's lock what was taken.

    Args:
        pipeline: whose messages.
        limits: messages and bytes that the inbox holds.

    Attributes:
        window, window_bytes: messages and bytes that may come before any was taken.
    """

    __slots__ = (
        "_came", "_came_bytes", "_given", "_given_bytes", "_step", "_step_bytes", "_taken", "_taken_bytes", "pipeline",
        "window", "window_bytes",
    )  # fmt: skip

    def __init__(self, pipeline: Pipeline, limits: tuple[int, int]) -> None:
        self.pipeline = pipeline
        self.window = min(CALLS if pipeline is Pipeline.CALL else CREDIT, limits[0])
        self.window_bytes = limits[1]
        self._step = 1 if self.window <= SMALL else self.window // CREDIT_PARTS
        self._step_bytes = min(self.window_bytes // CREDIT_PARTS, CREDIT_BYTES)
        self._came = self._came_bytes = self._taken = self._taken_bytes = self._given = self._given_bytes = 0

    @property
    def held(self) -> int:
        """Messages that came and for which no credit was given back."""
        return self._came - self._given

    @property
    def held_bytes(self) -> int:
        """The same in bytes."""
        return self._came_bytes - self._given_bytes

    @property
    def owed(self) -> int:
        """Messages that were taken and for which no credit was given back."""
        return self._taken - self._given

    def come(self, size: int) -> None:
        """A message came."""
        self._came += 1
        self._came_bytes += size

    def take(self, size: int) -> bool:
        """It was taken. True: so much is owed now that it is to be given back."""
        self._taken += 1
        self._taken_bytes += size
        return (
            self._taken - self._given >= self._step
            or self._taken_bytes - self._given_bytes >= self._step_bytes
        )

    def give(self, messages: int) -> None:
        """Credit for so many of what is ``owed`` was given back: all of it, or what was taken since comes next."""
        self._given += messages
        self._given_bytes = self._taken_bytes
