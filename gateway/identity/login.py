"""Logins of browsers: one-time links, and the cookies that they, tokens and identity providers are exchanged for.

The link is ``URL/login#once=SECRET``: what stands behind ``#`` a browser keeps for itself, so the secret is in no log
of a proxy or server, nor in a `Referer`. The page posts it to ``/v1/login``, once, and gets a cookie (RFC 6265):

- ``HttpOnly``: no script reads it. ``SameSite=Strict``: pages of other sites do not make the browser send it.
- Over https it is ``Secure`` and its name begins with ``__Host-``: browsers take that from this very host and over
  https only, so that neither a neighbouring subdomain nor a plain http page can plant one.
- Browsers do not keep the ports of a host apart (RFC 6265, section 8.5): every http server on 127.0.0.1 that the user
  visits gets the cookie. Where other people have accounts on the machine, tokens are the better credential.

What the cookie means is looked up at each use: setting ``access.login_links`` to *off* ends all logins by a link. Who
a login by a token or at a provider is, the users, roles and providers of now say: a user who is taken out of the
settings, a token that is revoked and a provider that is named no more end the logins that came from them. Of what a
provider or a JWT said only that is kept which counts for this.
"""

from __future__ import annotations

import errno
import logging
import math
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
from aiohttp import web

from broker.identity import NOBODY
from broker.rates import Buckets
from gateway.closes import BUSY
from gateway.identity.jwt import CREDENTIAL as JWT
from gateway.identity.oidc import SOURCE, Account, Providers
from gateway.identity.proxies import Client
from gateway.identity.store import FLEET, KEY_BYTES, LATEST, LOGIN, LONGEST_S, Store, count_change, hash_of
from gateway.identity.users import GUEST_NAME, LINK, OWNER_NAME, Userids, Users, link_principal
from gateway.principal import Denied, Principal, no_role, refused, unavailable
from gateway.settings.schema import AccessSection, GatewaySettings

if TYPE_CHECKING:
    from gateway.fleet.kept import SharedLogins


class Cookie(NamedTuple):
    """One of them; no script reads it (``HttpOnly``)."""

    name: str
    same_site: Literal["Strict", "Lax"]

    def of(self, request: web.BaseRequest, client: Client) -> str | None:
        """Its value in a request; over https only the one that is bound to this host."""
        return request.cookies.get(self._name(client))

    def set(self, response: web.StreamResponse, value: str, client: Client, max_age: int | None) -> None:
        """Give it to a browser, for so many seconds; None: until the browser ends."""
        response.set_cookie(
            self._name(client),
            value,
            max_age=max_age,
            path="/",
            httponly=True,
            samesite=self.same_site,
            secure=client.scheme == "https",
        )

    def clear(self, response: web.StreamResponse, client: Client) -> None:
        """Take it away again."""
        self.set(response, "", client, 0)

    def _name(self, client: Client) -> str:
        # draft-ietf-httpbis-rfc6265bis, section 4.1.3.2: this prefix binds to host, path / and https
        return f"__Host-{self.name}" if client.scheme == "https" else self.name


LOGIN_COOKIE: Final = Cookie("headgate", "Strict")
BEGUN_COOKIE: Final = Cookie("headgate-begun", "Lax")
"""Lax, for the way back begins at the provider's site."""


LinkRole = Literal["user", "owner"]
SECRET_CHARS: Final = 128
"""Longest secret that is looked up: ours have 43 characters."""
LOGINS: Final = 4096
"""Logins that may be open at a time; the oldest end for new ones."""
LOGINS_OF_USER: Final = 64
"""Of one user, those by links not counted; its oldest end for new ones."""
_COLUMNS: Final = "id, source, user, claims, role, loopback, made, expires"


class Login(NamedTuple):
    """One login, as the store has it: the secret of its cookie is not in there."""

    id: str
    source: str
    """What it came from: ``link``, the credential of a token or JWT, or ``oidc:NAME``."""
    user: str
    """Whose it is; "" for links."""
    claims: dict[str, Any]
    """What a provider or JWT said of the user, as far as it counts."""
    role: str
    """What a link gives; "" for others."""
    loopback: bool
    """It counts on this machine only."""
    made: float
    expires: float
    """Wall clock seconds, both."""

    @property
    def credential(self) -> str:
        """What names it for revocation."""
        return LOGIN + self.id

    def described(self) -> dict[str, Any]:
        """It, as its user sees it."""
        name = self.user or (OWNER_NAME if self.role == "owner" else GUEST_NAME)
        return {
            "login": self.id,
            "user": name,
            "from": self.source,
            "since": self.made,
            "expires": self.expires,
        }


