"""A name belongs to the first key that used it (NFP, "Security" is TBD in the text: trust on first use).

Deployed NorFab's peers make their own keys, so the broker cannot know beforehand whose name is whose; but nobody who
comes later with another key gets the name, its jobs and its results. A name that the list of keys knows is its keys'
from the beginning, whoever came as it before it was listed.

Names of workers, of their clients and of listed keys are written down, with their last use. Any other client's name is
kept in memory for as long as it is connected or has jobs. A key may own a number of names; when that, or the table, is
full, the name goes that was not used for longest, but none that is connected, a known worker's or its client's, and
none of a listed key for the sake of another one's. Where nothing may go, the new name is refused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from itertools import islice
from math import inf
from typing import Final

from broker.nfp.contract import Journal
from broker.nfp.names import CLIENT_OF_WORKER
from broker.nfp.records import UNPINNED, Pinned

log = logging.getLogger("headgate")
PINS_MAX: Final = 65_536
"""Names written down: ten thousands of workers with their clients."""
NAMES_PER_KEY_MAX: Final = 4096
"""Names of one key, all that are connected included: as many as one machine has workers, and clients without name."""
USED_EVERY_S: Final = 3600.0
"""The last use of a name is written down at most so often."""
_PROBES: Final = 256
"""Names looked at for one that may go; those that may not count as used now, so that the next look begins behind."""


class NameOwners:
    """Who owns which name.

    Args:
        journal: where pins are written down. in_use: whether a name is connected at present.
        listed: the keys that alone may have a name, by the list of keys; none where it does not know the name.
        is_listed: whether a key is in that list.
        needed: whether a name with its key is a known worker's or its client's, or has jobs.
        clock: monotonic seconds.

    Attributes:
        violations: how often a name came with another key. refused: how often there was no room for a name.
    """

    def __init__(
        self,
        journal: Journal,
        in_use: Callable[[str], bool],
        listed: Callable[[str], frozenset[str]],
        is_listed: Callable[[str], bool],
        needed: Callable[[str, str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal = journal
        self._in_use = in_use
        self._listed = listed
        self._is_listed = is_listed
        self._needed = needed
        self._clock = clock
        self._keys: dict[str, str] = {}
        """Written down; in the order of their last use, as are the next ones."""
        self._passing: dict[str, str] = {}
        self._by_key: dict[str, dict[str, None]] = {}
        self._written: dict[str, float] = {}
        self._reserved: set[str] = set()
        self._unpinned: dict[str, None] = {}
        """Until the next key comes, whose name is written down then."""
        self.violations = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def passing(self) -> int:
        """Names that are not written down."""
        return len(self._passing)

    def restore(self, pins: Iterable[Pinned]) -> None:
        """What an earlier run wrote down, the one used last at the end."""
        for pin in pins:
            if pin.key == UNPINNED:
                self._unpinned[pin.name] = None
            elif pin.key:
                self._keys[pin.name] = pin.key
                self._by_key.setdefault(pin.key, {})[pin.name] = None

    def key_of(self, name: str) -> str:
        """The key that owns ``name``; "" when none does."""
        pinned, listed = self._keys.get(name) or self._passing.get(name, ""), self._listed(name)
        return pinned if not listed or pinned in listed else min(listed)

    def fits(self, name: str, key: str) -> bool:
        """Whether ``key`` ("" without CURVE) may come as ``name``; counts it when not."""
        listed = self._listed(name)
        fits = key in listed if listed else self._owner(name, key) == key
        if fits and name not in self._reserved:
            return True
        self.violations += 1
        return False

    def pin(self, name: str, key: str, *, lasting: bool = True) -> bool:
        """``name``, which fits ``key``, belongs to it from now on. No effect without a key.

        False: there is no room for one more name.
        """
        owner, listed = self._keys.get(name), self._listed(name)
        if not key or (key not in listed if listed else owner not in (None, key)):
            return True
        if owner == key:
            self._use(name)
        elif lasting or name in self._unpinned:
            return self._write(name, key)
        elif name not in self._passing:
            return self._hold(name, key)
        return True

    def expect(self, name: str, key: str) -> None:
        """A client that has jobs from before a restart, and is not there."""
        if name not in self._keys and name not in self._unpinned:
            self._hold(name, key)

    def left(self, name: str) -> None:
        """A connection of ``name`` is lost."""
        key = self._passing.get(name)
        if key is not None and not self._stays(name, key):
            self._drop(name)

    def release_name(self, name: str) -> bool:
        """Let the next key have ``name``; False when nobody owned it."""
        if name not in self._keys and name not in self._passing:
            return False
        self._remove(name)
        self._unpinned[name] = None
        self._journal.put(Pinned(name, UNPINNED))
        if len(self._unpinned) > NAMES_PER_KEY_MAX:
            oldest = next(iter(self._unpinned))
            del self._unpinned[oldest]
            self._journal.put(Pinned(oldest, ""))
        return True

    def reserve(self, name: str) -> None:
        """Keep ``name`` for somebody in this process."""
        self._reserved.add(name)

    def unreserve(self, name: str) -> None:
        """The opposite of ``reserve``."""
        self._reserved.discard(name)

    # -- inner part ------------------------------------------------------------------------------

    def _owner(self, name: str, key: str) -> str:
        """Whose ``name`` is, ``key``'s if nobody's; the jobs of somebody who passed by may have ended since."""
        owner = self._keys.get(name)
        if owner is None:
            owner = self._passing.get(name, key)
            if owner != key and not self._stays(name, owner):
                self._drop(name)
                return key
        return owner

    def _use(self, name: str) -> None:
        key, now = self._keys[name], self._clock()
        self._to_the_end(name, key)
        if now - self._written.get(name, -inf) >= USED_EVERY_S:
            self._written[name] = now
            self._journal.put(Pinned(name, key))

    def _write(self, name: str, key: str) -> bool:
        if name in self._passing or name in self._keys:  # the list of keys may have given it to another one
            self._remove(name)
        if not self._make_room(key) or not (
            len(self._keys) < PINS_MAX or self._forget_one(self._keys, key) or self._is_listed(key)
        ):
            self.refused += 1
            return False
        self._keys[name] = key
        self._by_key.setdefault(key, {})[name] = None
        self._unpinned.pop(name, None)
        self._use(name)
        if name.endswith(CLIENT_OF_WORKER):
            log.info("%s is the client of a worker from now on, and its key is %s", name, key)
        return True

    def _hold(self, name: str, key: str) -> bool:
        if not self._make_room(key):
            self.refused += 1
            return False
        self._passing[name] = key
        self._by_key.setdefault(key, {})[name] = None
        return True

    def _make_room(self, key: str) -> bool:
        mine = self._by_key.get(key, {})
        return len(mine) < NAMES_PER_KEY_MAX or self._forget_one(mine, key)

    def _forget_one(self, names: Iterable[str], key: str) -> bool:
        """Forget the first of ``names`` that may go for a new one of ``key``."""
        for name in list(islice(names, _PROBES)):
            owner = self._keys.get(name) or self._passing[name]
            if not self._stays(name, owner) and (owner == key or not self._is_listed(owner)):
                self._drop(name)
                return True
            self._to_the_end(name, owner)
        return False

    def _to_the_end(self, name: str, key: str) -> None:
        if name in self._keys:
            self._keys[name] = self._keys.pop(name)
        mine = self._by_key[key]
        mine[name] = mine.pop(name)

    def _stays(self, name: str, key: str) -> bool:
        return self._in_use(name) or self._needed(name, key)

    def _drop(self, name: str) -> None:
        if name in self._keys:
            self._journal.put(Pinned(name, ""))
        self._remove(name)

    def _remove(self, name: str) -> None:
        self._written.pop(name, None)
        key = self._keys.pop(name, "") or self._passing.pop(name)
        mine = self._by_key[key]
        mine.pop(name, None)
        if not mine:
            del self._by_key[key]
