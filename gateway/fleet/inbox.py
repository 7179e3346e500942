"""What other gateways have told, until it is written down here.

It waits for the next tick, and for as long as the store cannot be written. What comes beyond ``HELD_BYTES`` then is
left out, and ``missed`` says so: once the store can be written again, everything has to be read and asked for anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from gateway.fleet import messages
from gateway.fleet.kept import AT_ONCE
from gateway.fleet.messages import Entered, Revoked
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

    def add(self, said: Revoked | Entered) -> bool:
        """Keep what was told; False: it was left out, and counts as missed."""
        size = _size(said.credentials if isinstance(said, Revoked) else said.rows)
        try:
            while not self.missed and self.held_bytes and self.held_bytes + size > HELD_BYTES:
                self._write_some()
        except Denied:
            self.missed = True
        if self.missed:
            return False
        self.held_bytes += size
        if isinstance(said, Revoked):
            self._revoked |= said.credentials
        else:
            self._rows += said.rows
        return True

    async def write(self) -> None:
        """Write down what waits, in portions; what is heard meanwhile, too: nothing waits when this returns.

        Raises:
            Denied: the store cannot be written; what waits stays.
        """
        while self._revoked or self._rows:
            self._write_some()
            await asyncio.sleep(0)

    def _write_some(self) -> None:
        if self._revoked:
            now, part = self._store.wall(), dict(islice(self._revoked.items(), AT_ONCE))
            self._store.revoke_all({name: until for name, until in part.items() if until >= now})
            for name in part:
                del self._revoked[name]
            self.held_bytes -= _size(part)
        else:
            rows = self._rows[:AT_ONCE]
            messages.take(self._store, rows)
            del self._rows[:AT_ONCE]
            self.held_bytes -= _size(rows)
        if not self._revoked and not self._rows:
            self.held_bytes = 0  # what was told twice counted twice


def _size(texts: Iterable[str] | Iterable[bytes]) -> int:
    return sum(len(each) + ENTRY_BYTES for each in texts)
