"""``nf://`` URLs: the names of a shared file below the root of what is shared (pure).

Both ends read them alike, so that a client puts a file where the server took it from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

SCHEME: Final = "nf://"
URL_BYTES_MAX: Final = 4096
"""As long as a path may be."""
DEPTH_MAX: Final = 64
"""Folders inside each other."""


class Unsafe(ValueError):
    """A URL that cannot name a file or folder."""


def names_of(url: Any) -> tuple[str, ...]:
    """The names below the root; () is the root itself.

    Raises:
        Unsafe: no text, not ``nf://``, a name ``..``, a NUL, too long or too deep.

    >>> names_of("nf://a//b/./c.txt")
    ('a', 'b', 'c.txt')
    """
    if not isinstance(url, str):
        raise Unsafe(f"url of type {type(url).__name__}, expected a text")
    shown = repr(url[:64])
    if not url.startswith(SCHEME):
        raise Unsafe(f"{shown} - invalid URL format, expected {SCHEME}path")
    if len(url.encode("utf-8", "surrogatepass")) > URL_BYTES_MAX:
        raise Unsafe(f"{shown} - URL of {len(url)} characters, expected at most {URL_BYTES_MAX} bytes")
    names = [name for name in url[len(SCHEME) :].replace("\\", "/").split("/") if name not in ("", ".")]
    if ".." in names or any("\0" in name for name in names):
        raise Unsafe(f"{shown} - invalid URL path")
    if len(names) > DEPTH_MAX:
        raise Unsafe(f"{shown} - {len(names)} names, expected at most {DEPTH_MAX}")
    try:
        "".join(names).encode()
    except UnicodeEncodeError as error:
        raise Unsafe(f"{shown} - not UTF-8") from error
    return tuple(names)


def url_of(names: Sequence[str]) -> str:
    """The inverse of ``names_of``."""
    return SCHEME + "/".join(names)


def is_url(value: object) -> bool:
    """True for a text that is an ``nf://`` URL as a whole, and not merely mentions one."""
    return (
        isinstance(value, str)
        and value.startswith(SCHEME)
        and len(SCHEME) < len(value) <= URL_BYTES_MAX
        and value.isprintable()
    )