class LoggedIn(NamedTuple):
    """A link, a token or a provider's word that was exchanged."""

    cookie: str
    """The value of the cookie: a secret."""
    principal: Principal


class Logins:
    """Links and logins in the shared store.

    Args:
        store: where they are.
        access: ``login_links``, ``login_link_s`` and ``cookie_s`` count.
        named: who a login that came from no link is now; None: it counts no more.
    """

    def __init__(
        self,
        store: Store,
        access: AccessSection,
        named: Callable[[Login], Principal | None] = lambda _login: None,
    ) -> None:
        self._store = store
        self._access = access
        self._named = named

    def make_link(self, role: LinkRole | None = None, *, loopback_only: bool | None = None) -> str:
        """A new secret for one login, valid for ``access.login_link_s``.

        Args:
            role: what it gives; default: ``access.login_links``.
            loopback_only: whether only a browser on this machine can use it; always so for the owner's.

        Raises:
            Denied: login links are off or do not give this role, or the store cannot be written.
        """
        return add_link(
            self._store,
            self._granted(role or self._access.login_links),
            seconds=self._access.login_link_s,
            loopback_only=loopback_only is True,
        )

    def redeem(self, secret: str, client: Client) -> LoggedIn:
        """Exchange the secret of a link; of several attempts, in any process, exactly one succeeds.

        Raises:
            Denied: unknown, used or expired, or not allowed from where the client is (then it stays unused).
        """
        now = self._store.wall()
        with self._store.writing() as base:
            query = "SELECT role, loopback FROM links WHERE hash = ? AND expires > ?"
            row = base.execute(query, (_hash(secret), now)).fetchone()
            if row is None:
                raise refused("a login link that is unknown, used or expired")
            role, loopback = row
            self._check(role, bool(loopback), client)
            # in the transaction that found it: of two who try the link, one gets in
            base.execute("DELETE FROM links WHERE hash = ? OR expires <= ?", (_hash(secret), now))
            cookie, login = self.drafted(LINK, "", {}, role=role, loopback=bool(loopback))
            _begin(base, cookie, login)
        return LoggedIn(cookie, link_principal(role, credential=login.credential, expires=login.expires))

    def drafted(
        self,
        source: str,
        user: str,
        claims: dict[str, Any],
        *,
        role: str = "",
        loopback: bool = False,
        until: float | None = None,
    ) -> tuple[str, Login]:
        """The login of who has used a link, shown a token, or comes from a provider, and the value of its cookie; it
        counts once `begin` has written it.

        Args:
            source: ``link``, the credential of the token, or ``oidc:NAME``.
            user: whose login it is; "" for links.
            claims: what ``source`` says of the user, for those that the settings do not name.
            role: what a link gives.
            loopback: it counts on this machine only.
            until: it ends then at the latest, wall clock seconds.
        """
        cookie, now = secrets.token_urlsafe(KEY_BYTES), self._store.wall()
        end = now + self._access.cookie_s
        end = end if until is None else min(end, until)
        return cookie, Login(id_of(cookie), source, user, claims, role, loopback, now, end)

    def begin(self, cookie: str, login: Login) -> None:
        """Let a login that was `drafted` count from now on.

        Raises:
            Denied: the store cannot be written.
        """
        with self._store.writing() as base:
            _begin(base, cookie, login)

    def principal(self, cookie: str, client: Client) -> Principal | None:
        """Whose cookie this is; None for one that is unknown or has ended, or gives nothing any more.

        Raises:
            Denied: the login does not count from there (403).
        """
        found = self._read("hash = ?", _hash(cookie))
        if not found:
            return None
        login = found[0]
        if login.source != LINK:
            return self._named(login)
        if not self._grants(login.role):
            return None
        self._check(login.role, login.loopback, client)
        return link_principal(login.role, credential=login.credential, expires=login.expires)

    def known(self, cookie: str) -> bool:
        """Whether a login has this cookie, or none of ours could have it."""
        return len(cookie) > SECRET_CHARS or bool(self._read("hash = ?", _hash(cookie)))

    def open(self, credential: str) -> bool:
        """Whether the login with this ``Principal.credential`` has not ended."""
        found = self._read("id = ?", _id(credential))
        return bool(found) and (found[0].source != LINK or self._grants(found[0].role))

    def of(self, mine: Principal | None) -> list[Login]:
        """The logins of a user, the newest first; None: those of everybody.

        Raises:
            Denied: the store cannot be read.
        """
        return self._read("1") if mine is None else self._read(*_owned(mine))

    def counts(self, login: Login) -> bool:
        """Whether a login gives anything by the settings, users and tokens of now."""
        return self._grants(login.role) if login.source == LINK else self._named(login) is not None

    def end_all(self, logins: Sequence[Login]) -> None:
        """End logins, in all workers.

        Raises:
            Denied: the store cannot be written.
        """
        with self._store.writing(durable=True) as base:
            for each in logins:
                _end(base, "id = ?", each.id)
            count_change(base)

    def _read(self, where: str, *values: Any) -> list[Login]:
        where = f"{where} AND expires > ? AND expires <= ?"
        query = f"SELECT {_COLUMNS} FROM logins WHERE {where} ORDER BY made DESC, id"  # noqa: S608
        now = self._store.wall()
        rows = self._store.reading(query, *values, now, now + LONGEST_S)
        return [
            Login(*row)._replace(claims=msgspec.json.decode(row[3]), loopback=bool(row[5])) for row in rows
        ]

    def logout(self, credential: str) -> None:
        """End a login, in all workers; one that has ended already is fine.

        Raises:
            Denied: the store cannot be written.
        """
        self._end("id = ?", _id(credential))

    def end(self, cookie: str) -> None:
        """End the login that a cookie means, whether it still counts or not; one that is unknown is fine.

        Raises:
            Denied: the store cannot be written.
        """
        self._end("hash = ?", _hash(cookie))

    def _end(self, where: str, value: Any) -> None:
        with self._store.writing(durable=True) as base:
            if _end(base, where, value):
                count_change(base)

    def _check(self, role: str, loopback: bool, client: Client) -> None:
        self._granted(role)
        # the owner commands the instance: that login is worth what an account on this machine is
        if (loopback or role == "owner") and not client.local:
            raise no_role(
                f"a login for this machine only, used from {client.address} by way of {client.peer}",
                "this login counts on the gateway's own machine only",
            )

    def _granted(self, role: str) -> LinkRole:
        if role == "user" and self._grants(role):
            return "user"
        if role == "owner" and self._grants(role):
            return "owner"
        raise no_role(
            f"a login link for {role}, and access.login_links is {self._access.login_links}",
            "login links are off here",
        )

    def _grants(self, role: str) -> bool:
        return role == self._access.login_links or (role == "user" and self._access.login_links == "owner")


