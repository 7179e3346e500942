"""The seam between a worker or client and whatever carries its packets to a broker and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from broker.nfp.frames import Packet


class Receiver(Protocol):
    """Who uses a channel. Every method is called in order in the loop's thread and must not block."""

    def on_connect(self, broker: str, opened: dict[str, Any] | None) -> None:
        """A session with ``broker`` begins: now ``send`` takes packets.

        ``opened`` is the JSON of the broker's OPEN (keys ``broker`` ``version`` ``keepalive_ms`` ``multiplier``
        ``features`` ``epoch``); None: it did not answer OPEN in time, as deployed NorFab never does. Called once
        more, without ``on_disconnect`` before it, when the answer comes after all.
        """

    def on_packet(self, packet: Packet) -> None:
        """A packet of the broker; never OPEN and DISCONNECT, which the channel answers itself."""

    def on_disconnect(self, why: str) -> None:
        """The session is over; the channel opens the next by itself.

        Packets given to ``send`` may or may not have arrived, and none of them is sent again: whoever needs an
        answer asks again at the next ``on_connect``.
        """


@dataclass(slots=True)
class Traffic:
    """Counts since the start."""

    sent: int = 0
    received: int = 0
    invalid: int = 0
    """Messages of the broker that were no NFP message; dropped."""
    refused: int = 0
    """``send`` said False."""
    connections: int = 0
    """How often a session began."""


class Channel(Protocol):
    """One peer's way to its broker.

    Attributes:
        name: the identity of the peer.
        traffic: counts.
    """

    name: str
    traffic: Traffic

    @property
    def trouble(self) -> str:
        """Why nothing comes, for people (a wrong key, nobody listening); "" while all is well."""

    @property
    def broker(self) -> str:
        """The endpoint in use or tried, "" in this process."""

    def start(self, receiver: Receiver, open_body: Callable[[], dict[str, Any]]) -> None:
        """Begin, in a running loop; ``open_body`` makes what OPEN carries, once for each session."""

    def send(self, packet: Packet) -> bool:
        """Queue ``packet``. False: not connected, or the queue is full (see ``writable``); nothing was queued."""

    async def writable(self) -> None:
        """Return when ``send`` is likely to take a packet; it may last as long as no broker is there.

        Raises:
            LinkClosed: the channel was closed.
        """

    def reopen(self, why: str) -> None:
        """Give the session up and begin a new one, on a new socket (NFP, "Keepaliving"); ``on_disconnect`` follows."""

    async def close(self) -> None:
        """Send what is queued, within a second, and end. Harmless twice."""
