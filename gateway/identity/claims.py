"""What claims say, however their maker writes it: those of JWTs and of identity providers by the same functions.

Providers differ in what they make of one thing: one group comes as a text or as a list of one, a number as a text or
with a point, a truth as a text. What can mean one thing only is taken for that.
"""

from __future__ import annotations

import math
from typing import Any, Final

from broker.identity import USERID_UNKNOWN

NAME_CHARS: Final = 256
LISTED: Final = 1024
"""As many entries of one list are looked at."""


def claim(claims: dict[str, Any], name: str) -> Any:
    """A claim by its name, or by a path to it; None where there is none.

    >>> claim({"a.b": 1}, "a.b"), claim({"a": {"b": 2}}, "a.b"), claim({"a": 3}, "a.b")
    (1, 2, None)
    """
    if name in claims:
        return claims[name]
    first, dot, rest = name.partition(".")
    inner = claims.get(first)
    return claim(inner, rest) if dot and isinstance(inner, dict) else None


def name_of(claims: dict[str, Any], user_claim: str, *, verified: bool) -> str:
    """The user that claims name.

    Args:
        claims: what was said.
        user_claim: which of them it is, or a path to it.
        verified: an ``email`` counts only if ``email_verified`` says yes; else unless it says no.

    Raises:
        ValueError: nobody.
    """
    name = claim(claims, user_claim)
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS or not name.isprintable():
        raise ValueError(f"the claim {user_claim} names no user")
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
