"""Listeners of ZMTP on the loop: accept, shake hands (``transport.handshaking``), let in."""

from __future__ import annotations

import errno
import socket
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from broker import z85
from broker.endpoints import Endpoint, parse
from broker.errors import ConfigError
from broker.identity import PeerInfo
from broker.listening import BACKLOG, contact, listen, listening_at
from broker.sockets import peer_credentials
from broker.transport import curve
from broker.transport.handshaking import HandshakeListener, Stranger
from broker.transport.link import Accept, Options
from broker.transport.zeromq.boxes import KeyPair
from broker.transport.zeromq.connection import Connection
from broker.transport.zeromq.link import ZmtpLink
from broker.transport.zeromq.mechanisms import CurveServer, Mechanism, Null
from broker.wire.dialects import dialect

SCHEMES: Final = ("tcp", "ipc")


class ConnectionListener(HandshakeListener[Connection]):
    """Accepts connections of ZMTP; a subclass says which peers get in (``let_in``), and what becomes of a connection.

    Args:
        asked: the address as it was given.
        keys: our own; None: there is no CURVE.
        backlog: connections that may wait to be accepted.

    Raises:
        ConfigError: it cannot be listened at, or would be open to other machines in plaintext.
    """

    def __init__(
        self, asked: Endpoint, keys: KeyPair | None, options: Options, backlog: int = BACKLOG
    ) -> None:
        sock, place = listen(listening_at(asked, keys is not None, options.insecure), backlog)
        super().__init__(sock, place.text, contact(place, asked), options, place.path)
        self._keys = keys

    @abstractmethod
    def let_in(self, stranger: Stranger[Connection], key: str) -> Callable[[], object] | None:
        """As ``judge``, of one that has proved ``key`` (Z85; "" without CURVE); the answer is given here."""

    def begin(self) -> Connection:
        """See ``HandshakeListener``."""
        properties = {b"Socket-Type": b"ROUTER"}
        mechanism: Mechanism = (
            Null(properties, as_server=True) if self._keys is None else CurveServer(properties, self._keys)
        )
        return Connection(mechanism)

    def is_promising(self, stranger: Stranger[Connection]) -> bool:
        """See ``HandshakeListener``: with CURVE, a peer that knows our key."""
        return stranger.handshake.mechanism.is_promising

    def put_off(self, stranger: Stranger[Connection]) -> None:
        """See ``HandshakeListener``: by "300" of ZAP. To hang up would say that our key is another than it expects."""
        stranger.handshake.refuse(b"300")

    def judge(self, stranger: Stranger[Connection]) -> Callable[[], object] | None:
        """See ``HandshakeListener``."""
        connection = stranger.handshake
        key = connection.mechanism.key
        opened = self.let_in(stranger, z85.encode(key) if key else "")
        if opened is None:
            connection.refuse()
        else:
            connection.grant()
        return opened


class ZmtpListener(ConnectionListener):
    """One listening socket and the links that came by it."""

    def __init__(self, uri: str, accept: Accept, options: Options) -> None:
        dialect(options.dialect, options.strict_rfc3)  # says so now if there is none
        super().__init__(parse(uri, *SCHEMES), _keys_of(options), options)
        self._accept = accept

    def renew(self, extra: Mapping[str, Any]) -> ZmtpListener:
        """See ``Listener.renew``: keys are a connection's, so those that come from now on have the new ones."""
        if self._sock.fileno() < 0:
            raise ConfigError(f"{self.address}: nobody listens there any more")
        options = replace(self._options, extra={**self._options.extra, **extra})
        self._keys, self._options = _keys_of(options), options
        return self

    def let_in(self, stranger: Stranger[Connection], key: str) -> Callable[[], object] | None:
        """See ``ConnectionListener``."""
        connection, sock = stranger.handshake, stranger.sock
        peer = self._admitted(stranger, key)
        if peer is None or self._kept_from(peer, sock.fileno()):
            return None
        # another connection may have the same identity: it is a name here, and no address as in a ROUTER
        return lambda: self._accept(ZmtpLink(sock, peer, self._options, connection, connection.identity))

    def _admitted(self, stranger: Stranger[Connection], key: str) -> PeerInfo | None:
        """The peer, by its key or the kernel's word; None: it does not get in, and was told so."""
        options, address = self._options, stranger.address
        local = stranger.sock.family == socket.AF_UNIX
        if key:
            peer = options.bearer(address, key)
        elif local:
            pid, uid, gid = peer_credentials(stranger.sock)
            peer = PeerInfo(address, uid=uid, gid=gid, pid=pid, local=True)
        else:
            peer = PeerInfo(address)
        if peer is None:
            self.refuse(PeerInfo(address, key=key, local=local), errno.EPERM, f"unknown CURVE key {key}")
        elif not options.admit(peer):  # which logs a refusal, whatever the transport
            return peer
        return None


def _keys_of(options: Options) -> KeyPair | None:
    """Our own keys; None where there is no CURVE.

    Raises:
        ConfigError: as of ``curve.server_of``.
    """
    served = curve.server_of(options.extra.get("curve"))
    return None if served is None else pair_of(served.certificate)


def pair_of(certificate: curve.Certificate) -> KeyPair:
    """The keys of ``certificate``, which has both, as bytes."""
    return KeyPair(curve.raw_key(certificate.public_key), curve.raw_key(certificate.secret_key or ""))
