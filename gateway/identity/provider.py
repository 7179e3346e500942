"""One identity provider, as a client of OpenID Connect sees it: metadata, keys, and what it says of who logged in.

The answers come from addresses below https that the issuer's own metadata name (OpenID Connect Discovery 1.0), and the
metadata have to say that they are the issuer's. What a provider answers wrongly, too late or not at all is a `Denied`
whose ``public`` a person can act on; the log has the rest.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus

from broker import secret
from broker.errors import ConfigError
from broker.secret import SecretPlace
from gateway.identity.fetching import FAULTS, Reply, fetch, reason_of
from gateway.identity.jwt import Untimely, Verifier
from gateway.identity.keys import JwtKeys
from gateway.principal import Denied, refused
from gateway.settings.addresses import is_web_address
from gateway.settings.schema import JwtSection, OidcEntry

WELL_KNOWN: Final = "/.well-known/openid-configuration"
FRESH_S: Final = 600.0
"""How long metadata and keys are used before they are read again; an unknown key reads keys at once."""
RETRY_S: Final = 5.0
"""How long a provider that did not answer is not asked again: many who want in at once must not all wait for it."""
TEXT_CHARS: Final = 8192
"""Longest address or token that is taken from an answer."""

log = logging.getLogger("headgate")


class Metadata(NamedTuple):
    """What of a provider's metadata counts here."""

    authorization: str
    token: str
    jwks: str
    userinfo: str | None
    basic: bool
    """The secret goes into the header, not into the form."""
    names_itself: bool
    """Its answers carry ``iss`` (RFC 9207)."""


class Answer(NamedTuple):
    """What the token endpoint gave."""

    id_token: str
    access_token: str | None


