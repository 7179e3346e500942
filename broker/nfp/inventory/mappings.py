"""What is done with mappings: several into one, as deployed NorFab merges them; shown without secrets (pure)."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
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


def merged(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping of all, later ones over earlier ones; the sources stay as they are.

    Mappings are merged key by key. Of a list, the elements that are not there yet are appended to the earlier list.
    Anything else replaces what was there.

    >>> merged({"a": {"x": 1}, "b": [1]}, {"a": {"y": 2}, "b": [2, 1], "c": 3})
    {'a': {'x': 1, 'y': 2}, 'b': [1, 2], 'c': 3}
    """
    whole: dict[str, Any] = {}
    for source in sources:
        _merge(whole, source)
    return whole


def _merge(whole: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        there = whole.get(key)
        if isinstance(there, list) and isinstance(value, list):
            _append(there, value)
        elif isinstance(there, dict) and isinstance(value, dict):
            _merge(there, value)
        else:
            whole[key] = copied(value)


def _append(there: list[Any], more: list[Any]) -> None:
    seen = {_frozen(element) for element in there}
    for element in more:
        frozen = _frozen(element)
        if frozen not in seen:
            seen.add(frozen)
            there.append(copied(element))


def _frozen(value: Any) -> Hashable:
    """Equal for equal values: finds an element among thousands without comparing it to each."""
    if isinstance(value, dict):
        return "mapping", frozenset((key, _frozen(below)) for key, below in value.items())
    if isinstance(value, list):
        return "list", tuple(_frozen(below) for below in value)
    return value  # type: ignore[no-any-return]


def copied(value: Any) -> Any:
    """A deep copy of mappings and lists."""
    if isinstance(value, dict):
        return {key: copied(below) for key, below in value.items()}
    if isinstance(value, list):
        return [copied(below) for below in value]
    return value


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