def _owned(mine: Principal) -> tuple[str, ...]:
    """Which rows are a user's: guests by a link all have one name, and are no one person."""
    if mine.login == LINK and not mine.owner:
        return ("id = ?", _id(mine.credential))
    if mine.login == LINK:
        return ("(source = ? AND role = 'owner')", LINK)
    source = mine.login or mine.credential
    if mine.certificates is None and source.startswith((SOURCE, JWT)):
        # one name of claims may be one person's by JWT, and another's at a provider without a prefix
        pattern = source if source.startswith(SOURCE) else f"{JWT}*"
        return ("(source GLOB ? AND user = ?)", pattern, mine.name)
    return ("(source != ? AND user = ?)", LINK, mine.name)


def _begin(base: sqlite3.Connection, cookie: str, login: Login) -> None:
    """Write a new login, for which the oldest end where there are too many."""
    base.execute("DELETE FROM logins WHERE expires <= ? OR expires > ?", (login.made, login.made + LONGEST_S))
    base.execute("DELETE FROM revocations WHERE until < ?", (login.made,))
    if trim(base, login.user, room=1):
        count_change(base)
    insert(base, hash_of(cookie), login)


def insert(base: sqlite3.Connection, cookie_hash: bytes, login: Login) -> None:
    """Inside a transaction: write a login, unless it is known."""
    row = (*login[:3], msgspec.json.encode(login.claims), *login[4:])
    base.execute(
        f"INSERT OR IGNORE INTO logins (hash, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - ours
        (cookie_hash, *row),
    )


