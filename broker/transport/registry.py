"""Dial and listen by the scheme of an address. Third parties add transports by an entry point of group
``headgate.transports``; what one declares (``schemes.Capabilities``) is what it is asked for, nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from broker.errors import ConfigError
from broker.schemes import capabilities_of, find, scheme_of
from broker.secret import masked

if TYPE_CHECKING:
    from broker.transport.link import Accept, Link, Listener, Options, Transport


def transport_for(uri: str) -> Transport:
    """The transport for the scheme of ``uri``; loaded at first use.

    Raises:
        ConfigError: no transport has this scheme, or it cannot be loaded.
    """
    return cast("Transport", find(scheme_of(uri)))


async def listen(uri: str, accept: Accept, options: Options) -> Listener:
    """Listen at ``uri`` with the transport of its scheme; see ``Transport.listen``.

    Raises:
        ConfigError: as of ``Transport.listen``, or the transport does not do what ``options`` ask for.
    """
    transport = transport_for(uri)
    _check(uri, options)
    return await transport.listen(uri, accept, options)


async def dial(uri: str, options: Options) -> Link:
    """Connect to ``uri`` with the transport of its scheme; see ``Transport.dial``.

    Raises:
        LinkError: as of ``Transport.dial``.
        ConfigError: as of ``listen``.
    """
    transport = transport_for(uri)
    _check(uri, options)
    return await transport.dial(uri, options)


def _check(uri: str, options: Options) -> None:
    """Refuse what the transport does not say that it can."""
    can = capabilities_of(uri)
    if options.dialect not in can.dialects:
        raise ConfigError(f"{masked(uri)}: this transport does not carry dialect {options.dialect!r}")
    if options.strict_rfc3 and not can.strict_rfc3:
        raise ConfigError(f"{masked(uri)}: this transport does not write the form of strict_rfc3")
    if options.tree and not can.tree:
        raise ConfigError(f"{masked(uri)}: this transport does not join brokers")
    if can.protection == "none" and not options.insecure and can.is_exposed(uri):
        raise ConfigError(
            f"{masked(uri)}: plaintext off loopback; set insecure = true, or use another transport"
        )
