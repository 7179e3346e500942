"""What is captured, where to, how it is rotated, synced and kept."""

from __future__ import annotations

import logging
from typing import Literal

from msgspec import Struct

from broker.secret import SecretPlace


class JournalOptions(Struct, frozen=True, kw_only=True):
    """Everything the recorder and the writer need to know; settings and ``--journal`` become one of these."""

    directory: str
    """Where segments go; made with mode 0700. Several writers may share it, each under a name of its own."""

    writer: str
    """Name of this writer: segments are ``WRITER-FIRSTSEQ.fj``. Letters, digits, ``_``, ``.`` and ``-``, at most 64."""

    rank: int = 0
    """Rank that the records are of."""

    run: str = ""
    """Uuid of this run (32 hex digits); numbering and peers belong to it. Default: one is made."""

    capture: Literal["in", "both"] = "in"
    """``in``: accepted and denied. ``both``: deliveries, too, which the order check and the latency of what this broker
    answers itself need."""

    payload: bool = True
    """Whether payloads are kept. Off: bodies hold routes, topic and PROTO only."""

    codec: Literal["none", "zstd", "lz4"] = "none"
    """Compression of bodies; entries never are."""

    rotate_bytes: int = 128 << 20
    """A segment ends at this size."""

    rotate_s: float = 600.0
    """A segment ends at this age."""

    sync: Literal["none", "interval", "block"] = "none"
    """fdatasync: never, every ``sync_s``, or behind each block."""

    sync_s: float = 1.0

    keep_bytes: int | None = None
    """Oldest segments of this writer are deleted above this size; 0 keeps all, None: see `recovery.fair_share`."""

    keep_s: float = 0.0
    """Segments of this writer are deleted at this age; 0 keeps all."""

    ship_to: SecretPlace | None = None
    """URL of a store that sealed segments are sent to (``shipping``)."""

    block_records: int = 4096
    """A block is written at so many records,"""

    block_bytes: int = 1 << 20
    """so many bytes of bodies, or"""

    block_s: float = 0.2
    """at this age."""

    queue_bytes: int = 16 << 20
    """What may wait for a writer that is slow; beyond it records are shed and counted."""

    log_level: int = logging.INFO
    """From which level of the standard library on the writer logs; the recorder sets it to that of its own log."""
