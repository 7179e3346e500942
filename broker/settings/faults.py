"""One fault of a configuration, and the checks of single values that several sections share.

Nothing is opened, resolved or read: a file for another machine can be checked here.
"""

from collections.abc import Iterator
from typing import NamedTuple

from broker import z85
from broker.errors import ConfigError
from broker.schemes import Capabilities, beyond_loopback, capabilities_of, check_port, nobody
from broker.secret import masked
from broker.settings.lines import KeyPath

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
