"""The rooms behind the sockets, as far as these know them; tests put something else in their place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from broker.nfp.contract import Peer
from broker.nfp.frames import Packet
from broker.nfp.opening import WorkerOpen


class Dispatch(Protocol):
    """The dispatcher's side towards peers; see ``dispatch.Dispatcher``."""

    def client(self, peer: Peer, packet: Packet, now: float) -> None: ...  # noqa: D102
    def worker(self, peer: Peer, packet: Packet, now: float) -> None: ...  # noqa: D102
    def worker_opened(self, peer: Peer, offer: WorkerOpen, now: float) -> bool: ...  # noqa: D102
    def client_seen(self, peer: Peer, now: float) -> None: ...  # noqa: D102
    def has_room(self, peer: Peer, now: float) -> None: ...  # noqa: D102
    def peer_gone(self, peer: Peer, now: float) -> None: ...  # noqa: D102
    def relay_mmi(self, peer: Peer, packet: Packet, now: float) -> None: ...  # noqa: D102
    def disconnect_workers(  # noqa: D102
        self, names: Iterable[str] | None, reason: str, now: float
    ) -> list[str]: ...
