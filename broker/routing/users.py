"""Limits of one user over all its links, beside those of the instance."""

# compiled: mypyc

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from broker.errors import RpcError
from broker.identity import Credentials
from broker.routing.port import Port, User

SHUT_OUT_S: Final = 5.0
"""Who was cut for what it sent stays away for so long, to a second: else to read that again is all that is done."""


@dataclass(frozen=True)
class UserLimits:
    """What one user's links may hold together; the owner's are bound by the limits of the instance alone."""

    calls: int = 131_072
    """Open calls."""
    services: int = 1024
    """Registered names."""
    subscriptions: int = 16_384
    """Prefixes of every link, each counted once a link."""
    connections: int = 1 << 31


class Users:
    """Everybody who has a link to this broker.

    Attributes:
        limits: of each guest.
    """

    __slots__ = ("_banned", "_users", "limits")

    def __init__(self, limits: UserLimits) -> None:
        self.limits: UserLimits = limits
        self._users: dict[tuple[int, bool], User] = {}
        self._banned: dict[str, float] = {}

    def __iter__(self) -> Iterator[User]:
        return iter(self._users.values())

    def attach(self, port: Port) -> None:
        """A client has come."""
        key = (port.cred.userid, port.owner)
        user = self._users.get(key)
        if user is None:
            user = self._users[key] = User(*key)
        user.ports[port] = None
        port.user = user

    def refuse_more(self, user: User, what: str) -> None:
        """Hold a cap of ``user`` before it gets one more of ``services`` or ``subscriptions``.

        Raises:
            RpcError: EAGAIN; it has as many as a guest may.
        """
        held: int = getattr(user, what)
        most: int = getattr(self.limits, what)
        if held >= most and not user.owner:
            raise RpcError(
                errno.EAGAIN, f"userid {user.userid} has {held} {what}, the limit of one user is {most}"
            )

    def refusal(self, cred: Credentials, key: str | None = None) -> str:
        """Why somebody with ``cred`` and that key gets no further connection; "" when it may have one."""
        if cred.owner:
            return ""
        if key in self._banned:
            return f"who has its key sent more than could be handled, and was cut within {SHUT_OUT_S:g} s"
        user = self._users.get((cred.userid, False))
        held, most = len(user.ports) if user is not None else 0, self.limits.connections
        if held < most:
            return ""
        return f"userid {cred.userid} has {held} connections, limits.connections_per_user allows {most}"

    def ban(self, key: str) -> None:
        """A link with that key was cut because its sender could not be held up otherwise: none follows soon."""
        self._banned[key] = SHUT_OUT_S

    def expire_bans(self, elapsed_s: float) -> None:
        """Time has passed."""
        self._banned = {key: left - elapsed_s for key, left in self._banned.items() if left > elapsed_s}

    def detach(self, port: Port) -> None:
        """It has gone; what it held is taken back by whoever keeps it."""
        user = port.user
        user.ports.pop(port, None)
        key = (user.userid, user.owner)
        if not user.ports and self._users.get(key) is user:
            del self._users[key]
