"""Addresses of the web in settings: one rule for whoever checks them and whoever uses them. (pure)

``place_of``         where a listener is
``normal``           an origin as it is compared, whoever wrote it: the settings, or a browser
``is_web_address``   what we ask, or send browsers to: https, or http of this machine
``is_keys_address``  where public keys are
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from broker import endpoints
from broker.endpoints import Endpoint, is_loopback

PORTS: Final = {"http": 80, "https": 443}
NEVER: Final = frozenset(("about", "blob", "data", "file", "filesystem", "ftp", "javascript", "ws", "wss"))
"""Schemes of which browsers make no origin, or another one: ``null``, or the page's."""
WEB: Final = "https://HOST, or http:// on this machine, without a query"
"""What `is_web_address` expects ..."""
KEYS: Final = "a PEM file, https:// or file:///PATH, or http:// on this machine"
"""... and `is_keys_address`."""
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+")


def place_of(url: str) -> Endpoint:
    """What the URL of a listener says: ``http://HOST:PORT``, ``https://HOST:PORT`` or ``unix:///PATH``.

    Raises:
        ValueError: says what was expected.

    >>> place_of("https://[::1]:443")
    Endpoint(scheme='https', host='::1', port=443)
    """
    place = endpoints.split(url, "http", "https", "unix")
    if place.host == "*":  # it would stand in addresses that browsers are given
        raise ValueError(
            "expected a host name, an IPv4 address (0.0.0.0: all), or an IPv6 address in brackets"
        )
    return place


def split(text: str) -> SplitResult | None:
    """A URL taken apart, whose host is a name or an address and whose port is one; None for what is no such URL.

    >>> split("https://[::1") is split("https://a:b") is split("https://*.a") is split("https://a b") is None
    True
    """
    if not text.isascii() or not text.isprintable() or " " in text:
        return None
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        if host is None or "\\" in text:
            return None
        place = parts.netloc.rpartition("@")[2]
        if ":" in host:  # what urlsplit passes over stands around the brackets
            ipaddress.IPv6Address(host)
            rest = place.removeprefix(f"[{place[1 : place.find(']')]}]")
        else:
            rest = place[len(host) :]
    except ValueError:
        return None
    if ":" not in host and not (_HOST.fullmatch(host) and _is_name_or_address(host)):
        return None
    return parts if (not rest or re.fullmatch(r":\d*", rest)) and port != 0 else None


def _is_name_or_address(host: str) -> bool:
    """Whether browsers leave a host as it is: what ends in a number is an IPv4 address, which they write in one way."""
    last = host.removesuffix(".").rpartition(".")[2]
    if not (last.isdigit() or re.fullmatch(r"0[xX][0-9a-fA-F]*", last)):
        return True
    try:
        return str(ipaddress.IPv4Address(host)) == host
    except ValueError:
        return False


def normal(origin: str) -> str | None:
    """An origin with a small host and without its default port; None for what is no origin, ``null`` for one.

    >>> normal("HTTPS://Dash.example.org:443"), normal("null"), normal("https://a@b"), normal("tauri://localhost")
    ('https://dash.example.org', None, None, 'tauri://localhost')
    """
    parts = split(origin.strip())
    if parts is None or parts.path or parts.query or parts.fragment or "@" in parts.netloc:
        return None
    if parts.scheme in NEVER or not _SCHEME.fullmatch(parts.scheme):
        return None
    host, port = str(parts.hostname), parts.port
    shown = f"[{ipaddress.IPv6Address(host)}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + ("" if port in (None, PORTS.get(parts.scheme)) else f":{port}")


def expected_origin(text: str) -> str:
    """What was expected where no browser ever says such an origin; "" for one."""
    if normal(text) is not None and text == text.strip():
        return ""
    scheme, _mark, rest = text.partition("://")
    if "*" in text:
        return (
            "an origin like https://grafana.example.org: there are no wildcards, each one stands for itself"
        )
    if not text.isascii():
        return "an origin like https://grafana.example.org, in ASCII: browsers say such a name in punycode, xn--..."
    if "@" in rest.partition("/")[0]:
        return "an origin like https://grafana.example.org, without a user"
    if scheme in ("ws", "wss"):
        return "an origin like https://grafana.example.org: that of the page, also for its WebSockets"
    return "an origin like https://grafana.example.org, without a path, or that of an app, like tauri://localhost"


def is_web_address(text: str, *, plain: bool = True) -> bool:
    """Whether a text is an https address, or an http one of this machine; ``plain``: of which nothing must be kept
    secret.

    >>> is_web_address("https://id.example.org/realms/a"), is_web_address("http://id.example.org")
    (True, False)
    """
    parts = split(text)
    if parts is None or parts.fragment or (plain and (parts.query or "@" in parts.netloc)):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(str(parts.hostname)))


def is_keys_address(text: str) -> bool:
    """Whether public keys can be there: a path, ``file:///PATH``, or an https address (http of this machine).

    >>> is_keys_address("keys.pem"), is_keys_address("file:///etc/k"), is_keys_address("file://etc/k")
    (True, True, False)
    """
    scheme, colon, rest = text.partition(":")
    if not colon or not (rest.startswith("/") and _SCHEME.fullmatch(scheme.lower())):
        return True
    if scheme == "file":
        return rest.startswith(("///", "//localhost/"))
    return scheme.islower() and is_web_address(text, plain=False)
