"""JSON Web Tokens of an identity provider (RFC 7519), signed with Ed25519 (EdDSA, by its old name), RS256 or ES256; and
what claims say, those of tokens and those of a provider's userinfo by the same functions.

Providers differ in what they make of one thing: one group comes as a text or as a list of one, a number as a text or
with a point, a truth as a text. What can mean one thing only is taken for that.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jwt

from broker.identity import USERID_UNKNOWN
from gateway.closes import BAD_CREDENTIAL
from gateway.identity.keys import NAMES, JwtKeys, Key
from gateway.principal import Denied, refused
from gateway.settings.schema import JwtSection

NAME_CHARS: Final = 256
LISTED: Final = 1024
"""As many entries of one list are looked at."""


def find_claim(claims: dict[str, Any], name: str) -> Any:
    """A claim by its name, or by a path to it; None where there is none.

    >>> find_claim({"a.b": 1}, "a.b"), find_claim({"a": {"b": 2}}, "a.b"), find_claim({"a": 3}, "a.b")
    (1, 2, None)
    """
    if name in claims:
        return claims[name]
    first, dot, rest = name.partition(".")
    inner = claims.get(first)
    return find_claim(inner, rest) if dot and isinstance(inner, dict) else None


def name_of(claims: dict[str, Any], user_claim: str, *, verified: bool) -> str:
    """The user that claims name.

    Args:
        claims: what was said.
        user_claim: which of them it is, or a path to it.
        verified: an ``email`` counts only if ``email_verified`` says yes; else unless it says no.

    Raises:
        ValueError: nobody.
    """
    name = find_claim(claims, user_claim)
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS or not name.isprintable():
        raise ValueError(f"the claim {user_claim} names no user")
    # OpenID Connect Core, section 5.1: an address that was not verified is what somebody typed into a form
    if user_claim == "email":
        said = claims.get("email_verified", not verified)
        if not is_true(said):
            shown = "nothing" if "email_verified" not in claims else repr(said)[:64]
            text = f"the address {name!r} was not verified: email_verified is {shown}, expected true"
            raise ValueError(text)
    return name


def is_true(value: object) -> bool:
    """Whether a claim says yes.

    >>> is_true(True), is_true("true"), is_true("false"), is_true(1)
    (True, True, False, False)
    """
    return value is True or (isinstance(value, str) and value.lower() == "true")


def texts_of(value: object) -> list[str]:
    """The texts of a list, or the one that stands for a list of one.

    >>> texts_of(["a", 7, "b"]), texts_of("a"), texts_of({"a": 1}), texts_of(None)
    (['a', 'b'], ['a'], [], [])
    """
    listed = value[:LISTED] if isinstance(value, list) else [value]
    return [each for each in listed if isinstance(each, str)]


def userid_of(value: object) -> int | None:
    """A userid, also as a text of digits or with a point and nothing behind it; None for what is none.

    >>> userid_of(7001), userid_of("7001"), userid_of(7001.0), userid_of("07"), userid_of(True), userid_of(7.5)
    (7001, 7001, 7001, None, None, None)
    """
    number: int | None = None
    if (
        isinstance(value, str)
        and value.isascii()
        and value.isdigit()
        and len(value) <= len(str(USERID_UNKNOWN))
    ):
        number = int(value) if str(int(value)) == value else None
    elif isinstance(value, float) and math.isfinite(value) and value.is_integer():
        number = int(value)
    elif type(value) is int:
        number = value
    return number if number is not None and 0 <= number < USERID_UNKNOWN else None


TOKEN_CHARS: Final = 8192
"""Longest token that is looked at, wherever it comes; headers of proxies end there, too."""
TRIED: Final = 16
"""Keys that are tried for one token."""
OPTIONS: Final[Any] = {
    "strict_aud": False,
    "verify_sub": False,  # what counts of these two is looked at below
    "verify_jti": False,
    "verify_exp": False,  # times are compared below, with the clock of whoever asks
    "verify_nbf": False,
    "verify_iat": False,
}
REQUIRED: Final = ("exp", "iss", "aud")
CREDENTIAL: Final = "jwt:"
"""What stands before its name where credentials of all kinds are named."""


with contextlib.suppress(ValueError):  # a PyJWT that knows it by itself
    jwt.register_algorithm("Ed25519", jwt.algorithms.OKPAlgorithm())


class Verified(NamedTuple):
    """A token whose signature and times are right."""

    name: str
    """The user: what the claim ``jwt.user_claim`` says."""
    claims: dict[str, Any]
    credential: str
    """``jwt:`` and the ``jti``, or the token's hash: what a revocation names."""
    expires: float
    """Wall clock seconds at which it ends, leeway not counted."""


class Untimely(Denied):
    """A token whose signature is right, and whose times are not those of now."""

    def __init__(self, text: str, issued: float | None) -> None:
        super().__init__(text, public="credential refused", status=401, close=BAD_CREDENTIAL)
        self.issued = issued
        """When it was made by the clock of who made it, where it says so."""


def is_jwt(text: str) -> bool:
    """Whether a credential has the shape of a signed JWT: three parts between two dots."""
    return text.count(".") == 2


