"""Where a WebSocket link goes, and with which credential."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import SplitResult, urlencode, urlsplit

from broker.errors import ConfigError
from broker.secret import masked, read_file

DEFAULT_PATH: Final = "/v1/ws"
TOKEN_BYTES: Final = 64 << 10
"""A token file is read up to here; no HTTP server takes a longer header."""
POLICIES: Final = ("disconnect", "drop")

Token: TypeAlias = str | Callable[[], str] | None


class Target(NamedTuple):
    """A gateway's address, taken apart."""

    scheme: str
    """``ws`` or ``wss``."""
    host: str
    port: int
    resource: str
    """Path and query."""

    @property
    def uri(self) -> str:
        """The whole address again."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.resource}"

    @property
    def shown(self) -> str:
        """The same for people."""
        return masked(self.uri)

    @property
    def loopback(self) -> bool:
        """True when no other machine can listen on the way; a name other than ``localhost`` may be anything."""
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return self.host == "localhost"


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
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{masked(uri)!r}: a host or port that is none") from error
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ConfigError(f"{masked(uri)!r}: expected ws://HOST:PORT/PATH or wss://HOST:PORT/PATH")
    if "@" in parts.netloc or parts.fragment:
        raise ConfigError(
            f"{masked(uri)!r}: an address holds no user, password or fragment; the token goes into $HEADGATE_TOKEN"
        )
    if overflow is not None and overflow not in POLICIES:
        raise ConfigError(f"overflow {overflow!r}: expected one of {', '.join(POLICIES)}")
    port = port or (443 if parts.scheme == "wss" else 80)
    return Target(parts.scheme, parts.hostname, port, _resource(parts, overflow))


def _resource(parts: SplitResult, overflow: str | None) -> str:
    path = parts.path if parts.path not in ("", "/") else DEFAULT_PATH
    asked = urlencode({"overflow": overflow}) if overflow else ""
    query = "&".join(filter(None, (parts.query, asked)))
    return f"{path}?{query}" if query else path


def check_secrecy(target: Target, insecure: bool) -> None:
    """Refuse to speak in plaintext where other machines can listen.

    Raises:
        ConfigError: ``ws://``, not ``insecure``, and the host is not loopback.
    """
    if target.scheme == "ws" and not insecure and not target.loopback:
        raise ConfigError(f"{target.shown}: plaintext off loopback; use wss://, or set insecure = true")


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
        "no credential for the gateway: set HEADGATE_TOKEN or HEADGATE_TOKEN_FILE, or give Options.extra a token"
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
