"""From the name that a credential proved to the `Principal` it stands for; a userid for each person who has none.

Services, jobs and private events belong to userids (RFC 12), so two people must never have the same one. A person who
comes from an identity provider has the first free one of ``access.own_userids``, in an order that its name gives::

    first + SHA-256("N:SOURCE USER")[:8] % count, for N = 0, 1, 2, ...      SOURCE USER: "oidc:corp corp:alice"

That is nearly always the first, so that a store that was lost gives the same ones again. Who has which stands in the
store for good, and in Redis where several gateways share one: there it is taken first, and while it cannot be, who has
none yet gets none. What the claim of a JWT says stands there, too (``"jwt alice"``), so that it is one person's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from broker.identity import NOBODY, Role
from broker.settings.reading import check_by
from gateway.identity.jwt import CREDENTIAL as JWT
from gateway.identity.jwt import texts_of, userid_of
from gateway.identity.oidc import SOURCE
from gateway.identity.store import Store
from gateway.principal import ROLE_NAMES, Principal, no_role
from gateway.settings.rules import shared_userids
from gateway.settings.rules import users as faults
from gateway.settings.schema import GatewaySettings, UserEntry

if TYPE_CHECKING:
    from gateway.fleet.kept import SharedLogins


LINK: Final = "link"
"""Where the login of a login link came from (``Principal.login``)."""
OWNER_NAME: Final = "owner"
"""The user of an owner's login link."""
GUEST_NAME: Final = "guest"
"""The user of a plain login link."""


class Users:
    """The users of ``[[users]]``, by name and by certificate, and those of login links.

    Args:
        settings: users, access and the names of providers count.
        owner: userid of the instance's owner; None: of this process.

    Attributes:
        owner: as above.

    Raises:
        ConfigError: a name stands twice, or a role needs a setting of ``[access]`` that is false.
    """

    def __init__(self, settings: GatewaySettings, owner: int | None = None) -> None:
        check_by(faults, settings)
        self._access = settings.access
        self._by_name: dict[str, UserEntry] = {user.name: user for user in settings.users}
        self._by_certificate: dict[str, set[str]] = {}
        for user in settings.users:
            for name in user.certificates:
                self._by_certificate.setdefault(normal_name(name), set()).add(user.name)
        self.owner = os.geteuid() if owner is None else owner
        self._owners = (os.geteuid(), self.owner)
        self._shared: frozenset[int] = frozenset(userid for userid, _ in shared_userids(settings))
        self._named: frozenset[int] = frozenset(user.userid for user in settings.users)
        self._own_userids = settings.access.own_userids
        self._prefixes = {f"{SOURCE}{entry.name}": entry.prefix for entry in settings.oidc if entry.prefix}

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
        own: int | None = None,
    ) -> Principal:
        """The principal of a user: as the settings say where they name it, else as the claims of its JWT say.

        Args:
            name: what its credential proved.
            kind: how it did.
            credential: names that for revocation.
            expires: wall clock seconds, or None.
            login: what the login of a cookie came from, else "".
            claims: what a JWT or a provider says of who is not in ``[[users]]``; None: nothing that counts.
            own: the userid that it was given here (`Userids`); None: the claims say which.

        Raises:
            Denied: there is no such user, or the claims give nothing (403, do not reconnect).
        """
        self._check_name(name, kind, login)
        entry = self._by_name.get(name)
        if entry is None and claims is not None:
            userid = self._claimed_userid(name, claims) if own is None else self._own_userid(name, own)
            if userid in self._named or name in (OWNER_NAME, GUEST_NAME):
                raise no_role(f"user {name[:64]!r} has the name, or userid {userid}, of another one")
            roles = self._claimed_roles(name, claims)
            return Principal(name, userid, roles, kind, credential, expires, login=login)
        if entry is None:
            raise no_role(f"user {name[:64]!r} is not in [[users]]")
        roles = roles_of(entry.roles)
        own = entry.userid not in self._owners or bool(roles & Role.OWNER)
        return Principal(
            name=name,
            userid=entry.userid if own else NOBODY,
            roles=roles,
            kind=kind,
            credential=credential,
            expires=expires,
            shared=entry.userid in self._shared,
            login=login,
            certificates=entry.certificates,
        )

    def _check_name(self, name: str, kind: str, login: str) -> None:
        """Names of one source never meet those of another.

        Raises:
            Denied: it begins as the names of another provider than it came from do (403).
        """
        if kind != "jwt" and not login.startswith((SOURCE, JWT)):
            return  # the settings name it
        for source, prefix in self._prefixes.items():
            if source != login and name.startswith(prefix):
                raise no_role(f"user {name[:64]!r} is named as those of {source}")

    def again(self, mine: Principal) -> Principal | None:
        """Who somebody is now that other users let in; None when that is nobody, or another one."""
        entry = self._by_name.get(mine.name)
        if mine.login == LINK:
            return mine
        if entry is None and mine.certificates is None:
            return self._of_claims_again(mine)
        if entry is None or mine.certificates is None:
            return None
        if mine.kind == "tls" and entry.certificates != mine.certificates:
            return None  # whose it is now, its client shows when it comes again
        now = self.principal(
            mine.name, kind=mine.kind, credential=mine.credential, expires=mine.expires, login=mine.login
        )
        return now if now.userid == mine.userid else None

    def _of_claims_again(self, mine: Principal) -> Principal | None:
        """The same user of claims by what ``[access]`` and the other users are now; None when no role is left, or its
        userid is another's.
        """
        roles = self._let_in(mine.role_names)
        others = mine.userid in self._named or (mine.userid in self._owners and not roles & Role.OWNER)
        return replace(mine, roles=roles) if roles and not others else None

    def _let_in(self, names: Iterable[str]) -> Role:
        """Roles of claims, without those that ``[access]`` does not let in over the web."""
        return roles_of(name for name in names if getattr(self._access, f"allow_{name}", True))

    def by_certificate(self, names: Iterable[str]) -> str | None:
        """The user that a certificate with these names (``certificates.names``) is; None when it is nobody's.

        Raises:
            Denied: it is several users' (403): a gateway does not choose.
        """
        found = {user for name in names for user in self._by_certificate.get(name, ())}
        if len(found) > 1:
            raise no_role(
                f"the certificate is of several users: {', '.join(sorted(found))}", "credential refused"
            )
        return next(iter(found), None)

    def _claimed_userid(self, name: str, claims: dict[str, Any]) -> int:
        """The claim ``userid``.

        Raises:
            Denied: it is none, root's, nobody's, the gateway's own or the instance owner's, or of those that are given
                here (403).
        """
        userid = userid_of(claims.get("userid"))
        if userid is None:
            raise no_role(f"user {name[:64]!r}: the claim userid is no userid")
        if userid in (0, NOBODY, *self._owners) or self._is_own(userid):
            raise no_role(f"user {name[:64]!r}: no claim may say userid {userid}")
        return userid

    def _own_userid(self, name: str, own: object) -> int:
        """The userid that was given here, or by another gateway.

        Raises:
            Denied: none is given that is so (403): the settings were others then.
        """
        if type(own) is not int or not (own == NOBODY or self._is_own(own)):
            raise no_role(f"user {name[:64]!r}: userid {own!r} is not of access.own_userids any more")
        return own

    def _is_own(self, userid: int) -> bool:
        first, last = self._own_userids
        return first <= userid <= last

    def _claimed_roles(self, name: str, claims: dict[str, Any]) -> Role:
        """The claim ``roles``, without those that ``[access]`` does not let in over the web.

        Raises:
            Denied: none is left (403).
        """
        roles = self._let_in(each for each in texts_of(claims.get("roles")) if each in ROLE_NAMES)
        if not roles:
            raise no_role(f"user {name[:64]!r}: no role that is let in")
        return roles


