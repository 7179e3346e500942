"""The frames of one message in a single ZeroMQ frame: what is sent towards a DEALER (pure).

::

    0      1     number of frames, n: 1 to 64
    1      4 n   length of each, big-endian
    1+4n   ...   the frames, one behind the other, to the end

libzmq 4.3.5 takes news in at every hundredth receive, between two frames of a message as well. The news that the
connection of an IMMEDIATE socket was lost ends its queue at once; what is then missing of a message that has begun to
be read fails an assertion (fq.cpp:80), which aborts the process (issues 2163, 3485, 3663). A message of one frame has
no middle. The other way needs none of this: a ROUTER reads what a lost peer had sent to its end.

No envelope is taken for a bundle: its first byte, "H", would be 72 frames.
"""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final

FRAMES_MAX: Final = 64
"""Frames of a message: none of ours has more than five."""
LENGTH_MAX: Final = 0xFFFFFFFF
HEAD_BYTES_MAX: Final = 1 + 4 * FRAMES_MAX
"""What a bundle is longer than its frames at most."""
_HEADS: Final = tuple(Struct(f">B{n}I") for n in range(FRAMES_MAX + 1))
_TWO: Final = _HEADS[2]
_TWO_BYTES: Final = _TWO.size


def head(frames: Sequence[bytes]) -> bytes:
    """What stands before ``frames`` in their bundle.

    Raises:
        ValueError: there is none or more than ``FRAMES_MAX``, or one is longer than ``LENGTH_MAX``.
    """
    count = len(frames)
    if not 1 <= count <= FRAMES_MAX:
        raise ValueError(f"a bundle: saw {count} frames, expected 1 to {FRAMES_MAX}")
    try:
        return _HEADS[count].pack(count, *map(len, frames))
    except StructError:
        size = max(map(len, frames))
        raise ValueError(f"a bundle: saw a frame of {size} bytes, expected {LENGTH_MAX} at most") from None


def pack(frames: Sequence[bytes]) -> bytes:
    """The bundle of ``frames``.

    Raises:
        ValueError: see ``head``.
    """
    return b"".join((head(frames), *frames))


def unpack(bundle: bytes) -> list[bytes]:
    """The frames of a bundle: one at least.

    Raises:
        ValueError: it is none; the text says why.
    """
    size = len(bundle)
    if size >= _TWO_BYTES and bundle[0] == 2:  # most have two
        _two, first, second = _TWO.unpack_from(bundle)
        middle = _TWO_BYTES + first
        if middle + second == size:
            return [bundle[_TWO_BYTES:middle], bundle[middle:]]
    count = bundle[0] if bundle else 0
    if not 1 <= count <= FRAMES_MAX:
        raise ValueError(f"a bundle of {size} bytes: saw {count} frames, expected 1 to {FRAMES_MAX}")
    at = _HEADS[count].size
    if size < at:
        raise ValueError(f"a bundle of {count} frames: saw {size} bytes, expected {at} at least")
    _count, *lengths = _HEADS[count].unpack_from(bundle)
    if at + sum(lengths) != size:
        raise ValueError(f"a bundle of {count} frames: saw {size} bytes, expected {at + sum(lengths)}")
    frames = []
    for length in lengths:
        frames.append(bundle[at : at + length])
        at += length
    return frames


def frames_of(parts: Sequence[bytes]) -> list[bytes]:
    """The frames of the bundle that ``parts``, the frames on the wire, should be.

    Raises:
        ValueError: see ``unpack``; or there are several.
    """
    if len(parts) != 1:
        raise ValueError(f"saw {len(parts)} frames on the wire, expected a bundle")
    return unpack(parts[0])
