"""Clients that are owed something: where it goes, and what could not be delivered yet.

A client is its identity together with who it is: whoever takes over the name without being the same person is
another client, and is sent nothing of the first one's.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.nfp.contract import Peer
from broker.nfp.dispatch.model import Client
from broker.nfp.names import Dialect


class Clients:
    """All of them, by identity and holder."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, str], Client] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._known.values())

    def of(self, peer: Peer, now: float) -> Client:
        """The client behind ``peer``, which is where its pushes go from now on."""
        key = (peer.identity, peer.principal.holder)
        client = self._known.get(key)
        if client is None:
            client = self._known[key] = Client(*key, peer.name, peer.dialect)
        self._meet(client, peer, now)
        return client

    def known(self, peer: Peer, now: float) -> Client | None:
        """The same for a client whose jobs are remembered; else None."""
        client = self._known.get((peer.identity, peer.principal.holder))
        if client is not None:
            self._meet(client, peer, now)
        return client

    def has(self, identity: bytes, holder: str) -> bool:
        """Whether a job of it is remembered."""
        client = self._known.get((identity, holder))
        return client is not None and bool(client.open or client.kept)

    def at(self, peer: Peer) -> Client | None:
        """The client whose pushes go to ``peer`` at present."""
        client = self._known.get((peer.identity, peer.principal.holder))
        return client if client is not None and client.peer is peer else None

    def _meet(self, client: Client, peer: Peer, now: float) -> None:
        client.peer = peer
        client.dialect, client.features = peer.dialect, peer.features
        client.seen = now

    def absent(self, identity: bytes, holder: str, dialect: Dialect) -> Client:
        """A client that the store tells of."""
        client = self._known.get((identity, holder))
        if client is None:
            name = identity.decode("utf-8", "replace")
            client = self._known[identity, holder] = Client(identity, holder, name, dialect)
        return client

    def gone(self, peer: Peer) -> None:
        """Its connection is lost; what it is owed stays."""
        client = self._known.get((peer.identity, peer.principal.holder))
        if client is not None and client.peer is peer:
            client.peer = None
            self.tidy(client)

    def tidy(self, client: Client) -> None:
        """Forget ``client`` when it is not there and nothing of it is remembered."""
        if client.peer is None and not client.open and not client.kept:
            self._known.pop((client.identity, client.holder), None)
