"""Bodies, compressed: one frame of zstd or lz4, each with its size; the libraries are loaded when they are used."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from broker.errors import ConfigError
from broker.extras import install
from broker.journal.layout import CODECS

ZSTD_LEVEL: Final = 1
"""The fastest of the usual ones: the writer shares the machine with its broker."""

Compress = Callable[[bytes | memoryview], bytes]


def compressor(codec: str) -> tuple[int, Compress | None]:
    """Number of a codec, and what compresses with it; None for ``none``.

    Raises:
        ConfigError: no such codec, or its library is not installed.
    """
    if codec not in CODECS:
        raise ConfigError(f"journal: codec {codec!r}, expected one of {', '.join(CODECS)}")
    try:
        compress = None if codec == "none" else _zstd() if codec == "zstd" else _lz4()
    except ImportError as missing:
        text = f"journal: codec {codec}: {missing.name} is not installed: {install('journal')}"
        raise ConfigError(text, errno.ENOPKG) from None
    return CODECS.index(codec), compress


def _zstd() -> Compress:
    import zstandard

    compress: Compress = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True).compress
    return compress


def _lz4() -> Compress:
    import lz4.frame

    def compress(bodies: bytes | memoryview) -> bytes:
        packed: bytes = lz4.frame.compress(bodies, store_size=True)
        return packed

    return compress
