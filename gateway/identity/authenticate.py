"""The one door: from a request, or a token in a first message, to a `Principal` or a refusal.

In this order, and the first that is there decides:

    Authorization: Bearer   a token (``hgt_...``) or a JWT, told apart by their shape
    client certificate      on listeners with ``client_cert``; one that is nobody's is passed over
    cookie                  of a login; one that has ended is as good as none, for no page can take it away

What a client is told of a refusal is always the same, "credential refused"; the log has the reason, and never the
credential. A request with a credential that browsers add by themselves (certificate, cookie) goes through the checks
of ``origin``, too, and so does one with none: whoever authenticates later is not let in from any page.

Good credentials always pass, whoever else fails from the same address: tokens and cookies are 256 random bits and
JWTs are signed, so there is nothing to guess, and a broken client behind a shared proxy must not lock its neighbours
out. What is limited (`Attempts`) is what failing costs: log lines, and answers that ask the client to come again at
once.

A credential that was accepted once does not count any more (`Revocations`) when its token is missing in the file, its
certificate is on a revocation list, or somebody revoked it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from aiohttp import web

from broker.errors import ConfigError
from broker.rates import Bucket, Buckets
from gateway.identity import certificates
from gateway.identity.certificates import RevocationLists
from gateway.identity.jwt import CREDENTIAL as JWT
from gateway.identity.jwt import Verifier, is_jwt
from gateway.identity.keys import JwtKeys
from gateway.identity.login import LOGIN_COOKIE, LoggedIn, UserLogins, id_of, link_facts
from gateway.identity.origin import Origins
from gateway.identity.proxies import Client, ListenerNetworks, group_of
from gateway.identity.store import FOREVER, LOGIN, Store
from gateway.identity.tokens import CREDENTIAL, PREFIX, TokenFile, bearer_of, credential_of, token_path
from gateway.identity.users import Users
from gateway.principal import Denied, Principal, refused
from gateway.settings.addresses import place_of
from gateway.settings.rules import shared_userids
from gateway.settings.schema import GatewaySettings

if TYPE_CHECKING:
    from gateway.fleet.kept import SharedLogins


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

    def __init__(
        self, settings: GatewaySettings, store: Store, elsewhere: SharedLogins | None = None
    ) -> None:
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


BURST: Final = 10
"""Failures of one address that are told apart."""
PER_S: Final = 0.5
"""How fast they are forgiven: one in two seconds."""
LINES_BURST: Final = 50
LINES_PER_S: Final = 10.0
"""Log lines of all addresses together: many addresses must not fill the disk either."""


class Attempts:
    """The failures of all addresses; ``now`` is a clock that never goes back, seconds.

    Attributes:
        failed: refused credentials so far.
        silenced: those of them that were not logged.
    """

    def __init__(self) -> None:
        self.failed = 0
        self.silenced = 0
        self._buckets = Buckets(PER_S, BURST)
        self._lines: Bucket | None = None

    def fail(self, address: str, now: float) -> tuple[bool, bool]:
        """Count a failure: whether the address stays within its rate, and whether to log it."""
        self.failed += 1
        within = self._buckets.of(group_of(address), now).grant(now, 1) == 1
        if self._lines is None:
            self._lines = Bucket(LINES_PER_S, LINES_BURST, now)
        told = within and self._lines.grant(now, 1) == 1
        self.silenced += not told
        return within, told


POLL_S: Final = 1.0
"""How often `run` looks whether credentials were revoked: so long may a revoked session live on."""

log = logging.getLogger("headgate")


class Authenticator:
    """Checks credentials for one process.

    Args:
        settings: users, tokens, jwt and access count.
        store: the file shared by the workers.
        elsewhere: other gateways, which have logins in common with this one; None: there are none.

    Attributes:
        listeners: who is behind a connection; tell it about every bound listener (``listeners.opened``).
        origins: from which pages browsers may come.
        user_logins: logins by tokens and at providers. logins: one-time links, and the cookies of all logins.
        attempts: counters of refusals.

    Raises:
        ConfigError: a user or an address of keys is not what it must be.
    """

    def __init__(
        self, settings: GatewaySettings, store: Store, elsewhere: SharedLogins | None = None
    ) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock = time.monotonic
        self.users = Users(settings)
        self._revocations = Revocations(settings, store)
        self.tokens = self._revocations.tokens
        self.user_logins = UserLogins(
            settings,
            store,
            clock,
            users=lambda: self.users,
            ended=self._revocations.ended_by_now,
            elsewhere=elsewhere,
        )
        self.logins = self.user_logins.logins
        self.listeners = ListenerNetworks()
        self.origins = Origins(settings.access.allowed_origins, _names(settings))
        self.attempts = Attempts()
        self._faults = Attempts()  # what is no client's doing, and must not fill the log either
        self._jwt_keys = JwtKeys(settings.jwt, clock=clock)
        self._verifier = Verifier(settings.jwt, self._jwt_keys)
        self._complaint = ""  # about the files below, as logged last

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Read tokens, revocation lists and keys for the first time.

        Raises:
            ConfigError: one of these files, or the secret for a provider, is bad.
        """
        _tell_shared(self._settings)
        await self._revocations.read()
        if problem := self._revocations.problem:
            raise ConfigError(problem)
        self.user_logins.providers.start()
        await self._jwt_keys.start()

    def announce(self, urls: Sequence[str]) -> None:
        """Tell ``headgate login link`` where this gateway listens and what its links give.

        Raises:
            Denied: the store cannot be written.
        """
        self._store.announce(link_facts(self._settings, urls))

    async def run(self, changed: Callable[[], None]) -> None:
        """Keep up with the world until cancelled: revocations, keys.

        Args:
            changed: called when credentials were revoked: ask `revoked` about every session then.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(_every(POLL_S, lambda: self._watch(changed)), name="identity: revocations")
            if self._settings.jwt.keys:
                refresh_s = self._settings.jwt.refresh_s
                group.create_task(_every(refresh_s, self._jwt_keys.refresh), name="identity: keys")

    async def reload(self) -> list[str]:
        """Read tokens, revocation lists and keys again, now; returns what could not be read and so stays as it was."""
        await self._revocations.read()
        problems = [each.text for each in await self._jwt_keys.refresh()]
        return [problem, *problems] if (problem := self._revocations.problem) else problems

    def set_users(self, settings: GatewaySettings) -> None:
        """Take up other users; `again` says who those are now that were let in before.

        Raises:
            ConfigError: a user is not what it must be; those of before stay.
        """
        self.users = Users(settings, self.users.owner)
        self._settings = settings
        _tell_shared(settings)

    def set_owner(self, userid: int) -> bool:
        """Take up whose instance it is; False: that was known. `again` says who users are now."""
        if userid in (self.users.owner, os.geteuid()):
            return False
        self.users = Users(self._settings, userid)
        return True

    def again(self, principal: Principal) -> Principal | None:
        """Who a principal that was let in before is by the users of now; None when that is nobody, or another one."""
        return self.users.again(principal)

    def close(self) -> None:
        """Read no keys any more; the store is its maker's to close."""
        self._jwt_keys.close()
        self.user_logins.providers.close()

    # ------------------------------------------------------------ checking

    async def authenticate_request(self, request: web.BaseRequest) -> Principal | None:
        """Who sends a request; None when it carries no credential (a WebSocket may send one as its first message).

        Raises:
            Denied: a credential is wrong, or its page may not ask.
        """
        with self.counted(request) as client:
            return await self._of_request(request, client)

    def check_page(self, request: web.BaseRequest, kind: str | None = None) -> None:
        """Whether the page that asks may, whatever credential its browser has added; a WebSocket that sends one later.

        Args:
            request: what it asks.
            kind: of the credential that counts (``Principal.kind``), known or not; None: of none.

        Raises:
            Denied: it may not (403).
        """
        with self.counted(request) as client:
            self.origins.check(request, client, kind=kind)

    async def authenticate_token(self, text: str, *, address: str) -> Principal:
        """Whose token or JWT this is; ``address`` is the client's (``listeners.client(request).address``).

        Raises:
            Denied: it is refused.
        """
        try:
            return await self._of_token(text)
        except Denied as denied:
            raise self._failed(denied, address) from denied

    @contextlib.contextmanager
    def counted(self, request: web.BaseRequest) -> Iterator[Client]:
        """Give the client of a request; a refusal (`Denied`) in the block is counted and logged as that client's."""
        client = self.listeners.client(request)
        try:
            yield client
        except Denied as denied:
            raise self._failed(denied, client.address) from denied

    def login(self, request: web.BaseRequest, secret: str) -> LoggedIn:
        """Exchange the secret of a one-time link; give the result to ``login.set_cookie``.

        Raises:
            Denied: unknown, used, expired, not from here, or not from our page.
        """
        with self.counted(request) as client:
            self.origins.check(request, client, kind="cookie")
            return self.logins.redeem(secret, client)

    async def login_by_token(self, request: web.BaseRequest, text: str) -> LoggedIn:
        """Exchange a token or a JWT for a login, which ends with it at the latest.

        Raises:
            Denied: it is refused, or not from our page.
        """
        with self.counted(request) as client:
            self.origins.check(request, client, kind="cookie")
            return self.user_logins.by_token(await self._of_token(text))

    async def share(self, logged_in: LoggedIn) -> None:
        """Let a login that was made here count at other gateways, before its browser can be there."""
        if (elsewhere := self.user_logins.elsewhere) is not None:
            await elsewhere.share(logged_in.principal.credential.removeprefix(LOGIN))

    async def logout(self, request: web.BaseRequest, cookie: str) -> None:
        """End the login that this cookie means, if any, from wherever it is used.

        Raises:
            Denied: not from our page, or the store cannot be written.
        """
        self.check_page(request, kind="cookie")
        await self._look_for(cookie)
        self.logins.end(cookie)

    def revoke(self, principal: Principal) -> None:
        """End the credential of a principal, in all workers: a token, a JWT, a certificate, or a login and the token or
        JWT that it came from. All but the login count again after ``Store.restore``.

        Raises:
            Denied: the store cannot be written.
        """
        if principal.kind != "cookie":
            until = principal.expires if principal.expires is not None else FOREVER
            self._store.revoke(principal.credential, until + self._settings.jwt.leeway_s)
            return
        self.logins.logout(principal.credential)
        if principal.login.startswith((CREDENTIAL, JWT)):  # whose end is not known here
            self._store.revoke(principal.login, FOREVER)

    def revoked(self, principal: Principal) -> bool:
        """Whether the credential of a principal that was let in before counts no more. Its expiry is not asked for."""
        ended = self._revocations.ended
        if ended(principal.credential, principal.name) or ended(principal.login, principal.name):
            return True
        return principal.kind == "cookie" and not self.logins.open(principal.credential)

    @property
    def epoch(self) -> tuple[object, ...]:
        """What users and credentials are known, without a look at files: ask before a check, and give it to `holds`."""
        return (self.users, self._revocations.epoch)

    def holds(self, principal: Principal, epoch: tuple[object, ...]) -> bool:
        """Whether a check of ``principal`` that began at ``epoch`` would give the same result now: its credential has
        not expired, and users, tokens, revocations and logins are the same as then, in all processes.

        Raises:
            Denied: the store cannot be read.
        """
        self._revocations.take_up()
        in_time = principal.expires is None or self._store.wall() < principal.expires
        return in_time and self.epoch == epoch

    def poll(self) -> bool:
        """Whether credentials changed since this was asked last; `run` asks, and calls ``changed``.

        Raises:
            Denied: the store cannot be read.
        """
        return self._revocations.poll()

    # ------------------------------------------------------------ the credentials

    async def _of_request(self, request: web.BaseRequest, client: Client) -> Principal | None:
        bearer = bearer_of(request)
        if bearer is not None:
            self.origins.check(request, client, kind="token")
            return await self._of_token(bearer)
        # in this order: a certificate was proved for this very connection, a cookie may have been taken along
        principal = self._of_certificate(request)
        if principal is None and (cookie := LOGIN_COOKIE.of(request, client)) is not None:
            await self._look_for(cookie)
            principal = self.logins.principal(cookie, client)
        self.origins.check(request, client, kind=None if principal is None else principal.kind)
        return principal

    async def _look_for(self, cookie: str) -> None:
        """Know the login of a cookie that another gateway has given, if any."""
        elsewhere = self.user_logins.elsewhere
        if elsewhere is not None and not self.logins.known(cookie):
            await elsewhere.find(id_of(cookie))

    async def _of_token(self, text: str) -> Principal:
        if text.startswith(PREFIX):
            token = self.tokens.check(text, self._store.wall())
            principal = self.users.principal(
                token.user, kind="token", credential=credential_of(token.id), expires=token.expires
            )
        elif is_jwt(text):
            found = await self._verifier.verify(text)
            principal = self.users.principal(
                found.name,
                kind="jwt",
                credential=found.credential,
                expires=found.expires,
                claims=found.claims if self._settings.jwt.trust_claims else None,
            )
        else:
            raise refused("neither a token nor a JWT")
        self._unrevoked(principal)
        if principal.kind == "jwt" and not self.users.known(principal.name):
            await self.user_logins.take_userid(principal)  # who may not come in takes none
            now = self.users.again(self._unrevoked(principal))  # Redis may have taken its time to say so
            if now is None:
                raise refused(
                    f"user {principal.name[:64]!r} is nobody, or another one, since its check began"
                )
            return now
        return principal

    def _of_certificate(self, request: web.BaseRequest) -> Principal | None:
        transport = request.transport
        try:
            shown = certificates.shown(transport.get_extra_info("ssl_object") if transport else None)
        except ValueError as error:
            raise refused(f"a certificate that cannot be read: {error}") from error
        if shown is None:
            return None
        if shown.expires <= self._store.wall():  # it was good when the connection began
            raise refused(f"certificate {shown.subject[:128]!r} expired")
        user = self.users.by_certificate(shown.names)
        if user is None:
            log.debug("certificate %r is no user's", shown.subject[:128])
            return None
        credential = f"{TLS}{shown.fingerprint}"
        principal = self.users.principal(user, kind="tls", credential=credential, expires=shown.expires)
        self._revocations.lists.check(shown, self._store.wall())
        return self._unrevoked(principal)

    def _unrevoked(self, principal: Principal) -> Principal:
        # a revocation of another worker counts at once for whoever comes anew
        if self._revocations.ended_by_now(principal.credential, principal.name):
            raise refused(f"{principal.credential} of {principal.name!r} was revoked")
        return principal

    def _failed(self, denied: Denied, address: str) -> Denied:
        """Count a refusal; what the client gets to see of it."""
        # no client failed here: its rate is not charged, and it may come again at once
        if denied.status >= 500:
            if self._faults.fail(address, self._clock())[1]:
                log.error("cannot check a credential: %s", denied)
            return denied
        within, told = self.attempts.fail(address, self._clock())
        if told:
            log.warning("refused %s: %s", address, denied)
        if within:
            return denied
        return Denied(
            f"{denied}; too many refusals of {address}",
            public="too many refused credentials; wait before the next",
            status=429,
            close=denied.close,  # it was checked, and coming again would not make it any better
            errno=errno.EAGAIN,
        )

    # ------------------------------------------------------------ rounds

    async def _watch(self, changed: Callable[[], None]) -> None:
        await self._revocations.read()
        try:
            if self.poll():
                changed()
        except BaseException:
            self._revocations.untold()  # the next round must find the change again
            raise
        if (problem := self._revocations.problem) != self._complaint:
            self._complaint = problem
            if problem:
                log.error("%s; what was read before stays", problem)


async def _every(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """Do ``work`` again and again; a round that fails is logged, and the next one comes."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Denied as error:
            log.warning("%s; again in %g s", error, seconds)
        except Exception:
            log.exception("a fault of ours; again in %g s", seconds)


def _tell_shared(settings: GatewaySettings) -> None:
    for _userid, text in shared_userids(settings):
        log.warning("%s", text)


def _names(settings: GatewaySettings) -> list[str]:
    """Host names that the settings give to listeners, and this machine's; wildcards are none."""
    urls = [*(entry.url for entry in settings.listen), settings.gateway.metrics_listen]
    hosts = [place_of(url).host for url in urls if url is not None] + [os.uname().nodename]
    return [host for host in hosts if host and host not in ("0.0.0.0", "::")]  # noqa: S104 - left out, not bound
