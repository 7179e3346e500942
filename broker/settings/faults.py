"""One fault of a configuration, and the checks of single values that several sections share.

Nothing is opened, resolved or read: a file for another machine can be checked here.
"""

from collections.abc import Iterator
from typing import NamedTuple

from broker.settings.addresses import BUILT_IN_SCHEMES, Address, known_schemes, split_uri
from broker.settings.lines import KeyPath

Z85_KEY_CHARS = 40
_Z85_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


class Problem(NamedTuple):
    """One fault: where, and what was seen and expected there."""

    path: KeyPath
    text: str


def saw(path: KeyPath, seen: object, expected: str) -> Problem:
    """The fault at ``path``: what was seen, cut to 64 characters, and what was expected."""
    return Problem(path, f"saw {str(seen)[:64]!r}, expected {expected}")


def check_key(path: KeyPath, key: str) -> Iterator[Problem]:
    """Check that ``key`` is a CURVE key: 32 bytes in Z85."""
    if len(key) != Z85_KEY_CHARS:
        yield saw(path, key, f"{Z85_KEY_CHARS} characters of Z85, not {len(key)}")
        return
    strange = next((char for char in key if char not in _Z85_ALPHABET), None)
    if strange is not None:
        yield saw(path, key, f"characters of Z85 only, not {strange!r}")
        return
    for start in range(0, Z85_KEY_CHARS, 5):
        number = 0
        for char in key[start : start + 5]:
            number = number * 85 + _Z85_ALPHABET.index(char)
        if number >= 2**32:
            yield saw(
                path, key, f"Z85 of 32 bytes; {key[start : start + 5]!r} stands for more than four bytes"
            )
            return


def check_uri(path: KeyPath, uri: str, schemes: tuple[str, ...] | None) -> Iterator[Problem]:
    """Check the form and the scheme of a URI; `schemes` None allows every scheme with a transport."""
    try:
        scheme = split_uri(uri).scheme
    except ValueError as error:
        yield Problem(path, f"saw {uri[:64]!r}, {error}")
        return
    if schemes is None:
        allowed = list(BUILT_IN_SCHEMES) if scheme in BUILT_IN_SCHEMES else known_schemes()
    else:
        allowed = list(schemes)
    if scheme not in allowed:
        yield saw(path, uri, f"one of the schemes {', '.join(allowed)}")


def split_or_none(uri: str | None) -> Address | None:
    """The parts of a URI; None for none, and for one that ``check_uri`` finds fault with."""
    try:
        return None if uri is None else split_uri(uri)
    except ValueError:
        return None