class Provider:
    """A provider of ``[[oidc]]``.

    Args:
        entry: its settings.
        clock: seconds, never going back. wall: seconds since 1970.
    """

    def __init__(
        self,
        entry: OidcEntry,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.entry = entry
        self.title = entry.title or entry.name
        self._clock = clock
        self._wall = wall
        self._lock = asyncio.Lock()
        self._metadata: Metadata | None = None
        self._jwt_keys: JwtKeys | None = None
        self._asked: float | None = None
        self._why = ""  # the last reading failed

    def close(self) -> None:
        """Wait for no keys any more."""
        if self._jwt_keys is not None:
            self._jwt_keys.close()

    # ------------------------------------------------------------ metadata

    async def metadata(self) -> Metadata:
        """Its metadata, read at most every ``FRESH_S``; those of before stay while it does not answer.

        Raises:
            Denied: it has never answered (503).
        """
        async with self._lock:
            wait_s = RETRY_S if self._why else FRESH_S
            # under the lock: of many who log in at once one asks, and all take what it found
            if self._asked is None or self._clock() - self._asked >= wait_s:
                await self._read()
            if self._metadata is None:
                raise self.away(self._why)
            return self._metadata

    async def _read(self) -> None:
        try:
            reply = await fetch(self.entry.issuer.rstrip("/") + WELL_KNOWN)
            found = _metadata(reply, self.entry)
        except FAULTS as error:
            self._asked, self._why = self._clock(), reason_of(error)
            log.warning("provider %s: metadata: %s", self.entry.name, self._why)
            return
        # keys of the old address must not outlive it
        if self._jwt_keys is None or self._metadata is None or self._metadata.jwks != found.jwks:
            self.close()
            self._jwt_keys = JwtKeys(JwtSection(keys=(SecretPlace(found.jwks),)), clock=self._clock)
        await self._jwt_keys.refresh()
        self._asked, self._why, self._metadata = self._clock(), "", found

    # ------------------------------------------------------------ who logged in

    async def exchange(self, code: str, verifier: str, redirect: str) -> Answer:
        """Exchange the code of an answer for tokens.

        Raises:
            Denied: it does not take the code (400), or us (502), or does not answer (503).
        """
        metadata = await self.metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "code_verifier": verifier,
            "client_id": self.entry.client_id,
        }
        headers = {}
        if self.entry.client_secret_file is not None:
            secret = read_secret(self.entry.client_secret_file)
            if metadata.basic:
                pair = f"{quote_plus(self.entry.client_id)}:{quote_plus(secret)}"  # RFC 6749, section 2.3.1
                headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            else:
                form["client_secret"] = secret
        reply = await self._ask(metadata.token, form=form, headers=headers)
        said = self._object(reply)
        if reply.status != 200:
            raise self._refusal(reply.status, said)
        id_token, access = said.get("id_token"), said.get("access_token")
        if not isinstance(id_token, str):
            raise self.wrong("the token endpoint gave no id_token")
        usable = (
            isinstance(access, str)
            and len(access) <= TEXT_CHARS
            and access.isascii()
            and access.isprintable()
        )
        return Answer(id_token, access if usable else None)

    async def claims(self, answer: Answer, nonce: str, wanted: list[str]) -> dict[str, Any]:
        """What an ID token says, once everything about it is right; and of its claims that are ``wanted`` and not in it
        what the userinfo endpoint says.

        Raises:
            Denied: it is not for us, not for this login, of another time (401), or the provider does not answer (503).
        """
        metadata = await self.metadata()
        entry = self.entry
        assert self._jwt_keys is not None
        if not any(self._jwt_keys.find(each, None) for each in entry.algorithms):
            await self._jwt_keys.refresh_for("")
            if not any(self._jwt_keys.find(each, None) for each in entry.algorithms):
                raise self.away("none of its keys could be read")
        section = JwtSection(
            keys=(SecretPlace(metadata.jwks),),
            algorithms=entry.algorithms,
            issuer=entry.issuer,
            audience=entry.client_id,
            leeway_s=entry.leeway_s,
        )
        try:
            # OpenID Connect Core, section 3.1.3.7: issuer, audience, signature, times; then nonce and azp here
            claims = (await Verifier(section, self._jwt_keys, wall=self._wall).verify(answer.id_token)).claims
        except Untimely as error:
            raise self._clocks_differ(error) from error
        except Denied as denied:
            raise self.wrong(str(denied)) from denied
        said = claims.get("nonce")
        if not isinstance(said, str) or not hmac.compare_digest(said.encode(), nonce.encode()):
            raise self.wrong("the ID token has the nonce of another login")
        audience = claims["aud"]
        # section 3.1.3.7, 4 and 5: with several audiences azp says for whom, and it has to be us
        several = isinstance(audience, list) and len(audience) > 1
        if claims.get("azp", None if several else entry.client_id) != entry.client_id:
            raise self.wrong("the ID token was made for another client (azp)")
        if metadata.userinfo and answer.access_token and any(name not in claims for name in wanted):
            more = await self._userinfo(metadata.userinfo, answer.access_token, claims["sub"])
            return _joined(claims, more)
        return claims

    async def _userinfo(self, address: str, access_token: str, subject: str) -> dict[str, Any]:
        reply = await self._ask(address, headers={"Authorization": f"Bearer {access_token}"})
        said = self._object(reply)
        # OpenID Connect Core, section 5.3.2: another subject is an answer about somebody else
        if reply.status != 200 or said.get("sub") != subject:
            raise self.wrong(f"userinfo: status {reply.status}, or of another subject than the ID token")
        return said

    async def _ask(
        self, address: str, *, form: dict[str, str] | None = None, headers: dict[str, str]
    ) -> Reply:
        try:
            reply = await fetch(address, form=form, headers=headers)
        except FAULTS as error:
            raise self.away(f"{address}: {reason_of(error)}") from error
        if reply.status >= 500:
            raise self.away(f"{address}: status {reply.status}")
        return reply

    def _object(self, reply: Reply) -> dict[str, Any]:
        try:
            return reply.object()
        except ValueError as error:
            raise self.wrong(f"status {reply.status}: {error}") from error

    # ------------------------------------------------------------ what went wrong

    def away(self, why: str) -> Denied:
        """It does not answer, or not in time."""
        text = f"{self.title} does not answer now. Try again in a moment"
        return refused(f"provider {self.entry.name}: {why}", text, 503)

    def wrong(self, why: str) -> Denied:
        """What it said cannot be believed."""
        return refused(
            f"provider {self.entry.name}: {why}", f"what {self.title} said of you was not accepted", 401
        )

    def _refusal(self, status: int, said: dict[str, Any]) -> Denied:
        error = str(said.get("error"))[:64]
        if error == "invalid_grant":
            return refused(
                f"provider {self.entry.name} did not take the code",
                f"{self.title} did not take the code: it was used already, or is too old",
                400,
            )
        return refused(
            f"provider {self.entry.name}: the token endpoint answered {status}, {error!r}: client_id, "
            f"client_secret_file and the redirect URI have to be those that it knows",
            f"{self.title} does not know this gateway as it is configured; its operator finds more in the log",
            502,
        )

    def _clocks_differ(self, error: Untimely) -> Denied:
        if error.issued is None or (off := abs(error.issued - self._wall())) <= self.entry.leeway_s:
            return self.wrong(str(error))
        return refused(
            f"provider {self.entry.name}: {error}: its clock and this machine's differ by {off:.0f} s",
            f"the clocks of {self.title} and of this gateway differ by {off:.0f} seconds",
            401,
        )


