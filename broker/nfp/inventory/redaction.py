"""Showing data without its secrets (pure)."""

from __future__ import annotations

import re
from typing import Any, Final

HIDDEN: Final = "***"
"""Stands for a value; null stays null, since it tells nothing."""
SECRETS: Final = re.compile(
    r"pass(word|wd|phrase|code)|secret|token|credential|community|private|certificate|cookie|bearer|webhook|apikey"
    r"|(^|[^a-z])(pass|pwd|pw|psk|pin|key|auth|salt|hash|otp|snmp|cert|dsn)s?($|[^a-z])",
    re.IGNORECASE,
)
"""Keys whose values are hidden from everybody but owners."""
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]*://)[^/@\s]*@", re.IGNORECASE)
_ARMOUR: Final = "PRIVATE KEY-----"
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def redacted(value: Any, *, everything: bool) -> Any:
    """A copy of ``value`` with its secrets replaced by ``HIDDEN``.

    Args:
        value: made of mappings with text keys, lists and scalars.
        everything: hide every scalar, which leaves the names of keys and the shape; else what is below a key that
            looks like a secret's, user and password in URLs, and private keys.

    >>> redacted({"user": "a", "password": "b", "url": "http://a:b@h/"}, everything=False)
    {'user': 'a', 'password': '***', 'url': 'http://***@h/'}
    """
    if isinstance(value, dict):
        return {
            key: redacted(below, everything=everything or _is_secret(key)) for key, below in value.items()
        }
    if isinstance(value, list):
        return [redacted(below, everything=everything) for below in value]
    if value is None or (everything and value == ""):
        return value
    if everything:
        return HIDDEN
    return _text(value) if isinstance(value, str) else value


def _is_secret(key: Any) -> bool:
    return SECRETS.search(_CAMEL.sub("_", str(key))) is not None


def _text(value: str) -> str:
    return HIDDEN if _ARMOUR in value else _URL.sub(rf"\1{HIDDEN}@", value)