def trim(base: sqlite3.Connection, user: str, *, room: int = 0) -> int:
    """Inside a transaction: end the oldest logins of all, and of a user, that leave no room for so many; how many."""
    newest = "SELECT hash FROM logins ORDER BY expires DESC LIMIT -1 OFFSET ?"
    of_user = "SELECT hash FROM logins WHERE source != ? AND user = ? ORDER BY made DESC LIMIT -1 OFFSET ?"
    return _end(base, f"hash IN ({newest})", LOGINS - room) + _end(
        base, f"hash IN ({of_user})", LINK, user, LOGINS_OF_USER - room
    )


def trim_all(base: sqlite3.Connection) -> int:
    """Inside a transaction: the same for all users, after several were written; one look at the table."""
    crowded = "SELECT user FROM logins WHERE source != ? GROUP BY user HAVING count(*) > ?"
    users = base.execute(crowded, (LINK, LOGINS_OF_USER)).fetchall()
    return sum(trim(base, user) for (user,) in users) + trim(base, "")


def _end(base: sqlite3.Connection, where: str, *values: Any) -> int:
    """End logins; in a fleet, which alone has that key, what may be known elsewhere is remembered as revoked."""
    told = f"SELECT '{LOGIN}' || id, min(expires, {LATEST}), number + 1 FROM logins, change"  # noqa: S608 - ours
    base.execute(
        f"INSERT OR IGNORE INTO revocations {told} "  # noqa: S608 - ours
        f"WHERE {where} AND NOT loopback AND EXISTS (SELECT 1 FROM keys WHERE name = '{FLEET}')",
        values,
    )
    return base.execute(f"DELETE FROM logins WHERE {where}", values).rowcount  # noqa: S608 - ours


def id_of(cookie: str) -> str:
    """The public name of a cookie's login: any gateway that is shown the cookie can ask for it by that."""
    return hash_of(cookie).hex()[:16]


def add_link(store: Store, role: LinkRole, *, seconds: float, loopback_only: bool) -> str:
    """Write a link into the store, from any process of the same user; returns its secret.

    Raises:
        Denied: the store cannot be written.
    """
    secret, now = secrets.token_urlsafe(KEY_BYTES), store.wall()
    with store.writing() as base:
        base.execute("DELETE FROM links WHERE expires <= ?", (now,))
        row = (hash_of(secret), role, loopback_only or role == "owner", now + seconds)
        base.execute("INSERT INTO links VALUES (?, ?, ?, ?)", row)
    return secret


def link_facts(settings: GatewaySettings, urls: Sequence[str]) -> dict[str, Any]:
    """What ``headgate login link`` has to know of a gateway that listens at ``urls``: what its links give, and where
    they lead.
    """
    access = settings.access
    return {
        "urls": list(urls),
        "prefix": settings.gateway.prefix,
        "login_links": access.login_links,
        "login_link_s": access.login_link_s,
    }


def link_url(listener: str, secret: str) -> str:
    """The address to open in a browser; ``listener`` is like ``http://127.0.0.1:8280``.

    >>> link_url("http://127.0.0.1:8280/", "s3cret")
    'http://127.0.0.1:8280/login#once=s3cret'
    """
    return f"{listener.rstrip('/')}/login#once={secret}"


def set_cookie(response: web.StreamResponse, logged_in: LoggedIn, client: Client, *, now: float) -> None:
    """Give a browser its cookie; ``now`` is the wall clock."""
    expires = logged_in.principal.expires
    age = max(0, math.ceil(expires - now)) if expires is not None else None
    LOGIN_COOKIE.set(response, logged_in.cookie, client, age)


def _hash(secret: str) -> bytes:
    return hash_of(secret) if len(secret) <= SECRET_CHARS else b""


def _id(credential: str) -> str:
    return credential.removeprefix(LOGIN)


BURST: Final = 64
PER_S: Final = 0.1
"""Logins that one user may begin in a fleet, at once and over time: each that was ended is remembered until it would
have ended anyway."""

log = logging.getLogger("headgate")


