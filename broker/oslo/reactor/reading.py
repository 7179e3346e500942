"""One message from a ZeroMQ socket: its frames, how many at most, and whose connection it came by.

A DEALER is sent bundles (``bundle``, which says why). What is none came from a wrong peer; it is handed on as one frame
that no receiver can take for anything but malformed, so that each counts and logs it as it does other nonsense.
"""

# compiled: mypyc

from __future__ import annotations

from typing import Any, Final

import zmq

from broker.oslo.reactor.bundle import FRAMES_MAX, unpack

__all__ = ["FRAMES_MAX", "NO_BUNDLE", "SKIPPED_FRAMES", "Reading"]

NO_BUNDLE: Final = b"no bundle: "
"""Stands before the first frame of what should have been a bundle."""
# read where it is used, not folded by the compiler: tests change it
SKIPPED_FRAMES: int = 4096
"""Frames beyond those that are kept which are read in one go: two bytes on the wire make an empty one."""
_NOBLOCK: Final = int(zmq.NOBLOCK)


class Reading:
    """Reads messages from ``sock``.

    Args:
        sock: not closed by this.
        origin: property of connections that is read with each message; "" none.
    """

    def __init__(self, sock: zmq.Socket[bytes], origin: str) -> None:
        # without pyzmq's check for draft sockets, a call for each frame
        self._recv: Any = super(zmq.Socket, sock).recv
        self._origin = origin
        self._skipping = False
        self._bundled = sock.type == zmq.DEALER
        self._most = 1 if self._bundled else FRAMES_MAX

    def message(self) -> tuple[list[bytes], str]:
        """The frames of the next message and its origin; of too many the first ``FRAMES_MAX``, of a DEALER's see above.

        Raises:
            zmq.Again: there is none.
        """
        recv = self._recv
        frame = recv(_NOBLOCK, False)
        origin = ""
        if self._origin:
            try:
                origin = str(frame.get(self._origin))
            except zmq.ZMQError:
                origin = ""  # a connection without it
        frames = [frame.bytes]
        while frame.more:
            if len(frames) == self._most:
                self._skipping = True
                break
            frame = recv(_NOBLOCK, False)
            frames.append(frame.bytes)
        return (self._opened(frames[0]) if self._bundled else frames), origin

    def _opened(self, frame: bytes) -> list[bytes]:
        if not self._skipping:  # several frames are no bundle, whatever the first one is
            try:
                return unpack(frame)
            except ValueError:
                pass
        return [NO_BUNDLE + frame]

    def ready(self) -> bool:
        """False: the rest of the last message is still being dropped; ask again in the next turn."""
        if self._skipping:
            for _ in range(SKIPPED_FRAMES):
                if not self._recv(_NOBLOCK, False).more:
                    self._skipping = False
                    break
        return not self._skipping
