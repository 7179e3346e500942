"""Logging in at an identity provider: OpenID Connect, authorization code with PKCE (RFC 7636).

::

    browser   GET /v1/login/oidc/NAME    -> a redirect to the provider, and a cookie with the begun login, sealed
    provider  asks whoever sits there, and redirects back
    browser   GET /v1/login/oidc/NAME/callback?code=...&state=...
    gateway   fetches tokens for the code, checks them    -> a page with the login's cookie, which goes on to ``/``

The begun login (provider, state, nonce, code verifier) lies encrypted in the browser's cookie, under a key that all
worker processes share: any of them finishes it, however many are begun and never finished costs nothing here, and
nobody's crowds out another's. It is over after ``BEGUN_S``, and counts once: ``spent`` remembers by hash what came
back. Gateways of a fleet have a key together, too, and remember together what was used; a login that was begun with
that key ends only where both can be asked for, and one that was begun while they could not only where it was begun.

What is refused, and why: a state that is not the cookie's (somebody else's login, RFC 9700, section 4.7); an answer by
the address, or with the ``iss``, of another provider than the login was begun at (mix-up, RFC 9207); an ID token of
another issuer, audience, nonce or time. Where the browser goes is never taken from a request: to the provider's
endpoint, to ``url`` of the settings, and then to ``/``.

The cookie is ``SameSite=Lax``, for the way back begins at the provider's site; that of the login stays Strict, and so
the answer is a page that goes on, not a redirect: a redirect would still be the foreign site's.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec
from cryptography.fernet import Fernet, InvalidToken

from broker.holdings import Holdings
from broker.identity import NOBODY
from gateway.identity.jwt import find_claim, name_of, texts_of, userid_of
from gateway.identity.provider import Metadata, Provider, check_secret
from gateway.identity.proxies import UNKNOWN, Client, group_of
from gateway.identity.store import KEY_BYTES, Store, hash_of
from gateway.principal import Denied, refused
from gateway.settings.schema import OidcEntry

if TYPE_CHECKING:
    from gateway.fleet.kept import SharedLogins

SOURCE: Final = "oidc:"
"""What stands before the provider's name in ``Principal.login``."""
BEGUN_S: Final = 600
"""How long a begun login may take: a person may have to find a second factor."""
SPENT: Final = 16384
"""Answers that are remembered, until no login begun so early counts any more; of more the earliest are forgotten."""
EXCHANGES: Final = 32
"""Answers of providers that are checked at a time in one process."""
EXCHANGES_EACH: Final = 8
"""Those of one address: behind it may be a whole house, but not all of the world."""
CHARS: Final = 2048
"""Longest code, state or sealed cookie that is looked at."""


class PendingLogin(msgspec.Struct, frozen=True):
    """A login that was begun: what the sealed cookie holds."""

    provider: str
    state: str
    nonce: str
    verifier: str


class Account(NamedTuple):
    """Who a provider says somebody is."""

    user: str
    """Prefix and name."""
    claims: dict[str, Any]
    """The groups that the settings know, and the userid, if it counts."""


class Person(NamedTuple):
    """Who somebody is whom the settings do not name."""

    claims: dict[str, Any]
    """The roles, and a userid where the provider says which."""
    own: int | None
    """The userid that was given to it here, or nobody's; None: the claims have it."""


