"""Which credentials do not count any more: tokens that are missing in their file, certificates on a revocation list,
and what somebody revoked.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.identity.certificates import RevocationLists
from gateway.identity.store import Store
from gateway.identity.tokens import CREDENTIAL, TokenFile, token_path
from gateway.settings.schema import GatewaySettings

TLS: Final = "tls:"
"""What stands before a certificate's fingerprint where credentials of all kinds are named."""
_NEVER: Final = (-1, -1, -1)


class Revocations:
    """What one process knows of revocations.

    Args:
        settings: ``tokens``, ``access.client_crls`` and the authorities of listeners count.
        store: has what was revoked, in whichever process.

    Attributes:
        tokens: those that count. lists: of client certificates. epoch: changes with whatever `take_up` finds.
    """

    def __init__(self, settings: GatewaySettings, store: Store) -> None:
        self._store = store
        self.tokens = TokenFile(token_path(settings))
        authorities = (entry.client_ca for entry in settings.listen if entry.client_ca is not None)
        self.lists = RevocationLists(settings.access.client_crls, authorities)
        self._reading = asyncio.Lock()
        self._revoked: dict[str, float] = store.revocations(logins=False)
        self.epoch = self._told = self._numbers()

    @property
    def problem(self) -> str:
        """Why a file that is there now was not taken; "" when all were."""
        return "; ".join(filter(None, (self.tokens.problem, self.lists.problem)))

    async def read(self) -> None:
        """Read what is another than before; a long list takes a second, and so not in the loop."""
        if self.lists.files:
            async with self._reading:
                await asyncio.to_thread(self.lists.refresh)
        self.take_up()

    def take_up(self) -> None:
        """Read revocations and tokens if they are others than before."""
        self.tokens.refresh()
        seen = self._numbers()
        if seen != self.epoch:
            self._revoked = self._store.revocations(logins=False)
            self.epoch = seen

    def poll(self) -> bool:
        """Whether credentials changed since this was asked last.

        Raises:
            Denied: the store cannot be read.
        """
        self.take_up()
        changed = self._told != self.epoch
        self._told = self.epoch
        return changed

    def untold(self) -> None:
        """Have the next `poll` report the last change again: whoever was told of it failed."""
        self._told = _NEVER

    def ended(self, credential: str, user: str) -> bool:
        """Whether a token of ``user``, a JWT or a certificate counts no more; of a login `Logins.open` says it."""
        if credential in self._revoked:
            return True
        if credential.startswith(TLS):
            return self.lists.revoked(credential.removeprefix(TLS))
        if not credential.startswith(CREDENTIAL):
            return False
        token = self.tokens.get(credential.removeprefix(CREDENTIAL))
        return token is None or token.user != user

    def ended_by_now(self, credential: str, user: str) -> bool:
        """The same, by what other processes have revoked meanwhile, too."""
        self.take_up()
        return self.ended(credential, user)

    def _numbers(self) -> tuple[int, int, int]:
        return self._store.changes(), self.tokens.generation, self.lists.generation
