"""One message from a ZeroMQ socket: its frames, how many at most, and whose connection it came by."""

from __future__ import annotations

from typing import Any, Final

import zmq

FRAMES_MAX: Final = 64
"""Frames of a message that are kept; none of ours has more than five. The rest is read and dropped."""
SKIPPED_FRAMES: Final = 4096
"""Frames of that rest that are read in one go: two bytes on the wire make an empty one."""
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

    def message(self) -> tuple[list[bytes], str]:
        """The frames of the next message and its origin; a message of too many frames has its first ``FRAMES_MAX``.

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
            if len(frames) == FRAMES_MAX:
                self._skipping = True
                break
            frame = recv(_NOBLOCK, False)
            frames.append(frame.bytes)
        return frames, origin

    def ready(self) -> bool:
        """False: the rest of the last message is still being dropped; ask again in the next turn."""
        if self._skipping:
            for _ in range(SKIPPED_FRAMES):
                if not self._recv(_NOBLOCK, False).more:
                    self._skipping = False
                    break
        return not self._skipping
