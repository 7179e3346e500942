"""From the name that a credential proved to the `Principal` it stands for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from broker.identity import USERID_UNKNOWN, Role
from broker.settings.reading import check_by
from gateway.closes import NO_ROLE
from gateway.principal import ROLE_NAMES, Denied, Principal
from gateway.settings.credentials import UserEntry
from gateway.settings.rules import users as faults
from gateway.settings.schema import AccessSection, GatewaySettings

LINK: Final = "link"
"""Where the login of a login link came from (``Principal.login``)."""
OWNER_NAME: Final = "owner"
"""The user of an owner's login link."""
GUEST_NAME: Final = "guest"
"""The user of a plain login link."""
GUEST_USERID: Final = 65534
"""Userid of plain login links: nobody. All of them share it, so none receives another's private events. Never the
userid of the gateway's own process: services would take its messages for the owner's."""


class Users:
    """The users of ``[[users]]``, by name and by certificate, and those of login links.

    Raises:
        ConfigError: a name stands twice, or a role needs a setting of ``[access]`` that is false.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        check_by(faults, settings)
        self._access = settings.access
        self._by_name: dict[str, UserEntry] = {user.name: user for user in settings.users}
        self._by_certificate: dict[str, set[str]] = {}
        for user in settings.users:
            for name in user.certificates:
                self._by_certificate.setdefault(normal_name(name), set()).add(user.name)
        self._shared: frozenset[int] = _shared(settings)

    def known(self, name: str) -> bool:
        """Whether ``[[users]]`` names this user."""
        return name in self._by_name

    def principal(
        self,
        name: str,
        *,
        kind: str,
        credential: str,
        expires: float | None,
        login: str = "",
        claims: dict[str, Any] | None = None,
    ) -> Principal:
        """The principal of a user: as the settings say where they name it, else as the claims of its JWT say.

        Raises:
            Denied: there is no such user, or the claims give nothing (403, do not reconnect).
        """
        entry = self._by_name.get(name)
        if entry is None and claims is not None:
            userid, roles = self._claimed(name, claims)
            shared = self._of_others(name, userid)
            return Principal(name, userid, roles, kind, credential, expires, shared, login)
        if entry is None:
            raise _no_role(f"user {name[:64]!r} is not in [[users]]")
        return Principal(
            name=name,
            userid=entry.userid,
            roles=roles_of(entry.roles),
            kind=kind,
            credential=credential,
            expires=expires,
            shared=entry.userid in self._shared,
            login=login,
            certificates=entry.certificates,
        )

    def again(self, mine: Principal) -> Principal | None:
        """Who somebody is now that other users let in; None when that is nobody, or another one."""
        entry = self._by_name.get(mine.name)
        if mine.login == LINK:
            return mine
        if entry is None and mine.certificates is None:
            return self._of_claims_again(mine)
        if entry is None or mine.certificates is None or entry.userid != mine.userid:
            return None
        if mine.kind == "tls" and entry.certificates != mine.certificates:
            return None  # whose it is now, its client shows when it comes again
        return self.principal(
            mine.name, kind=mine.kind, credential=mine.credential, expires=mine.expires, login=mine.login
        )

    def _of_claims_again(self, mine: Principal) -> Principal | None:
        """The same user of claims by what ``[access]`` and the other users are now; None when no role is left."""
        roles = self._let_in(mine.role_names)
        return replace(mine, roles=roles, shared=self._of_others(mine.name, mine.userid)) if roles else None

    def _let_in(self, names: Iterable[str]) -> Role:
        """Roles of claims, without those that ``[access]`` does not let in over the web."""
        return roles_of(name for name in names if _allows(self._access, ROLE_NAMES[name]))

    def _of_others(self, name: str, userid: int) -> bool:
        """Whether a userid of claims is nobody's, the instance owner's, or another user's than ``name``."""
        return userid in (os.geteuid(), GUEST_USERID) or any(
            entry.userid == userid for other, entry in self._by_name.items() if other != name
        )

    def by_certificate(self, names: Iterable[str]) -> str | None:
        """The user that a certificate with these names (``certificates.names``) is; None when it is nobody's.

        Raises:
            Denied: it is several users' (403): a gateway does not choose.
        """
        found = {user for name in names for user in self._by_certificate.get(name, ())}
        if len(found) > 1:
            raise Denied(
                f"the certificate is of several users: {', '.join(sorted(found))}",
                public="credential refused",
                status=403,
                close=NO_ROLE,
            )
        return next(iter(found), None)

    def _claimed(self, name: str, claims: dict[str, Any]) -> tuple[int, Role]:
        """The claims ``userid`` and ``roles``, without roles that ``[access]`` does not let in over the web.

        Raises:
            Denied: the userid is none, or no role is left (403).
        """
        userid, claimed = claims.get("userid"), claims.get("roles")
        if type(userid) is not int or not 0 <= userid < USERID_UNKNOWN:
            raise _no_role(f"user {name[:64]!r}: the claim userid is no userid")
        roles = self._let_in(each for each in _texts(claimed) if each in ROLE_NAMES)
        if not roles:
            raise _no_role(f"user {name[:64]!r}: no role that is let in")
        return userid, roles


def link_principal(role: str, *, credential: str, expires: float) -> Principal:
    """The principal of a login link: the owner of the instance, which is the gateway's own userid, or the guest."""
    owner = role == "owner"
    return Principal(
        name=OWNER_NAME if owner else GUEST_NAME,
        userid=os.geteuid() if owner else GUEST_USERID,
        roles=Role.OWNER if owner else Role.USER,
        kind="cookie",
        credential=credential,
        expires=expires,
        shared=not owner,
        login=LINK,
    )


def roles_of(names: Iterable[str]) -> Role:
    """Role bits of role names; an admin is a user, too, as for brokers: most of their methods ask for USER alone."""
    roles = Role.NONE
    for name in names:
        roles |= ROLE_NAMES[name]
    return roles | Role.USER if roles & Role.ADMIN else roles


def normal_name(name: str) -> str:
    """A certificate name of the settings as `certificates.names` writes it: hexadecimal and host names in small
    letters, no colons in a fingerprint.

    >>> normal_name("SHA256:AB:CD"), normal_name("DNS:Node1.Example.ORG"), normal_name("CN=Alice")
    ('SHA256:abcd', 'DNS:node1.example.org', 'CN=Alice')
    """
    kind, mark, rest = name.partition(":")
    if kind == "SHA256" and mark:
        return f"SHA256:{rest.replace(':', '').lower()}"
    if kind in ("DNS", "email") and mark:
        return f"{kind}:{rest.lower()}"
    return name


def _no_role(text: str) -> Denied:
    return Denied(text, public="this user has no role here", status=403, close=NO_ROLE)


def _allows(access: AccessSection, role: Role) -> bool:
    if role == Role.OWNER:
        return access.allow_owner
    return access.allow_admin if role == Role.ADMIN else True


def _shared(settings: GatewaySettings) -> frozenset[int]:
    """Userids of more than one user; that of the process itself is the instance owner's, too."""
    counts = Counter([os.geteuid(), *(user.userid for user in settings.users)])
    if settings.access.login_links == "user":
        counts[GUEST_USERID] += 2
    return frozenset(userid for userid, users in counts.items() if users > 1)


def _texts(value: object) -> list[str]:
    """The texts of a list from outside."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
