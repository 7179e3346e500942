"""Names and keys: the broker's own key files, and a name belongs to the first key that used it (NFP, "Security" is TBD
in the text: trust on first use).

Deployed NorFab's peers make their own keys, so the broker cannot know beforehand whose name is whose; but nobody who
comes later with another key gets the name, its jobs and its results. A name that the list of keys knows is its keys'
from the beginning, whoever came as it before it was listed.

Names of workers, of their clients and of listed keys are written down, with their last use. Any other client's name is
kept in memory for as long as it is connected or has jobs. A key may own a number of names; when that, or the table, is
full, the name goes that was not used for longest, but none that is connected, a known worker's or its client's, and
none of a listed key for the sake of another one's. Where nothing may go, the new name is refused.

In the base directory::

    broker.key_secret   the broker's certificate, mode 0600 (another place: the setting key_secret)
    broker.key          its public half: what workers and clients need
    owner.key_secret    a client's certificate that is an owner here, for whoever can read it; owner.key its public half
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from broker import home
from broker.errors import ConfigError
from broker.nfp.access import Access
from broker.nfp.contract import Journal
from broker.nfp.names import CLIENT_OF_WORKER
from broker.nfp.peer.keys import kept_certificate
from broker.nfp.records import UNPINNED, Pinned
from broker.obstacles import obstacle
from broker.settings.nfp import KeyEntry, NfpSection
from broker.transport import curve
from broker.transport.curve import Certificate

log = logging.getLogger("headgate")
PINS_MAX: Final = 65_536
"""Names: ten thousands of workers with their clients."""
NAMES_PER_KEY_MAX: Final = 4096
"""Names of one key, all that are connected included: as many as one machine has workers, and clients without name."""
USED_EVERY_S: Final = 3600.0
"""The last use of a name is written down at most so often."""
_PROBES: Final = 256
"""Names looked at for one that may go; those that may not count as used now, so that the next look begins behind."""
OWNER: Final = "owner"


def name_of(identity: bytes) -> str:
    """A ZeroMQ identity as text: itself when it is printable UTF-8, else hexadecimal digits.

    >>> name_of(b"worker-1"), name_of(bytes([0, 1, 2, 3, 4]))
    ('worker-1', '0001020304')
    """
    try:
        text = identity.decode()
    except UnicodeDecodeError:
        return identity.hex()
    return text if text.isprintable() else identity.hex()


@dataclass(slots=True)
class _Owner:
    """Of a name."""

    key: str
    lasting: bool
    """Written down, and not only kept while it is connected or has jobs."""
    written_s: float = -inf
    """When its last use was written down."""


class NameOwners:
    """Who owns which name; ``len`` is how many are written down.

    Args:
        journal: where pins are written down. access: the list of keys.
        here: whether a name is that of a peer in this process, and nobody else's.
        in_use: whether a name is connected at present.
        needed: whether a name with its key is a known worker's or its client's, or has jobs.
        clock: monotonic seconds.

    Attributes:
        violations: how often a name came with another key. refused: how often there was no room for a name.
    """

    def __init__(
        self,
        journal: Journal,
        access: Access,
        here: Callable[[str], bool],
        in_use: Callable[[str], bool],
        needed: Callable[[str, str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal = journal
        self._access = access
        self._here = here
        self._in_use = in_use
        self._needed = needed
        self._clock = clock
        self._owners: dict[str, _Owner] = {}
        """By name, in the order of their last use, as are the names of each key."""
        self._by_key: dict[str, dict[str, None]] = {}
        self._lasting = 0
        self._unpinned: dict[str, None] = {}
        """Until the next key comes, whose name is written down then."""
        self.violations = 0
        self.refused = 0

    def __len__(self) -> int:
        return self._lasting

    @property
    def passing(self) -> int:
        """Names that are not written down."""
        return len(self._owners) - self._lasting

    def restore(self, pins: Iterable[Pinned]) -> None:
        """What an earlier run wrote down, the one used last at the end."""
        for pin in pins:
            if pin.key == UNPINNED:
                self._unpinned[pin.name] = None
            elif pin.key:
                self._add(pin.name, pin.key, lasting=True)

    def key_of(self, name: str) -> str:
        """The key that owns ``name``; "" when none does."""
        owner, listed = self._owners.get(name), self._access.keys_of(name)
        key = owner.key if owner is not None else ""
        return key if not listed or key in listed else min(listed)

    def fits(self, name: str, key: str) -> bool:
        """Whether ``key`` ("" without CURVE) may come as ``name``; counts it when not."""
        owner, listed = self._owners.get(name), self._access.keys_of(name)
        if listed:
            fits = key in listed
        elif owner is None or owner.key == key:
            fits = True
        else:
            fits = not owner.lasting and not self._stays(name, owner.key)
            if fits:  # the jobs of somebody who passed by have ended since
                self._remove(name)
        if fits and not self._here(name):
            return True
        self.violations += 1
        return False

    def pin(self, name: str, key: str, *, lasting: bool = True) -> bool:
        """``name``, which fits ``key``, belongs to it from now on. No effect without a key.

        False: there is no room for one more name.
        """
        owner, listed = self._owners.get(name), self._access.keys_of(name)
        if not key or (listed and key not in listed):
            return True
        lasting = lasting or name in self._unpinned
        if owner is not None:
            if owner.lasting and owner.key == key:
                self._use(name, owner)
                return True
            if not listed if owner.lasting else not lasting:
                return True
            self._remove(name)  # it is written down now, or the list of keys gives it to another one
        if not self._make_room(key):
            self.refused += 1
            return False
        owner = self._add(name, key, lasting=lasting)
        if lasting:
            self._unpinned.pop(name, None)
            self._use(name, owner)
            if name.endswith(CLIENT_OF_WORKER):
                log.info("%s is the client of a worker from now on, and its key is %s", name, key)
        return True

    def expect(self, name: str, key: str) -> None:
        """A client that has jobs from before a restart, and is not there."""
        if name not in self._owners and name not in self._unpinned:
            self.pin(name, key, lasting=False)

    def left(self, name: str) -> None:
        """A connection of ``name`` is lost."""
        owner = self._owners.get(name)
        if owner is not None and not owner.lasting and not self._stays(name, owner.key):
            self._remove(name)

    def release_name(self, name: str) -> bool:
        """Let the next key have ``name``; False when nobody owned it."""
        if name not in self._owners:
            return False
        self._remove(name)
        self._unpinned[name] = None
        self._journal.put(Pinned(name, UNPINNED))
        if len(self._unpinned) > NAMES_PER_KEY_MAX:
            oldest = next(iter(self._unpinned))
            del self._unpinned[oldest]
            self._journal.put(Pinned(oldest, ""))
        return True

    # -- inner part ------------------------------------------------------------------------------

    def _stays(self, name: str, key: str) -> bool:
        return self._in_use(name) or self._needed(name, key)

    def _use(self, name: str, owner: _Owner) -> None:
        now = self._clock()
        self._to_the_end(name, owner)
        if now - owner.written_s >= USED_EVERY_S:
            owner.written_s = now
            self._journal.put(Pinned(name, owner.key))

    def _make_room(self, key: str) -> bool:
        mine = self._by_key.get(key, {})
        if len(mine) >= NAMES_PER_KEY_MAX and not self._forget_one(mine, key):
            return False
        full = len(self._owners) >= PINS_MAX
        return not full or self._forget_one(self._owners, key) or self._access.is_listed(key)

    def _forget_one(self, names: Iterable[str], key: str) -> bool:
        """Forget the first of ``names`` that may go for a new one of ``key``."""
        for name in list(islice(names, _PROBES)):
            owner = self._owners[name]
            if not self._stays(name, owner.key) and (
                owner.key == key or not self._access.is_listed(owner.key)
            ):
                if owner.lasting:
                    self._journal.put(Pinned(name, ""))
                self._remove(name)
                return True
            self._to_the_end(name, owner)
        return False

    def _add(self, name: str, key: str, *, lasting: bool) -> _Owner:
        owner = self._owners[name] = _Owner(key, lasting)
        self._by_key.setdefault(key, {})[name] = None
        self._lasting += lasting
        return owner

    def _to_the_end(self, name: str, owner: _Owner) -> None:
        self._owners[name] = self._owners.pop(name)
        mine = self._by_key[owner.key]
        mine[name] = mine.pop(name)

    def _remove(self, name: str) -> None:
        owner = self._owners.pop(name)
        self._lasting -= owner.lasting
        mine = self._by_key[owner.key]
        del mine[name]
        if not mine:
            del self._by_key[owner.key]


# -- the broker's own keys --------------------------------------------------------------------------


class BrokerKeys(NamedTuple):
    """Both are None in plaintext."""

    broker: Certificate | None
    owner: Certificate | None


def prepare(section: NfpSection) -> BrokerKeys:
    """Make the base directory and what is missing in it.

    Raises:
        ConfigError: something cannot be read or written; a ``key_secret`` that was named and is not there.
    """
    base = Path(section.base_dir)
    try:
        home.make(base)
    except OSError as error:
        raise obstacle(
            f"{base}: cannot make the base directory: {error.strerror}", error, absent=True
        ) from error
    if not section.curve:
        return BrokerKeys(None, None)
    secret = Path(section.secret_file)
    broker = curve.load(secret) if section.key_secret is not None else kept_certificate(secret, "NFPBroker")
    _show(broker, base / "broker.key")
    owner = kept_certificate(base / "owner.key_secret", OWNER)
    _show(owner, base / "owner.key")
    return BrokerKeys(broker, owner)


def access_of(section: NfpSection, keys: BrokerKeys) -> Access:
    """Make the rules of the settings, with the owner's key in the base directory listed."""
    listed = list(section.keys)
    if keys.owner is not None:
        listed.append(KeyEntry(key=keys.owner.public_key, name=OWNER, standing="owner", services=("*",)))
    return Access(
        listed,
        section.rules,
        section.tasks,
        unlisted=section.unlisted,
        offer_unlisted=section.offer_unlisted,
        results=section.results,
    )


def _show(certificate: Certificate, path: Path) -> None:
    """Write the public half to ``path`` unless it stands there."""
    try:
        if curve.load_public(path).public_key == certificate.public_key:
            return
    except ConfigError:
        pass  # not there, or something else
    curve.save(certificate.public, path, replace=True)
