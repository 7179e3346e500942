"""Logins of people who have a name: by a token or JWT that was shown once, or at an identity provider.

Who such a login is, the users, roles and providers of now say, at each use: a user who is taken out of the settings, a
token that is revoked and a provider that is named no more end the logins that came from them. Of what a provider or a
JWT said only that is kept which counts for this.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Any, Final

from broker.identity import NOBODY
from broker.rates import Buckets
from gateway.closes import BUSY, NO_ROLE
from gateway.identity.login import LoggedIn, Login, Logins
from gateway.identity.oidc import SOURCE, Account, Providers
from gateway.identity.store import Store
from gateway.identity.userids import Userids
from gateway.identity.users import Users
from gateway.principal import Denied, Principal
from gateway.settings.schema import GatewaySettings

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

    Attributes:
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
    ) -> None:
        self.logins = Logins(store, settings.access, self.now)
        self.providers = Providers(settings.oidc, store, clock)
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
        taken = await self._userids.take(f"jwt {mine.name}", mine.userid, self.providers.elsewhere)
        if taken:
            return
        said = "is another person's here" if taken is False else "may be another's: Redis does not answer"
        raise Denied(
            f"user {mine.name[:64]!r}: userid {mine.userid} {said}",
            public="this user has no role here" if taken is False else "try again in a moment",
            status=403 if taken is False else 503,
            close=NO_ROLE if taken is False else BUSY,
            errno=errno.EPERM if taken is False else errno.EAGAIN,
        )

    async def by_provider(self, name: str, account: Account) -> LoggedIn:
        """Log in whom the provider ``name`` has let in, if the settings do, too; with a userid of its own.

        Raises:
            Denied: the user has no role here (403), or began too many (429), or the store cannot be written.
        """
        source, claims = f"{SOURCE}{name}", account.claims
        self._principal(
            Login("", source, account.user, claims, "", False, 0.0, 0.0)
        )  # who may not gets no userid
        if not self._users().known(account.user):
            wanted = claims.get("userid")
            own = await self._userids.give(f"{source} {account.user}", wanted, self.providers.elsewhere)
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
        self._principal(Login("", source, user, claims, "", False, 0.0, 0.0))  # who may not gets no login
        if self.providers.elsewhere is not None and self._begun.of(user, self._clock()).take(self._clock()):
            raise Denied(
                f"{user!r} began more than {BURST} logins, and one in {1 / PER_S:g} s",
                public="this user logs in too often: wait a minute",
                status=429,
                close=BUSY,
                errno=errno.EAGAIN,
            )
        cookie, login = self.logins.begin(source, user, claims, until=until)
        return LoggedIn(cookie, self._principal(login))

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
        claims, own = self._person(login)
        return self._users().principal(
            login.user,
            kind="cookie",
            credential=login.credential,
            expires=login.expires,
            login=login.source,
            claims=claims,
            own=own,
        )

    def _person(self, login: Login) -> tuple[dict[str, Any] | None, int | None]:
        """Userid and roles for a user whom the settings do not name; None: they have to name it.

        Raises:
            Denied: its provider is not there any more (403).
        """
        if login.source.startswith(SOURCE):
            return self.providers.person_of(login.source, login.claims)
        return (login.claims if login.claims and self._trusted else None), None
