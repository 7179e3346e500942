"""`[journal]`: what passes this broker, on disk, for `headgate journal` and `headgate pipeline`.

Documented as in `schema`. Off unless `enabled`: what people send each other is their own. The wings in rank 0 (NFP,
oslo) follow the same section under writer names of their own.
"""

import os
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from broker.home import state_folder
from broker.secret import SecretPlace
from broker.settings.values import Problem, Seconds, Text, saw

SEGMENT_MIN_BYTES = 64 * 1024
"""Smaller segments would hold little but their headers and the peers repeated in each."""


def default_directory() -> str:
    """Choose the folder: `$XDG_STATE_HOME/headgate/journal`, else `~/.local/state/headgate/journal`."""
    return state_folder("journal")


class JournalSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[journal]`: what passed, on disk."""

    enabled: bool = False
    """Record what passes. Default false: messages of others are written to disk only where somebody decided it.
    `--journal DIR` turns it on, too."""

    directory: Text = field(default_factory=default_directory)
    """Folder of the segments, made with mode 0700; brokers that share it write under names of their own. Default:
    `$XDG_STATE_HOME/headgate/journal`, or `~/.local/state/headgate/journal`: it has to survive restarts."""

    capture: Literal["in", "both"] = "in"
    """`in`: what was accepted or denied. `both`: what was delivered, too, which the order check and the service times
    of what the broker itself answers need. Default in: half the records."""

    payload: bool = True
    """Keep payloads. Default true: they can be asked about and sent again. false, for privacy: who, when, what topic
    and how long, but not what was said."""

    codec: Literal["none", "zstd", "lz4"] = "none"
    """How messages are packed in a segment. Default none: the least work, a third or so more bytes and up."""

    rotate_bytes: Annotated[int, Meta(ge=SEGMENT_MIN_BYTES, le=2**40)] = 128 * 2**20
    """A segment ends at this size. Default 128 MiB: half a million messages or so, one task of the pipeline. Cannot be
    off: only a segment that has ended can be deleted."""

    rotate_s: Annotated[float, Meta(ge=1, le=86400 * 365)] = 600.0
    """A segment that holds something ends at this age. Default ten minutes: so long may the pipeline's batches wait for
    a quiet broker. Cannot be off, for the same reason."""

    sync: Literal["none", "interval", "block"] = "none"
    """When the disk is made to hold what was written: never, every `sync_s`, behind each block. Default none: it
    survives the end of the broker, not that of the machine."""

    sync_s: Annotated[float, Meta(ge=0.01, le=3600)] = 1.0
    """Seconds between two of them with `interval`. Default 1: what a power cut may cost."""

    keep_bytes: Annotated[int, Meta(ge=0, le=2**50)] | None = None
    """Bytes of segments that each writer keeps; beyond it the oldest are deleted. 0 keeps all. Default: all writers of
    the folder together keep a tenth of its file system, 4 GiB at most, in equal parts: no disk fills unasked."""

    keep_s: Seconds = 0.0
    """Age at which segments are deleted. Default 0: never."""

    ship_to: SecretPlace | None = None
    """URL of a store that ended segments are sent to as well, as `headgate journal ship` does it: `s3://`, `gs://`,
    `abfs://`, `hdfs://` or `file://`. Needs pyarrow. Default: they stay here."""

    queue_bytes: Annotated[int, Meta(ge=SEGMENT_MIN_BYTES, le=2**32 - 1)] = 16 * 2**20
    """What may wait for a disk that is slow; beyond it records are left out, counted, and named as a gap. Default 16
    MiB: a tenth of a second of a broker that works as fast as it can. Traffic never waits."""

    block_s: Annotated[float, Meta(ge=0.01, le=60)] = 0.2
    """Age at which records are written, many or few. Default 0.2: how far readers lag behind."""

    def at(self, directory: str) -> "JournalSection":
        """This section turned on and writing to ``directory`` (``--journal DIR``), which becomes an absolute path."""
        return msgspec.structs.replace(self, enabled=True, directory=os.path.abspath(directory))

    def options(self) -> dict[str, Any]:
        """The section as keywords for `JournalOptions`, which lack `writer` and `rank` only."""
        return {
            each.name: getattr(self, each.name)
            for each in msgspec.structs.fields(self)
            if each.name != "enabled"
        }


def journal_problems(section: JournalSection) -> Iterator[Problem]:
    """Yield every fault of a section whose types are right."""
    if section.keep_bytes and section.keep_bytes < section.rotate_bytes:
        yield saw(
            ("journal", "keep_bytes"),
            section.keep_bytes,
            f"0 for all, or at least rotate_bytes, {section.rotate_bytes}: the last segment stays",
        )
    if section.keep_s and section.keep_s < section.rotate_s:
        yield saw(
            ("journal", "keep_s"), section.keep_s, f"0 for all, or at least rotate_s, {section.rotate_s:g}"
        )
    if section.ship_to and "://" not in section.ship_to.reveal():
        yield saw(
            ("journal", "ship_to"), section.ship_to, "a URL such as s3://bucket/folder or file:///mnt/folder"
        )
    if section.rotate_s < section.block_s:
        yield saw(("journal", "rotate_s"), section.rotate_s, f"at least block_s, {section.block_s:g}")
