"""Values that several sections share: the ranges of their fields, a fault, the checks of keys and URIs.

Nothing is opened, resolved or read: a file for another machine can be checked here.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

from msgspec import Meta

from broker import z85
from broker.errors import ConfigError
from broker.schemes import Capabilities, beyond_loopback, capabilities_of, check_port, nobody
from broker.secret import masked
from broker.settings.lines import KeyPath

# 0xFFFFFFFF means unknown, and an owner link would fill it in
Userid = Annotated[int, Meta(ge=0, le=2**32 - 2)]
Count = Annotated[int, Meta(ge=1, le=2**31)]
Bytes = Annotated[int, Meta(ge=1024, le=2**32 - 1)]  # frames announce their size in 32 bits
Seconds = Annotated[float, Meta(ge=0, le=86400 * 365)]
Text = Annotated[str, Meta(min_length=1)]


UNKNOWN = Capabilities(is_exposed=nobody)
"""What is known of an address for which there is no transport."""


class Problem(NamedTuple):
    """One fault: where, and what was seen and expected there."""

    path: KeyPath
    text: str


def saw(path: KeyPath, seen: object, expected: str) -> Problem:
    """The fault at ``path``: what was seen, cut to 64 characters, and what was expected."""
    return Problem(path, f"saw {masked(str(seen))[:64]!r}, expected {expected}")


def check_key(path: KeyPath, key: str) -> Iterator[Problem]:
    """Check that ``key`` is a CURVE key: 32 bytes in Z85."""
    if expected := z85.check(key):
        yield saw(path, key, expected)


def check_keys(path: KeyPath, keys: Iterable[str]) -> Iterator[Problem]:
    """Check the ``key`` of each entry at ``path``: a CURVE key, and not that of an entry before."""
    seen: set[str] = set()
    for index, key in enumerate(keys):
        place = (*path, index, "key")
        yield from check_key(place, key)
        if key in seen:
            yield saw(place, key, "each key once")
        seen.add(key)


def check_order(path: KeyPath, section: object, *pairs: tuple[str, str]) -> Iterator[Problem]:
    """Check that the first of each pair of limits does not exceed the second; ``section`` stands at ``path``."""
    for smaller, larger in pairs:
        low, high = getattr(section, smaller), getattr(section, larger)
        if low > high:
            yield saw((*path, smaller), low, f"at most {larger}, {high}")


def check_uri(path: KeyPath, uri: str, *schemes: str) -> Iterator[Problem]:
    """Check the form and the scheme of a URI that no transport opens."""
    if expected := check_port(uri, *schemes):
        yield saw(path, uri, expected)


def check_address(path: KeyPath, uri: str) -> Iterator[Problem]:
    """Check the form of an address, and that there is a transport for it."""
    if not all(uri.partition("://")):
        yield Problem(path, f"saw {masked(uri)[:64]!r}, expected SCHEME://ADDRESS")
        return
    try:
        expected = capabilities_of(uri).check_address(uri)
    except ConfigError as error:
        yield Problem(path, f"saw {masked(uri)[:64]!r}, {error}")
    else:
        if expected:
            yield saw(path, uri, expected)


def can(uri: str) -> Capabilities:
    """What the transport of ``uri`` can do; ``UNKNOWN`` where there is none, of which ``check_address`` tells."""
    try:
        return capabilities_of(uri)
    except ConfigError:
        return UNKNOWN


def check_metrics(path: KeyPath, uri: str, insecure: bool) -> Iterator[Problem]:
    """Yield what is wrong with a place where figures are to be served without TLS."""
    faults = list(check_uri(path, uri, "unix", "http"))
    if not faults and not insecure and beyond_loopback(uri):
        expected = f"a loopback address, or {path[0]}.metrics_insecure = true: it is served without TLS"
        faults.append(saw(path, uri, expected))
    yield from faults
