"""What is asked of the processes of other gateways, until each has answered or is gone, or for ``ASK_S``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final

ASK_S: Final = 2.0
"""How long a process of another gateway may take to answer."""


class _Asked:
    """A question that is asked now."""

    def __init__(self, names: Iterable[str]) -> None:
        self.replies = dict.fromkeys(names, b"")
        self.missing = set(self.replies)
        self.all = asyncio.Event()

    def replied(self, name: str, body: bytes) -> None:
        if name in self.missing:
            self.missing.remove(name)
            self.replies[name] = body
            if not self.missing:
                self.all.set()


class Questions:
    """Those that one process asks now."""

    def __init__(self) -> None:
        self._asked: dict[int, _Asked] = {}
        self._numbers = 0

    async def ask(self, names: Iterable[str], say: Callable[[int], None]) -> list[bytes]:
        """What each of ``names`` answers once ``say`` has asked with that number; b"" for one that does not in time."""
        self._numbers += 1
        number, asked = self._numbers, _Asked(names)
        if not asked.missing:
            return []
        self._asked[number] = asked
        try:
            say(number)
            with contextlib.suppress(TimeoutError):  # who did not answer is told of
                async with asyncio.timeout(ASK_S):
                    await asked.all.wait()
        finally:
            del self._asked[number]
        return list(asked.replies.values())

    def replied(self, number: int, name: str, body: bytes) -> None:
        """One has answered."""
        if number in self._asked:
            self._asked[number].replied(name, body)

    def gone(self, name: str) -> None:
        """One answers no more."""
        for asked in self._asked.values():
            asked.replied(name, b"")

    def give_up(self) -> None:
        """Nobody answers any more."""
        for asked in self._asked.values():
            asked.all.set()