def _joined(claims: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """An ID token's claims, and what userinfo has more. That an address was verified counts of that address alone,
    whichever of the two says it.
    """
    found = {**more, **claims}
    found.pop("email_verified", None)
    half = claims if "email" in claims else more
    if (
        half is claims
        and "email_verified" not in claims
        and more.get("email", claims["email"]) == claims["email"]
    ):
        half = more
    return found | {"email_verified": half["email_verified"]} if "email_verified" in half else found


def read_secret(path: str) -> str:
    """The secret of a client, from its file.

    Raises:
        Denied: it cannot be read or is empty, or others may read it (502): a person has to look after it.
    """
    try:
        return secret.read_file(path)
    except ConfigError as error:
        raise refused(str(error), "this gateway cannot read its own secret", 502) from error


def check_secret(path: str) -> None:
    """At the start.

    Raises:
        ConfigError: as `read_secret`; NotReady where it is yet to be mounted.
    """
    try:
        secret.read_file(path)
    except ConfigError as error:
        raise type(error)(f"oidc.client_secret_file: {error}", error.errno) from error


def _metadata(reply: Reply, entry: OidcEntry) -> Metadata:
    """What of the document counts.

    Raises:
        ValueError: it is none, or another issuer's, or names places that must not be asked.
    """
    said = reply.ok().object()
    # OpenID Connect Discovery 1.0, section 4.3: else one provider could speak for another
    if said.get("issuer") != entry.issuer:
        raise ValueError(f"of the issuer {str(said.get('issuer'))[:128]!r}, expected {entry.issuer!r}")

    def place(name: str) -> str:
        found = said.get(name)
        if (
            not isinstance(found, str)
            or len(found) > TEXT_CHARS
            or not is_web_address(found.partition("?")[0])
        ):
            raise ValueError(f"{name}: expected an https address")
        if not (found.isascii() and found.isprintable()) or " " in found or "#" in found:
            raise ValueError(f"{name}: expected an address")
        return found

    methods = said.get("code_challenge_methods_supported", ["S256"])
    if not isinstance(methods, list) or "S256" not in methods:
        raise ValueError("it does not know PKCE with S256")
    # Discovery, section 3: what stands for a provider that does not say
    ways = said.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    return Metadata(
        place("authorization_endpoint"),
        place("token_endpoint"),
        place("jwks_uri"),
        place("userinfo_endpoint") if "userinfo_endpoint" in said else None,
        isinstance(ways, list) and "client_secret_basic" in ways,
        said.get("authorization_response_iss_parameter_supported") is True,
    )