class Providers:
    """The providers of ``[[oidc]]``, and the way to them and back.

    Args:
        entries: the settings.
        store: has the key of the cookies, and what came back.
        clock: seconds, never going back.
        elsewhere: other gateways; None: there are none.

    Raises:
        Denied: the store cannot be written.
    """

    def __init__(
        self,
        entries: Iterable[OidcEntry],
        store: Store,
        clock: Callable[[], float],
        elsewhere: SharedLogins | None = None,
    ) -> None:
        self._store = store
        self.by_name = {entry.name: Provider(entry, clock=clock, wall=store.wall) for entry in entries}
        self._elsewhere = elsewhere
        self._key = store.key("oidc") if self.by_name else b""
        self._checked: Holdings[str] = Holdings()  # answers that are being checked now, by address

    def start(self) -> None:
        """Look whether the secrets are there.

        Raises:
            ConfigError: one cannot be read.
        """
        for provider in self.by_name.values():
            if provider.entry.client_secret_file is not None:
                check_secret(provider.entry.client_secret_file)

    def close(self) -> None:
        """Wait for no provider any more."""
        for provider in self.by_name.values():
            provider.close()

    # ------------------------------------------------------------ there and back

    async def begin(self, name: str, client: Client) -> tuple[str, str]:
        """Where to send the browser, and the value of the cookie that it has to bring back.

        Raises:
            Denied: no such provider (404), it does not answer (503), or not by the scheme of the settings (400).
        """
        provider = self._provider(name, client)
        metadata = await provider.metadata()
        # state against login CSRF (RFC 6749, section 10.12), nonce against ID tokens of other logins (OpenID Connect
        # Core, section 3.1.2.1), verifier against stolen codes (RFC 7636)
        begun = PendingLogin(name, *(secrets.token_urlsafe(KEY_BYTES) for _ in range(3)))
        sealed = _seal(self._fleet_key() or self._key).encrypt_at_time(
            msgspec.json.encode(begun), int(self._store.wall())
        )
        # RFC 7636, section 4.2: S256; "plain" would show the verifier to whoever sees the address
        digest = hashlib.sha256(begun.verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": provider.entry.client_id,
            "redirect_uri": redirect_of(provider.entry),
            "scope": " ".join(dict.fromkeys(("openid", *provider.entry.scopes))),
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        place = metadata.authorization
        return f"{place}{'&' if '?' in place else '?'}{urlencode(asked)}", sealed.decode().rstrip("=")

    async def finish(
        self, name: str, query: Mapping[str, str], cookie: str | None, client: Client
    ) -> Account:
        """Who came back from the provider ``name``; ``query`` is its answer, each name once.

        Raises:
            Denied: not this browser's login, not this provider's, used, or what the provider says is not right.
        """
        provider = self._provider(name, client)
        begun, by_fleet = self._opened(cookie)
        state = query.get("state", "")
        # RFC 6749, section 10.12: before anything of the answer is used
        if not hmac.compare_digest(hash_of(state), hash_of(begun.state)):
            raise _again("an answer with the state of another login")
        if begun.provider != name:
            raise _again(f"an answer by way of {name} to a login begun at {begun.provider[:32]!r}")
        with self._checking(provider, client):
            _check_issuer(provider, await provider.metadata(), query.get("iss"))
            # before the provider is asked: of two answers at the same moment one goes on
            await self._spend(begun, by_fleet=by_fleet)
            code = _code(provider, query)
            answer = await provider.exchange(code, begun.verifier, redirect_of(provider.entry))
            claims = await provider.claims(answer, begun.nonce, _wanted(provider.entry))
        return account_of(provider, claims)

    @contextlib.contextmanager
    def _checking(self, provider: Provider, client: Client) -> Iterator[None]:
        """Few answers at a time: each is bounded in time, but keeps the provider and us busy."""
        group = group_of(client.address)
        if self._checked.of(group) >= EXCHANGES_EACH and group not in UNKNOWN:
            text = "many logins come from your address at this moment: try again in a few seconds"
            raise refused(f"{EXCHANGES_EACH} answers of providers to {group} are being checked", text, 429)
        if self._checked.total >= EXCHANGES:
            raise provider.away(f"{EXCHANGES} answers of providers are being checked")
        self._checked.add(group)
        try:
            yield
        finally:
            self._checked.add(group, -1)

    def _provider(self, name: str, client: Client) -> Provider:
        provider = self.by_name.get(name)
        if provider is None:
            raise refused(f"no provider {name[:64]!r}", "there is no such provider here", 404)
        expected = urlsplit(provider.entry.url).scheme
        # a Secure cookie would not be set, and the redirect URI would not be the one that the provider knows
        if client.scheme != expected:
            raise refused(
                f"a login by {client.scheme}, and url of provider {name} begins with {expected}: is the proxy in "
                f"trusted_proxies, and says X-Forwarded-Proto?",
                f"this gateway is to be reached at {provider.entry.url}",
                400,
            )
        return provider

    def _fleet_key(self) -> bytes | None:
        return None if self._elsewhere is None else self._elsewhere.key

    def _opened(self, cookie: str | None) -> tuple[PendingLogin, bool]:
        """What was begun, and whether with the key of a fleet."""
        if cookie is None or len(cookie) > CHARS or not cookie.isascii():
            raise _again("an answer of a provider without a begun login")
        padded = cookie.encode() + b"=" * (-len(cookie) % 4)
        for key, by_fleet in ((self._key, False), (self._fleet_key(), True)):
            if key is not None:
                with contextlib.suppress(InvalidToken, msgspec.DecodeError):
                    text = _seal(key).decrypt_at_time(padded, BEGUN_S, int(self._store.wall()))
                    return msgspec.json.decode(text, type=PendingLogin), by_fleet
        raise _again("an answer of a provider to a login that is over, or was not begun here")

    async def _spend(self, begun: PendingLogin, *, by_fleet: bool) -> None:
        """A begun login comes back once, by whichever worker, and gateway."""
        now, answer = self._store.wall(), hash_of(begun.state)
        until = now + 2 * BEGUN_S  # the seal forgives a minute
        with self._store.writing() as base:
            base.execute("DELETE FROM spent WHERE expires <= ?", (now,))
            base.execute(
                "DELETE FROM spent WHERE hash IN (SELECT hash FROM spent ORDER BY expires DESC LIMIT -1 OFFSET ?)",
                (SPENT - 1,),
            )
            spent = base.execute("INSERT OR IGNORE INTO spent VALUES (?, ?)", (answer, until)).rowcount == 0
        if by_fleet and not spent:
            assert self._elsewhere is not None
            spent = not await self._elsewhere.spend(answer, until)
        if spent:
            raise _again("an answer of a provider that was used already")

    # ------------------------------------------------------------ who that is by the settings

    def person_of(self, source: str, claims: dict[str, Any]) -> Person:
        """Who the settings of now make of a login's claims.

        Raises:
            Denied: its provider is not among them any more (403).
        """
        provider = self.by_name.get(source.removeprefix(SOURCE))
        if provider is None:
            raise refused(f"{source} is no provider here any more", "credential refused", 403)
        entry, groups = provider.entry, claims.get("groups") or []
        given = [role for each in entry.groups if each.group in groups for role in each.roles]
        roles = [*entry.roles, *given]
        if entry.userid_claim is not None and "userid" in claims:
            return Person({"userid": claims["userid"], "roles": roles}, None)
        return Person({"roles": roles}, claims.get("own", NOBODY) if entry.userid is None else NOBODY)


def _seal(key: bytes) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(key))


