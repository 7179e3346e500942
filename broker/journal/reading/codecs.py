"""Bodies as stored -> bodies; the libraries are loaded when a block needs them."""

from __future__ import annotations

from broker.errors import ConfigError
from broker.extras import lacking
from broker.journal.layout import CODECS


def unpacked(codec: int, stored: memoryview, size: int) -> bytes | memoryview:
    """``size`` bytes of bodies from ``stored``, which is one frame of zstd or lz4, or the bodies themselves.

    Raises:
        ConfigError: the library is not installed; the text names the extra.
        ValueError: it is no such frame, or of another size.
    """
    if codec == 0:
        if len(stored) != size:
            raise ValueError(f"{len(stored)} bytes of bodies stored, {size} announced")
        return stored
    bodies = _zstd(stored, size) if codec == 1 else _lz4(stored, size)
    if len(bodies) != size:
        raise ValueError(f"{len(bodies)} bytes of bodies unpacked, {size} announced")
    return bodies


def _zstd(stored: memoryview, size: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise _missing("zstandard", 1) from None
    try:
        announced = zstandard.frame_content_size(stored)
        if announced not in (size, -1):  # -1: the frame does not say
            raise ValueError(f"{announced} bytes in the zstd frame, {size} announced")
        unpacked: bytes = zstandard.ZstdDecompressor().decompress(stored, max_output_size=size)
    except zstandard.ZstdError as error:
        raise ValueError(f"zstd: {error}") from None
    return unpacked


def _lz4(stored: memoryview, size: int) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise _missing("lz4", 2) from None
    try:
        # bounded by what was announced: a frame may be made to unpack to any size
        unpacked: bytes = lz4.frame.LZ4FrameDecompressor().decompress(stored, max_length=size + 1)
    except (RuntimeError, EOFError) as error:
        raise ValueError(f"lz4: {error}") from None
    return unpacked


def _missing(library: str, codec: int) -> ConfigError:
    return ConfigError(f"journal: bodies compressed with {CODECS[codec]}: {lacking(library)}")
