"""Certificates and keys from the settings, in the form the ZeroMQ transport wants them.

ZeroMQ and its libraries are loaded only by brokers that have a tree or such a listener.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.errors import ConfigError
from broker.identity import Credentials, Role
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.settings.schema import ClientEntry, HostEntry

_ROLES = {"owner": Role.OWNER, "user": Role.USER, "admin": Role.ADMIN}


def keys_of(settings: Settings, *, peers: bool = True) -> dict[str, Any]:
    """Who may connect, by Z85 key: the brokers of the tree (``peers``), or the clients.

    A key that several hosts share is bound to no rank: their hello says which one they are.
    """
    from broker.transport.curve import ClientKey, PeerKey

    if not peers:
        return {client.public_key: ClientKey(credentials(client)) for client in settings.clients}
    ranks: dict[str, list[int]] = {}
    for host in settings.hosts:
        if host.public_key:
            ranks.setdefault(host.public_key, []).append(host.rank)
    return {key: PeerKey(found[0] if len(found) == 1 else None) for key, found in ranks.items()}


def credentials(client: ClientEntry) -> Credentials:
    """Userid and roles that a client's messages are stamped with; never LOCAL."""
    roles = 0
    for role in client.roles:
        roles |= _ROLES[role]
    return Credentials(client.userid, roles)


def listen_options(settings: Settings, keys: dict[str, Any]) -> dict[str, Any]:
    """``Options.extra`` of a ZeroMQ listener; without a certificate it is plaintext, which is loopback only."""
    extra: dict[str, Any] = {"batch": settings.tree.batch}
    if settings.tree.curve_cert:
        from broker.transport.curve import CurveServer, load

        extra["curve"] = CurveServer(load(settings.tree.curve_cert))
        extra["keys"] = keys
    return extra


def dial_options(settings: Settings, parent: HostEntry) -> dict[str, Any]:
    """``Options.extra`` of the connection to ``parent``.

    Raises:
        ConfigError: we have a certificate and the parent's public key is not known.
    """
    extra: dict[str, Any] = {"batch": settings.tree.batch}
    if settings.tree.curve_cert:
        from broker.transport.curve import CurveClient, load

        if not parent.public_key:
            raise ConfigError(f"hosts: rank {parent.rank} has no public_key, and tree.curve_cert wants CURVE")
        extra["curve"] = CurveClient(load(settings.tree.curve_cert), parent.public_key)
    return extra