def account_of(provider: Provider, claims: dict[str, Any]) -> Account:
    """The user that claims name, and of the claims what the settings know.

    Raises:
        Denied: they name nobody (401).
    """
    entry = provider.entry
    try:
        name = name_of(claims, entry.user_claim, verified=True)
    except ValueError as error:
        raise provider.wrong(str(error)) from error
    listed = texts_of(find_claim(claims, entry.groups_claim))
    counts: dict[str, Any] = {"groups": sorted({each.group for each in entry.groups if each.group in listed})}
    if entry.userid_claim is not None and (said := find_claim(claims, entry.userid_claim)) is not None:
        userid = userid_of(said)
        # `Users` says what is wrong with one that is none
        counts["userid"] = said if userid is None else userid
    return Account(entry.prefix + name, counts)


def redirect_of(entry: OidcEntry) -> str:
    """The redirect URI of a provider: another one for each, so that their answers cannot be mixed up."""
    return f"{entry.url.rstrip('/')}/v1/login/oidc/{entry.name}/callback"


def _wanted(entry: OidcEntry) -> list[str]:
    names = [entry.user_claim, *([entry.userid_claim] if entry.userid_claim else [])]
    names += [entry.groups_claim] if entry.groups else []
    names += ["email_verified"] if entry.user_claim == "email" else []
    return [name.partition(".")[0] for name in names]


def _check_issuer(provider: Provider, metadata: Metadata, said: str | None) -> None:
    # RFC 9207, section 2.4: against mix-up; who says that it names itself must do so
    if said != provider.entry.issuer and (said is not None or metadata.names_itself):
        raise provider.wrong(
            f"an answer of the issuer {str(said)[:128]!r}, expected {provider.entry.issuer!r}"
        )


def _code(provider: Provider, query: Mapping[str, str]) -> str:
    error, code = query.get("error"), query.get("code", "")
    # RFC 6749, section 4.1.2.1; what stands in error_description is text of whoever made the address, and shown to
    # nobody
    if error is not None:
        text = f"provider {provider.entry.name} answered {error[:64]!r}"
        if error == "access_denied":
            raise refused(text, f"{provider.title} did not let you in, or you left", 403)
        if error in ("temporarily_unavailable", "server_error"):
            raise provider.away(text)
        raise refused(text, f"{provider.title} did not carry out the login", 400)
    if not 0 < len(code) <= CHARS:
        raise _again("an answer of a provider without a code")
    return code


def _again(text: str) -> Denied:
    public = "this login was not begun in this browser, took longer than ten minutes, or was used already"
    return refused(text, public, 400)
