"""What was given to a transport and may still be far from the peer: in two kernels' buffers, where nobody can look.
A peer that says how many messages it has *handled* makes it known.

It is *behind* when more than ``WINDOW_MSGS`` are under way, and until it is ``AGAIN_MSGS``, or more than
``WINDOW_BYTES`` of large requests. Of these a few fill the window, and a peer speaks of many messages at a time: from
half a window on they are followed by a *mark*, which comes back when they are handled.
"""

from __future__ import annotations

from typing import Final

WINDOW_MSGS: Final = 256
"""A broker handles so many small requests in 5 to 10 ms; in 1 ms of network it does not."""
AGAIN_MSGS: Final = 224
"""Above ``routing.flow.LATE_MSGS``, which the peer may have handled and not said, and what only one end counts: who has
handled everything must not be behind for want of another word."""
WINDOW_BYTES: Final = 1 << 20
"""The same of large requests, in bytes."""
_COUNTED: Final = 0xFFFFFFFF
"""Messages are told modulo 2**32."""
_NEVER: Final = 1 << 62
_NOW: Final = -1


class InFlight:
    """The messages between two ends of a link, counted as they are sent.

    Attributes:
        end: the peer is behind when more were sent.
        large_bytes: of large requests of which no mark has come back.
    """

    __slots__ = ("_done", "_large", "end", "large_bytes")

    def __init__(self) -> None:
        self.end: int = _NEVER
        self.large_bytes: int = 0
        self._done: int = 0
        self._large: list[tuple[int, int]] = []  # few: the number of each, modulo 2**32, and its bytes

    def handled(self, sent: int, count: int) -> bool:
        """The peer has handled ``count`` messages, modulo 2**32, of ``sent``: whether one that was behind still is."""
        messages = (sent - count) & _COUNTED
        if messages > _COUNTED >> 1:  # those of the greeting count differently at either end
            messages = 0
        self._done = sent - messages
        return self._is_late(sent)

    def marked(self, sent: int, number: int) -> bool:
        """The peer has handled what was sent up to ``number``, modulo 2**32: whether one that was behind still is."""
        while self._large and (number - self._large[0][0]) & _COUNTED <= _COUNTED >> 1:
            self.large_bytes -= self._large.pop(0)[1]
        self._done = max(self._done, sent - ((sent - number) & _COUNTED))
        return self._is_late(sent)

    def _is_late(self, sent: int) -> bool:
        full = self.large_bytes > WINDOW_BYTES
        self.end = _NOW if full else self._done + WINDOW_MSGS
        return full or sent - self._done > AGAIN_MSGS

    def sends_large(self, number: int, size: int) -> bool:
        """Message ``number`` is a request of ``size`` bytes; True: a mark shall follow it."""
        if self.end == _NEVER:
            return False
        self._large.append((number & _COUNTED, size))
        self.large_bytes += size
        if self.large_bytes > WINDOW_BYTES:
            self.end = _NOW
        return self.large_bytes > WINDOW_BYTES // 2
