"""Who a web client is, once a credential has been checked: a leaf that every room of the gateway may use."""

from __future__ import annotations

from dataclasses import dataclass
from errno import EAGAIN, EPERM

from broker.errors import HeadgateError
from broker.identity import NOBODY, USERID_UNKNOWN, Role
from gateway.closes import BAD_CREDENTIAL, BUSY, NO_ROLE

ROLE_NAMES = {"owner": Role.OWNER, "user": Role.USER, "admin": Role.ADMIN}
"""Role names in settings, claims and messages, and their bits (RFC 12). LOCAL is no web user's, ever."""


class Denied(HeadgateError):
    """A credential or an act was refused. The text is for the log and never names what would have worked; what the
    client is told is ``public``. ``close`` is the close code of a WebSocket, ``status`` that of an HTTP answer.
    """

    fault = "peer"

    def __init__(self, text: str, *, public: str, status: int, close: int, errno: int = EPERM) -> None:
        self.public = public
        self.status = status
        self.close = close
        super().__init__(text, errno)


def refused(text: str, public: str = "credential refused", status: int = 401) -> Denied:
    """A credential that does not count, and that is not to be shown again: `Denied` with ``BAD_CREDENTIAL``."""
    return Denied(text, public=public, status=status, close=BAD_CREDENTIAL)


def no_role(text: str, public: str = "this user has no role here") -> Denied:
    """A user who is known and gets nothing here: `Denied` (403) with ``NO_ROLE``."""
    return Denied(text, public=public, status=403, close=NO_ROLE)


def unavailable(text: str, public: str = "try again in a moment") -> Denied:
    """What is needed to decide cannot be asked now: `Denied` (503) with ``BUSY``, so that clients come again."""
    return Denied(text, public=public, status=503, close=BUSY, errno=EAGAIN)


@dataclass(frozen=True, slots=True)
class Principal:
    """A checked user.

    Attributes:
        name: the user's name, for people and for per-user limits; several credentials may share it.
        userid: what its messages are stamped with; never 0xFFFFFFFF, which an owner link would fill in. Whoever has
            none to itself is nobody, to whom nothing belongs anywhere: that is all that services see of it.
        roles: RFC 12 role bits of its messages; never 0, which an owner link would turn into OWNER; never LOCAL.
        kind: how it proved itself: ``token``, ``jwt``, ``tls`` or ``cookie``.
        credential: names the credential for revocation: token id, ``jti``, session id, certificate fingerprint; never
            the secret.
        expires: wall clock seconds since 1970; None never ends.
        shared: several of ``[[users]]`` have this userid: without the role owner, none of them receives private events.
        login: what the login of a cookie came from: ``link``, the credential of a token or JWT, ``oidc:NAME``; else "".
        certificates: of its entry in ``[[users]]``; None for who has none, as users of claims and login links.
    """

    name: str
    userid: int
    roles: Role
    kind: str
    credential: str
    expires: float | None = None
    shared: bool = False
    login: str = ""
    certificates: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse the stamps that an owner link would turn into OWNER (RFC 12).

        Raises:
            ValueError: userid 0xFFFFFFFF or outside 32 bits, no role, or the role LOCAL.
        """
        if not 0 <= self.userid < USERID_UNKNOWN:
            raise ValueError(f"userid {self.userid} cannot stand for a web user")
        if not self.roles or self.roles & Role.LOCAL:
            raise ValueError(f"roles {self.roles!r} cannot stand for a web user")

    @property
    def owner(self) -> bool:
        """True when the OWNER bit is set."""
        return bool(self.roles & Role.OWNER)

    @property
    def nobody(self) -> bool:
        """True for who has no userid to itself, and so owns nothing."""
        return self.userid == NOBODY and not self.owner

    @property
    def role_names(self) -> list[str]:
        """Names of its roles, as messages show them."""
        return [name for name, bit in ROLE_NAMES.items() if self.roles & bit]
