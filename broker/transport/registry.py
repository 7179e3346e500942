"""Scheme -> transport. Third parties add theirs by an entry point of group ``headgate.transports``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from broker.errors import ConfigError

if TYPE_CHECKING:
    from broker.transport.link import Accept, Link, Listener, Options, Transport

GROUP: Final = "headgate.transports"
_BUILT_IN: Final = {
    "local": "broker.transport.unix",
    "inproc": "broker.transport.inproc",
    "tcp": "broker.transport.zeromq",
    "ipc": "broker.transport.zeromq",
    "ws": "broker.transport.websocket",
    "wss": "broker.transport.websocket",
}
_loaded: dict[str, Transport] = {}


def scheme_of(uri: str) -> str:
    """The part of ``uri`` before ``://``.

    Raises:
        ConfigError: there is none.

    >>> scheme_of("local:///run/headgate/local-0")
    'local'
    """
    scheme, separator, rest = uri.partition("://")
    if not (scheme and separator and rest):
        raise ConfigError(f"{uri!r} is not an address: expected scheme://place")
    return scheme


def register(scheme: str, transport: Transport) -> None:
    """Use ``transport`` for ``scheme`` from now on, whatever the entry points say."""
    _loaded[scheme] = transport


def transport_for(uri: str) -> Transport:
    """The transport for the scheme of ``uri``; loaded at first use.

    Raises:
        ConfigError: no transport has this scheme.
    """
    scheme = scheme_of(uri)
    found = _loaded.get(scheme)
    if found is None:
        found = _loaded[scheme] = _load(scheme)
    return found


def _load(scheme: str) -> Transport:
    if scheme in _BUILT_IN:  # no entry point scan for the built-in ones: it costs 20 ms at start-up
        return import_module(_BUILT_IN[scheme]).transport  # type: ignore[no-any-return]  # each of these modules has one
    from importlib import metadata  # it loads the e-mail parser: 13 ms that only foreign schemes cost

    for point in metadata.entry_points(group=GROUP, name=scheme):
        return point.load()  # type: ignore[no-any-return]  # what the group is for
    names = sorted({*_BUILT_IN, *_loaded, *(point.name for point in metadata.entry_points(group=GROUP))})
    raise ConfigError(f"no transport for scheme {scheme!r}; known: {', '.join(names)}")


async def listen(uri: str, accept: Accept, options: Options) -> Listener:
    """Listen at ``uri`` with the transport of its scheme; see ``Transport.listen``."""
    return await transport_for(uri).listen(uri, accept, options)


async def dial(uri: str, options: Options) -> Link:
    """Connect to ``uri`` with the transport of its scheme; see ``Transport.dial``."""
    return await transport_for(uri).dial(uri, options)
