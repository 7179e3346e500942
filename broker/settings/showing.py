"""Settings as they may be shown: without the secrets in URLs, and without what a foreign transport is told."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from broker import z85
from broker.secret import HIDDEN, SecretUrl, hidden, masked

_OPTIONS = frozenset({"options", "upstream_options"})
"""Tables of transports that other packages bring: nobody here knows which of their texts are secrets."""
_PUBLIC_KEYS = frozenset({"public_key", "next_key", "key", "directory_key", "upstream_key"})
"""Public keys of CURVE: there are some with ":" and "@" in them, which look like a login in front of a host."""


def shown(value: Any, name: str = "") -> Any:
    """Settings, or one of them by its name, as tables and values of JSON that anybody may read."""
    return _shown(msgspec.to_builtins(value, enc_hook=hidden), name, name in _OPTIONS)


def _shown(value: Any, name: str, foreign: bool) -> Any:
    if isinstance(value, dict):
        return {key: _shown(each, key, foreign or key in _OPTIONS) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_shown(each, name, foreign) for each in value)
    if isinstance(value, str):
        return HIDDEN if foreign else _masked(value, name)
    return value


def _masked(text: str, name: str) -> str:
    """``text``, which ``name`` was set to, as it may be shown."""
    return text if name in _PUBLIC_KEYS and not z85.check(text) else masked(text)


def secrets(value: Any, name: str = "") -> Iterator[str]:
    """The settings of which something is not shown, by name; not all of a foreign transport's: it may be harmless."""
    if isinstance(value, Struct):
        for field in value.__struct_fields__:
            yield from secrets(getattr(value, field), f"{name}.{field}" if name else field)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from secrets(each, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for at, each in enumerate(value):
            yield from secrets(each, f"{name}[{at}]")
    elif isinstance(value, SecretUrl):
        if value.secret:
            yield name
    elif isinstance(value, str) and _masked(value, name.rpartition(".")[2]) != value:
        yield name