class UserLogins:
    """The logins that came from no link.

    Args:
        settings: ``access``, ``oidc`` and ``jwt.trust_claims`` count.
        store: where they are.
        clock: seconds, never going back.
        users: those of now.
        ended: whether a token or JWT, by its credential, counts no more for a user.
        elsewhere: other gateways; None: there are none.

    Attributes:
        elsewhere: as above.
        logins: all logins, those by links among them.
        providers: identity providers that people log in at.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        store: Store,
        clock: Callable[[], float],
        *,
        users: Callable[[], Users],
        ended: Callable[[str, str], bool],
        elsewhere: SharedLogins | None = None,
    ) -> None:
        self.elsewhere = elsewhere
        self.logins = Logins(store, settings.access, self.now)
        self.providers = Providers(settings.oidc, store, clock, elsewhere)
        self._userids = Userids(store, settings.access.own_userids)
        self._trusted = settings.jwt.trust_claims
        self._users = users
        self._ended = ended
        self._clock = clock
        self._begun = Buckets(PER_S, BURST)

    def by_token(self, mine: Principal) -> LoggedIn:
        """Log in who has shown a token or a JWT; the login ends with it at the latest.

        Raises:
            Denied: the user began too many (429), or the store cannot be written.
        """
        known = self._users().known(mine.name)
        claims = {} if known else {"userid": mine.userid, "roles": mine.role_names}
        return self._enter(mine.credential, mine.name, claims, mine.expires)

    async def take_userid(self, mine: Principal) -> None:
        """Let a user of claims, who shows a JWT, have the userid that they say: nobody else has it from now on.

        Raises:
            Denied: somebody else came with it before (403), that cannot be found out at the moment (503), or the store
                cannot be written.
        """
        taken = await self._userids.take(f"jwt {mine.name}", mine.userid, self.elsewhere)
        if taken:
            return
        who = f"user {mine.name[:64]!r}: userid {mine.userid}"
        if taken is None:
            raise unavailable(f"{who} may be another's: Redis does not answer")
        raise no_role(f"{who} is another person's here")

    async def by_provider(self, name: str, account: Account) -> LoggedIn:
        """Log in whom the provider ``name`` has let in, if the settings do, too; with a userid of its own.

        Raises:
            Denied: the user has no role here (403), or began too many (429), or the store cannot be written.
        """
        source, claims = f"{SOURCE}{name}", account.claims
        self._principal(self.logins.drafted(source, account.user, claims)[1])  # who may not gets no userid
        if not self._users().known(account.user):
            wanted = claims.get("userid")
            own = await self._userids.give(f"{source} {account.user}", wanted, self.elsewhere)
            if own != wanted:
                claims = {key: value for key, value in claims.items() if key != "userid"} | {
                    "own": own or NOBODY
                }
            if own is None:
                log.warning(
                    "%s has no userid to itself until it logs in again: Redis does not answer", account.user
                )
            elif wanted not in (None, own):
                log.warning("%s has userid %d: %s is another person's here", account.user, own, wanted)
        return self._enter(source, account.user, claims, None)

    def _enter(self, source: str, user: str, claims: dict[str, Any], until: float | None) -> LoggedIn:
        cookie, login = self.logins.drafted(source, user, claims, until=until)
        principal = self._principal(login)  # who may not gets no login
        if self.elsewhere is not None and self._begun.of(user, self._clock()).take(self._clock()):
            raise Denied(
                f"{user!r} began more than {BURST} logins, and one in {1 / PER_S:g} s",
                public="this user logs in too often: wait a minute",
                status=429,
                close=BUSY,
                errno=errno.EAGAIN,
            )
        self.logins.begin(cookie, login)
        return LoggedIn(cookie, principal)

    def now(self, login: Login) -> Principal | None:
        """Who a login is now; None: it counts no more."""
        if self._ended(login.source, login.user):
            return None
        try:
            return self._principal(login)
        except Denied as denied:
            log.debug("login %s of %s: %s", login.id, login.user, denied)
            return None

    def _principal(self, login: Login) -> Principal:
        """Who a login is by the users and providers of now.

        Raises:
            Denied: nobody (403).
        """
        # without claims that count, the settings have to name the user
        claims, own = (login.claims if login.claims and self._trusted else None), None
        if login.source.startswith(SOURCE):
            claims, own = self.providers.person_of(login.source, login.claims)
        return self._users().principal(
            login.user,
            kind="cookie",
            credential=login.credential,
            expires=login.expires,
            login=login.source,
            claims=claims,
            own=own,
        )
