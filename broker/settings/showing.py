"""Settings as they may be shown: without the secrets in URLs, and without what a foreign transport is told."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from broker.secret import HIDDEN, SecretUrl, hidden, masked

_OPTIONS = frozenset({"options", "upstream_options"})
"""Tables of transports that other packages bring: nobody here knows which of their texts are secrets."""


def shown(value: Any, name: str = "") -> Any:
    """Settings, or one of them by its name, as tables and values of JSON that anybody may read."""
    return _shown(msgspec.to_builtins(value, enc_hook=hidden), name in _OPTIONS)


def _shown(value: Any, foreign: bool) -> Any:
    if isinstance(value, dict):
        return {name: _shown(each, foreign or name in _OPTIONS) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_shown(each, foreign) for each in value)
    if isinstance(value, str):
        return HIDDEN if foreign else masked(value)
    return value


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
    elif value.secret if isinstance(value, SecretUrl) else isinstance(value, str) and masked(value) != value:
        yield name
