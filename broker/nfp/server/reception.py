"""Who may come under which name, asked at the first message of a connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from broker.nfp.access import Access
from broker.nfp.dispatch import Dispatcher
from broker.nfp.names import CLIENT_OF_WORKER, Sender
from broker.nfp.principal import Principal
from broker.nfp.records import JobRow
from broker.nfp.server.ingress import Judged
from broker.nfp.server.name_pins import NamePins
from broker.nfp.server.peers import name_of

log = logging.getLogger("headgate")


class Reception:
    """Rules and pins together.

    Args:
        access: the rules. pins: who owns which name. in_use: whether a name is connected at present.
    """

    def __init__(self, access: Access, name_pins: NamePins, in_use: Callable[[str], bool]) -> None:
        self._access = access
        self._name_pins = name_pins
        self._in_use = in_use

    def welcome(self, identity: bytes, key: str, address: str) -> Principal | None:
        """See ``router.House``."""
        name = name_of(identity)
        principal = self._access.principal_of(key, name)
        if principal is None:
            return None
        if not self._name_pins.fits(name, key):
            owner = self._name_pins.key_of(name) or "a peer in this process"
            how = "nfp.keys gives the name to" if self._access.keys_of(name) else "the name belongs to"
            log.warning("%s: refused as %r: %s %s, not to key %r", address, name, how, owner, key)
            return None
        if name.encode() != identity and self._in_use(name):
            log.warning(
                "%s: refused: its identity is written like the name %r, which is in use", address, name
            )
            return None
        return principal

    def admit(self, peer: Judged, sender: Sender) -> bool:
        """The name of ``peer``, which was welcome and has said something valid, is its own; False: it was cut."""
        key = peer.principal.key
        if _is_libzmqs(peer.identity):
            return True
        lasting = sender is Sender.WORKER or peer.name.endswith(CLIENT_OF_WORKER)
        if self._name_pins.pin(peer.name, key, lasting=lasting or self._access.is_listed(key)):
            return True
        peer.cut(f"no room for one more name, of its key {key!r} or at all")
        return False

    def recalled(self, rows: Iterable[JobRow]) -> None:
        """Jobs of an earlier run: their clients are expected under the keys they had."""
        for row in rows:
            if row.added.holder.startswith("key:") and not _is_libzmqs(row.added.client):
                self._name_pins.expect(name_of(row.added.client), row.added.holder.removeprefix("key:"))


def needed(dispatcher: Dispatcher, name: str, key: str) -> bool:
    """See ``NamePins``; whom the list gives a userid has no pin that ends with jobs."""
    if dispatcher.knows_worker(name.removesuffix(CLIENT_OF_WORKER)):
        return True
    return dispatcher.remembers(name.encode(), f"key:{key}")


def _is_libzmqs(identity: bytes) -> bool:
    """Names that libzmq gives to peers without one are nobody's."""
    return len(identity) == 5 and identity[:1] == b"\0"
