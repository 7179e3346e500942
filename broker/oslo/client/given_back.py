"""How long a notification that its listener gives back waits before it leaves (pure).

A listener that gives back what it cannot do at present would get it again at once, as often as the machine allows. The
first time it leaves nearly at once; each time that it comes back and is given back again it waits longer.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from broker.backoff import Backoff

FIRST_S: Final = 0.01
LONGEST_S: Final = 1.0
KNOWN_MAX: Final = 4096
"""Notifications that are remembered, those given back last."""


class GivenBack:
    """The notifications that one process has given back lately."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[Backoff, float]] = OrderedDict()

    def pause_s(self, number: bytes, now: float) -> float:
        """The notification ``number`` is given back at ``now``: how long it waits. When it stayed away, anew."""
        anew = (Backoff(FIRST_S, LONGEST_S, spread=False), now)
        law, last_s = self._known.pop(number, anew)
        self._known[number] = law, now
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return law.after(now - last_s)