def link_principal(role: str, *, credential: str, expires: float) -> Principal:
    """The principal of a login link: the owner of the instance, which is the gateway's own userid, or the guest."""
    owner = role == "owner"
    return Principal(
        name=OWNER_NAME if owner else GUEST_NAME,
        userid=os.geteuid() if owner else NOBODY,
        roles=Role.OWNER if owner else Role.USER,
        kind="cookie",
        credential=credential,
        expires=expires,
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


TRIED: Final = 64
"""Userids that are tried for one person."""


class Userids:
    """Who has which.

    Args:
        store: where that stands.
        bounds: the first and the last userid that are given.
    """

    def __init__(self, store: Store, bounds: tuple[int, int]) -> None:
        self._store = store
        self._first, self._last = bounds

    async def give(self, who: str, wanted: int | None, elsewhere: SharedLogins | None) -> int | None:
        """The userid of ``who`` from now on; None: none can be found out, or had, at the moment.

        Args:
            who: source and name.
            wanted: what a claim says; one that another person has is not given.
            elsewhere: other gateways; None: there are none.

        Raises:
            Denied: the store cannot be written.
        """
        known = self._known(who)
        given = known is not None and self._first <= known <= self._last
        first = [wanted, known if given and wanted is None else None]
        for userid in dict.fromkeys((*first, *self._candidates(who))):
            if userid is None:
                continue
            free = True if elsewhere is None else await elsewhere.take_userid(userid, who)
            if free is None:
                return userid if userid == known else None
            if free and self._take(userid, who):
                return userid
        return None

    async def take(self, who: str, userid: int, elsewhere: SharedLogins | None) -> bool | None:
        """Whether ``who`` has ``userid``, and no other one, from now on; None: that cannot be found out at the moment.

        Raises:
            Denied: the store cannot be written.
        """
        if self._known(who) == userid:
            return True
        free = True if elsewhere is None else await elsewhere.take_userid(userid, who)
        return self._take(userid, who) if free else free

    def _known(self, who: str) -> int | None:
        found = self._store.reading("SELECT userid FROM userids WHERE who = ?", who)
        return found[0][0] if found else None

    def _candidates(self, who: str) -> Iterator[int]:
        for number in range(TRIED):
            digest = hashlib.sha256(f"{number}:{who}".encode()).digest()
            yield self._first + int.from_bytes(digest[:8], "big") % (self._last - self._first + 1)

    def _take(self, userid: int, who: str) -> bool:
        """Whether it is theirs: nobody else's here."""
        holder = self._store.reading("SELECT who FROM userids WHERE userid = ?", userid)
        if not holder:
            with self._store.writing(durable=True) as base:
                base.execute(
                    "INSERT OR REPLACE INTO userids SELECT ?, ? WHERE NOT EXISTS "
                    "(SELECT 1 FROM userids WHERE userid = ?)",
                    (who, userid, userid),
                )
            holder = self._store.reading("SELECT who FROM userids WHERE userid = ?", userid)
        return bool(holder) and bool(holder[0][0] == who)
