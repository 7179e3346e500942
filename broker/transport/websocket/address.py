"""Where a WebSocket link goes, and with which credential."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import SplitResult, urlencode, urlsplit

from broker.endpoints import Endpoint, bracketed, split
from broker.errors import ConfigError
from broker.secret import masked, read_file

DEFAULT_PATH: Final = "/v1/ws"
PORTS: Final = {"ws": 80, "wss": 443}
TOKEN_BYTES: Final = 64 << 10
"""A token file is read up to here; no HTTP server takes a longer header."""
POLICIES: Final = ("disconnect", "drop")

Token: TypeAlias = str | Callable[[], str] | None


class Target(NamedTuple):
    """A gateway's address, taken apart."""

    place: Endpoint
    """Scheme (``ws`` or ``wss``), host and port."""
    resource: str
    """Path and query."""

    @property
    def uri(self) -> str:
        """The whole address again."""
        return self.place.text + self.resource

    @property
    def shown(self) -> str:
        """The same for people."""
        return masked(self.uri)


def parse(uri: str, overflow: str | None = None) -> Target:
    """The target that ``uri`` names.

    Args:
        uri: ``ws://HOST[:PORT][/PATH][?QUERY]`` or ``wss://``.
        overflow: ``disconnect`` or ``drop``, put into the query; None leaves it to the gateway.

    Raises:
        ConfigError: another form; or user, password or fragment in it: secrets do not belong into addresses.

    >>> parse("ws://127.0.0.1:8280").uri
    'ws://127.0.0.1:8280/v1/ws'
    """
    try:
        parts = urlsplit(uri)
        port = parts.port or PORTS.get(parts.scheme)
        place = split(f"{parts.scheme}://{bracketed(parts.hostname or '')}:{port}", *PORTS)
    except ValueError as error:
        text = "expected ws://HOST:PORT/PATH or wss://HOST:PORT/PATH, a host and a port that can be one"
        raise ConfigError(f"{masked(uri)!r}: {text}") from error
    if "@" in parts.netloc or parts.fragment:
        raise ConfigError(
            f"{masked(uri)!r}: an address holds no user, password or fragment; the token goes into $HEADGATE_TOKEN"
        )
    if overflow is not None and overflow not in POLICIES:
        raise ConfigError(f"overflow {overflow!r}: expected one of {', '.join(POLICIES)}")
    return Target(place, _resource(parts, overflow))


def _resource(parts: SplitResult, overflow: str | None) -> str:
    path = parts.path if parts.path not in ("", "/") else DEFAULT_PATH
    asked = urlencode({"overflow": overflow}) if overflow else ""
    query = "&".join(filter(None, (parts.query, asked)))
    return f"{path}?{query}" if query else path


def token_of(extra: dict[str, Any]) -> Token:
    """The token to show, or the function that makes one; None when another credential stands in ``extra``.

    Raises:
        ConfigError: there is no credential at all, or the token file cannot be read.
    """
    if "token" in extra:
        return extra["token"]  # type: ignore[no-any-return]  # what the caller put there
    if given := os.environ.get("HEADGATE_TOKEN"):
        return given.strip()
    if path := os.environ.get("HEADGATE_TOKEN_FILE"):
        return _from_file(path)
    if "ssl" in extra or "headers" in extra:
        return None
    raise ConfigError(
        "no credential for the gateway: set HEADGATE_TOKEN, or HEADGATE_TOKEN_FILE to a file with one"
    )


def _from_file(path: str) -> str:
    try:
        # a person keeps it, as the output of a command has it: said, not refused
        return read_file(path, limit=TOKEN_BYTES, refuse=False)
    except ConfigError as error:
        raise type(error)(f"HEADGATE_TOKEN_FILE {error}", error.errno) from error


def fresh(token: Token) -> str | None:
    """The token's text; None when there is none.

    Raises:
        ConfigError: it holds something that no HTTP header can; the token itself is not shown.
    """
    text = token() if callable(token) else token
    if text is not None and not (text.isascii() and text.isprintable() and " " not in text and text):
        raise ConfigError(
            "the token for the gateway is empty or holds blanks or characters that no header takes"
        )
    return text
