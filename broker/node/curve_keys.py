"""Loads the CURVE certificate and the clients' keys from the settings; when keys change, links whose key is gone are
ended.

ZeroMQ and its libraries are loaded only by brokers that have such a tree or listener.

A rank that changes its key as it should (``next_key`` first, then its certificate, then ``public_key``) keeps the links
that were made with the former one: that key has *retired*. A key that simply disappears is revoked, and its links end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.errors import ConfigError
from broker.identity import ClientKey, Credentials, Key, PeerInfo, PeerKey, Role
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.settings.schema import ClientEntry, HostEntry
    from broker.transport.curve import Certificate

_ROLES = {"owner": Role.OWNER, "user": Role.USER, "admin": Role.ADMIN | Role.USER}
"""An admin is a user, too, as at the local socket and at a gateway: the masks of most methods ask for USER alone."""


class CurveKeys:
    """The keys of one broker.

    Args:
        settings: as of ``Settings.at_rank``.

    Attributes:
        peers: the brokers of the tree, by key. clients: the clients. Both follow every ``change``.
        certificate: our own of CURVE, loaded when first asked for; None while nothing here speaks CURVE.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._retired: set[tuple[str, int]] = set()
        self.peers: dict[str, Key] = peer_keys(settings)
        self.clients: dict[str, Key] = client_keys(settings)
        self.certificate: Certificate | None = None

    def options(self) -> dict[str, Any]:
        """``Options.extra`` of a ZeroMQ listener; without a certificate it is plaintext, which is loopback only.

        Raises:
            ConfigError: our certificate cannot be used.
        """
        return {"batch": self._settings.tree.batch, **(self.listen_curve() if self._in_use() else {})}

    def dial_options(self, parent: HostEntry) -> dict[str, Any]:
        """``Options.extra`` of the connection to ``parent``.

        Raises:
            ConfigError: our certificate cannot be used, or the parent's public key is not known.
        """
        return {"batch": self._settings.tree.batch, **(self.dial_curve(parent) if self._in_use() else {})}

    def listen_curve(self) -> dict[str, Any]:
        """The ``curve`` of a listener."""
        from broker.transport.curve import CurveServer

        assert self.certificate is not None
        return {"curve": CurveServer(self.certificate)}

    def dial_curve(self, parent: HostEntry) -> dict[str, Any]:
        """The ``curve`` of a dialer.

        Raises:
            ConfigError: the parent's public key is not known.
        """
        assert self.certificate is not None
        from broker.transport.curve import CurveClient

        if not parent.public_key:
            raise ConfigError(f"hosts: rank {parent.rank} has no public_key, and tree.curve_cert wants CURVE")
        return {"curve": CurveClient(self.certificate, parent.public_key, parent.next_key)}

    def _in_use(self) -> bool:
        path = self._settings.tree.curve_cert
        if path and self.certificate is None:
            from broker.transport.curve import load

            self.certificate = load(path)
        return bool(path)

    # -- change --------------------------------------------------------------------------------

    def read_certificate(self, settings: Settings) -> Certificate | None:
        """The certificate that ``settings`` name, read now (this blocks); None while nothing here speaks CURVE.

        Raises:
            ConfigError: it cannot be used, or ``settings`` have other keys for our rank.
        """
        path = settings.tree.curve_cert
        if self.certificate is None or path is None:
            return None
        from broker.transport.curve import load

        certificate, host = load(path), settings.host(settings.broker.rank or 0)
        if host is not None and certificate.public_key not in _keys(host):
            raise ConfigError(
                f"{path}: its public key {certificate.public_key} is neither public_key nor next_key of our rank "
                f"in [[hosts]]"
            )
        return certificate

    def change(self, settings: Settings, certificate: Certificate | None) -> None:
        """Go over to the keys of ``settings`` and to ``certificate`` (of ``read_certificate``) for all new links."""
        before, self._settings = self._settings, settings
        self.certificate = certificate
        # a key that its rank has got back is one to be revoked again: it retired from nothing
        now = {(key, host.rank) for host in settings.hosts for key in _keys(host)}
        self._retired = (self._retired - now) | retired(before, settings)
        for known, found in ((self.peers, peer_keys(settings)), (self.clients, client_keys(settings))):
            known.clear()
            known.update(found)

    def refusal(self, peer: PeerInfo, rank: int | None = None) -> str:
        """Why a present link of ``peer``, known by a key, has to end; "" when it may stay.

        Args:
            peer: as the handshake proved it.
            rank: the one that hello named; None for a client and before hello.
        """
        key = peer.key or ""
        if peer.user is not None:
            known = self.clients.get(key)
            if known is None:
                return "its key has been taken out of [[clients]]"
            return (
                ""
                if getattr(known, "user", None) == peer.user
                else "its key has got another user or other roles"
            )
        if rank is not None and (key, rank) in self._retired:
            return ""
        known = self.peers.get(key)
        if known is None:
            return "its key has been taken out of [[hosts]]"
        bound: int | None = getattr(known, "rank", None)
        wrong = bound is not None and bound != (rank if rank is not None else peer.rank)
        return f"its key is now that of rank {bound}" if wrong else ""


def retired(before: Settings, after: Settings) -> set[tuple[str, int]]:
    """(key, rank) of each key that its rank has left for its ``next_key`` of ``before``."""
    found = set()
    for old in before.hosts:
        new = after.host(old.rank)
        promoted = new is not None and old.next_key is not None and new.public_key == old.next_key
        # a key that disappears without having been announced (``next_key``) is revoked, not retired
        if promoted and new is not None and old.public_key and old.public_key not in _keys(new):
            found.add((old.public_key, old.rank))
    return found


def _keys(host: HostEntry) -> tuple[str, ...]:
    return tuple(key for key in (host.public_key, host.next_key) if key)


def client_keys(settings: Settings) -> dict[str, Key]:
    """The clients that may connect, by key."""
    return {client.public_key: ClientKey(credentials(client)) for client in settings.clients}


def peer_keys(settings: Settings) -> dict[str, Key]:
    """The brokers of the tree, by key. One that several hosts share is bound to no rank: hello says which one it is."""
    ranks: dict[str, list[int]] = {}
    for host in settings.hosts:
        for key in _keys(host):
            ranks.setdefault(key, []).append(host.rank)
    return {key: PeerKey(found[0] if len(found) == 1 else None) for key, found in ranks.items()}


def credentials(client: ClientEntry) -> Credentials:
    """Userid and roles that a client's messages are stamped with; never LOCAL. An admin is a user, too."""
    roles = 0
    for role in client.roles:
        roles |= _ROLES[role]
    return Credentials(client.userid, roles)
