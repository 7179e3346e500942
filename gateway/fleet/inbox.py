"""What other gateways have told, until it is written down here.

It waits for the next tick, and for as long as the store cannot be written. What comes beyond ``HELD_BYTES`` then is
left out, and ``missed`` says so: once the store can be written again, everything has to be read and asked for anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.fleet.messages import Entered, Revoked
from gateway.identity import shared
from gateway.principal import Denied

if TYPE_CHECKING:
    from gateway.identity.store import Store

HELD_BYTES: Final = 4 << 20
"""What may wait, besides one message."""
ENTRY_BYTES: Final = 200
"""What each entry takes besides its text."""


class Inbox:
    """Revocations and logins of others.

    Args:
        store: where they are written.

    Attributes:
        held_bytes: about what waits. missed: some of it was left out; whoever reads everything anew sets it back.
    """

    def __init__(self, store: Store) -> None:
        self.held_bytes = 0
        self.missed = False
        self._store = store
        self._revoked: dict[str, float] = {}
        self._rows: list[bytes] = []

    def add(self, said: Revoked | Entered) -> None:
        """Keep what was told, or count it as missed."""
        texts = said.credentials if isinstance(said, Revoked) else said.rows
        size = sum(len(each) + ENTRY_BYTES for each in texts)
        if self.held_bytes and self.held_bytes + size > HELD_BYTES:
            self._make_room()
        if self.missed:
            return
        self.held_bytes += size
        if isinstance(said, Revoked):
            self._revoked |= said.credentials
        else:
            self._rows += said.rows

    def _make_room(self) -> None:
        if not self.missed:  # else it was tried, and the next tick tries again
            try:
                self.write()
            except Denied:
                self.missed = True

    def write(self) -> None:
        """Write down what waits.

        Raises:
            Denied: the store cannot be written; what waits stays.
        """
        if self._revoked:
            now = self._store.wall()
            self._store.revoke_all({name: until for name, until in self._revoked.items() if until >= now})
            self._revoked = {}
        if self._rows:
            shared.take(self._store, self._rows)
            self._rows = []
        self.held_bytes = 0
