"""Several frames in one string of bytes, so that a fuzzer can damage where one ends: any bytes are some frames."""

from collections.abc import Iterable

LONG = 255
"""Size bytes below it are the size; this one is followed by the size as two bytes, big-endian."""


def pack(frames: Iterable[bytes]) -> bytes:
    """The frames, each behind its size; frames above 65 535 bytes are cut there."""
    out = bytearray()
    for frame in frames:
        frame = frame[:0xFFFF]
        out += bytes((len(frame),)) if len(frame) < LONG else bytes((LONG,)) + len(frame).to_bytes(2, "big")
        out += frame
    return bytes(out)


def unpack(data: bytes) -> list[bytes]:
    """The inverse of ``pack``; a last frame that is cut off is what there is of it."""
    frames, at = [], 0
    while at < len(data):
        size, at = data[at], at + 1
        if size == LONG:
            size, at = int.from_bytes(data[at : at + 2], "big"), at + 2
        frames.append(data[at : at + size])
        at += size
    return frames
