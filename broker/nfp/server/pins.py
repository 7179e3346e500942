"""A name belongs to the first key that used it (NFP, "Security" is TBD in the text: trust on first use).

Deployed NorFab's peers make their own keys, so the broker cannot know beforehand whose name is whose; but nobody who
comes later with another key gets the name, its jobs and its results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from broker.nfp.contract import Journal
from broker.nfp.records import Pinned

PINS_MAX: Final = 65_536
"""Names remembered. Beyond it the oldest that is not connected is forgotten: inventing names fills no memory."""
_PROBES: Final = 64
"""How many of the oldest names are looked at for one that is not connected."""


class Pins:
    """Who owns which name.

    Args:
        journal: where pins are written down. in_use: whether a name is connected at present.

    Attributes:
        violations: how often a name came with another key.
    """

    def __init__(self, journal: Journal, in_use: Callable[[str], bool]) -> None:
        self._journal = journal
        self._in_use = in_use
        self._keys: dict[str, str] = {}
        self._reserved: set[str] = set()
        self.violations = 0

    def __len__(self) -> int:
        return len(self._keys)

    def restore(self, pins: Iterable[Pinned]) -> None:
        """What an earlier run wrote down, oldest first."""
        self._keys.update((pin.name, pin.key) for pin in pins if pin.key)

    def key_of(self, name: str) -> str:
        """The key that owns ``name``; "" when none does."""
        return self._keys.get(name, "")

    def fits(self, name: str, key: str) -> bool:
        """Whether ``key`` ("" without CURVE) may come as ``name``; counts it when not."""
        owner = self._keys.get(name)
        if name not in self._reserved and (owner is None or owner == key):
            return True
        self.violations += 1
        return False

    def pin(self, name: str, key: str) -> None:
        """``name`` belongs to ``key`` from now on, unless it belongs to somebody. No effect without a key."""
        if not key or name in self._keys:
            return
        if len(self._keys) >= PINS_MAX:
            self._forget_one()
        self._keys[name] = key
        self._journal.put(Pinned(name, key))

    def unpin(self, name: str) -> bool:
        """Let the next key have ``name``; False when nobody owned it."""
        if self._keys.pop(name, None) is None:
            return False
        self._journal.put(Pinned(name, ""))
        return True

    def reserve(self, name: str) -> None:
        """Keep ``name`` for somebody in this process."""
        self._reserved.add(name)

    def release(self, name: str) -> None:
        """The opposite of ``reserve``."""
        self._reserved.discard(name)

    def _forget_one(self) -> None:
        for name, _ in zip(self._keys, range(_PROBES), strict=False):
            if not self._in_use(name):
                self.unpin(name)
                return
