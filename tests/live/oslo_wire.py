"""What a raw socket says to a DEALER of the oslo wing, and reads as one: a bundle (``broker.oslo.reactor.bundle``)."""

from __future__ import annotations

import zmq

from broker.oslo.reactor.bundle import frames_of, pack


def hear(sock: zmq.Socket[bytes], flags: int = 0) -> list[bytes]:
    """The frames of the next message that a proxy or directory sent to the DEALER ``sock``.

    Raises:
        ValueError: it is no bundle.
    """
    return frames_of(sock.recv_multipart(flags))


def tell(sock: zmq.Socket[bytes], peer: bytes, *frames: bytes, flags: int = 0) -> None:
    """Send ``frames`` to the DEALER that the ROUTER ``sock`` knows as ``peer``."""
    sock.send_multipart([peer, pack(frames)], flags)