class Verifier:
    """Checks tokens against ``[jwt]``, or what a provider has instead; ``wall`` is the clock, seconds since 1970."""

    def __init__(
        self, settings: JwtSection, jwt_keys: JwtKeys, *, wall: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._accepted = [
            name for names in NAMES.values() for name in names if not {*names}.isdisjoint(settings.algorithms)
        ]
        self._jwt_keys = jwt_keys
        self._wall = wall

    async def verify(self, text: str) -> Verified:
        """Check a token; waits for the provider only when it names an unknown key.

        Raises:
            Denied: it is refused (401, do not reconnect); the reason is in the text for the log only. `Untimely` where
                nothing but its times is wrong.
        """
        algorithm, kid = self._head(text)
        if kid is not None and not self._jwt_keys.knows(kid):
            await self._jwt_keys.refresh_for(kid)
        keys = self._jwt_keys.find(algorithm, kid)
        if not keys:
            raise refused(f"no key for algorithm {algorithm} and kid {str(kid)[:64]!r}")
        claims = self._claims(text, algorithm, keys[:TRIED])
        expires = _moment(claims, "exp")
        self._check_times(claims, expires)
        try:
            name = name_of(claims, self._settings.user_claim, verified=False)
        except ValueError as error:
            raise refused(f"a JWT was refused: {error}") from error
        return Verified(name, claims, credential_of(text, claims), expires)

    def _head(self, text: str) -> tuple[str, str | None]:
        """Algorithm and key name that the token claims: they choose among our keys, and nothing else."""
        if not self._settings.keys:
            raise refused("a JWT, and jwt.keys is empty")
        if len(text) > TOKEN_CHARS or not text.isascii():
            raise refused(f"a JWT of {len(text)} characters, expected at most {TOKEN_CHARS} of ASCII")
        try:
            head = jwt.get_unverified_header(text)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise refused(f"not a JWT: {type(error).__name__}") from error
        algorithm, kid = head.get("alg"), head.get("kid")
        # RFC 8725, section 3.1: the settings choose, the token does not; "none" and HS256 are never among them
        if algorithm not in self._accepted:
            raise refused(
                f"algorithm {str(algorithm)[:16]!r}, expected {', '.join(self._settings.algorithms)}"
            )
        # RFC 7515, section 4.1.11: whoever does not understand what is critical must refuse
        if "crit" in head:
            raise refused("a critical header extension, and none is known here")
        if kid is not None and not isinstance(kid, str):
            raise refused("a kid that is no text")
        return algorithm, kid

    def _claims(self, text: str, algorithm: str, keys: list[Key]) -> dict[str, Any]:
        wrong: Exception | None = None
        named = ["sub"] if self._settings.user_claim == "sub" else []
        # section 4.1.3: a token for another audience must be refused, and one without any might be for anybody
        options: Any = {**OPTIONS, "require": [*REQUIRED, *named]}
        for key in keys:
            try:
                return jwt.decode(
                    text,
                    key.public,
                    algorithms=[algorithm],
                    audience=self._settings.audience,
                    issuer=self._settings.issuer,
                    options=options,
                )
            except jwt.InvalidSignatureError as error:
                wrong = error  # another key may fit
            except (jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
                raise refused(f"a JWT was refused: {_reason(error)}") from error
        raise refused(f"a JWT was refused: {_reason(wrong)}") from wrong

    def _check_times(self, claims: dict[str, Any], expires: float) -> None:
        now, leeway_s = self._wall(), self._settings.leeway_s
        issued = _moment(claims, "iat") if "iat" in claims else None
        begins = _moment(claims, "nbf") if "nbf" in claims else now
        # RFC 7519, section 4.1.4: on or after its time it must not be accepted
        if expires <= now - leeway_s:
            raise Untimely(f"a JWT was refused: it ended {now - expires:.0f} s ago", issued)
        # sections 4.1.5 and 4.1.6: nbf binds; a token from the future is a clock that is wrong, or a forgery
        ahead = max(begins, issued if issued is not None else now) - now
        if ahead > leeway_s:
            raise Untimely(f"a JWT was refused: it counts from {ahead:.0f} s after now on", issued)


def credential_of(text: str, claims: dict[str, Any]) -> str:
    """What names this token for revocation: its ``jti``, else the hash of what is signed.

    The signature is left out: there are several ways to write one and the same.
    """
    jti = claims.get("jti")
    if isinstance(jti, str) and 0 < len(jti) <= NAME_CHARS:
        return f"{CREDENTIAL}{jti}"
    # ECDSA signatures have two forms, base64 has paddings: the hash of all would let a revoked token in again
    return f"{CREDENTIAL}sha256:{hashlib.sha256(text.rpartition('.')[0].encode()).hexdigest()}"


def _moment(claims: dict[str, Any], name: str) -> float:
    found = claims[name]
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise refused(f"the claim {name} is no time")
    return float(found)


def _reason(error: Exception | None) -> str:
    """What was wrong, in PyJWT's words where they say no more than that."""
    return f"{type(error).__name__}: {str(error)[:128]}"
