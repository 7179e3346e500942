"""Captured messages, and what of them is excluded from which check.

`excluded.json` holds ``{check: [{"file", "case", "reason"}]}``; a check asks ``excluded(check)`` and must
find every entry of its list to differ indeed, so that the list cannot outlive its reasons.
"""

import json
import zlib
from base64 import b64decode
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent


class Captured(NamedTuple):
    """One message as it was seen between deployed programs."""

    place: str
    """File and line, for the ids of tests."""
    case: str
    direction: str
    frame: bytes
    """The framed message; b"" where it travelled as ZeroMQ parts."""
    parts: list[bytes | None]
    """Its parts; None for one that the capture keeps inside the frame only."""
    decoded: dict[str, Any]
    setup: str
    digests: list[tuple[int, str]]
    """(length, SHA-256) of every part, where ``parts`` leaves some out."""


class Hostile(NamedTuple):
    """Odd bytes on a fresh connection, and what the deployed broker did."""

    case: str
    data: bytes
    deployed: str
    """connection-closed, answered, ignored or broker-process-abort (assertion)."""
    replies: list[dict[str, Any]]


class NfpMessage(NamedTuple):
    """One NFP message, as a DEALER peer sends or receives it."""

    place: str
    case: str
    """``norfab/...``, ``seed/...`` or ``invalid/...``."""
    direction: str
    frames: list[bytes]
    decoded: dict[str, Any]
    """Its parts, or ``{"error": class}``."""


def _lines(name: str) -> list[tuple[str, dict[str, Any]]]:
    text = (HERE / name).read_text()
    return [(f"{name}:{number}", json.loads(line)) for number, line in enumerate(text.splitlines(), 1)]


def _frame(record: dict[str, Any]) -> bytes:
    if "frame_hex" in record:
        return bytes.fromhex(record["frame_hex"])
    return zlib.decompress(b64decode(record["frame_zb64"])) if "frame_zb64" in record else b""


def _captured(name: str) -> list[Captured]:
    return [
        Captured(
            place,
            record["case"],
            record["direction"],
            _frame(record),
            [None if part is None else bytes.fromhex(part) for part in record["parts_hex"]],
            record["decoded"],
            record.get("setup", ""),
            list(zip(record.get("parts_len", ()), record.get("parts_sha256", ()), strict=True)),
        )
        for place, record in _lines(name)
    ]


@cache
def local() -> list[Captured]:
    """Frames between libflux clients and a deployed broker, in the order they were seen."""
    return _captured("flux-local.jsonl")


@cache
def tbon() -> list[Captured]:
    """Messages between brokers over ZeroMQ."""
    return _captured("flux-tbon.jsonl")


@cache
def malformed() -> list[Hostile]:
    """Hostile and odd byte strings."""
    return [
        Hostile(
            record["case"], bytes.fromhex(record["bytes_hex"]), record["real_flux_0_88"], record["replies"]
        )
        for _place, record in _lines("flux-local-malformed.jsonl")
    ]


@cache
def nfp() -> list[NfpMessage]:
    """Messages of the NORFAB protocol: deployed NorFab's, those of the text, and invalid ones."""
    return [
        NfpMessage(
            place,
            record["case"],
            record["direction"],
            [bytes.fromhex(frame) for frame in record["frames_hex"]],
            record["decoded"],
        )
        for place, record in _lines("nfp.jsonl")
    ]


@cache
def excluded(check: str) -> dict[tuple[str, str], str]:
    """(file, case) -> why ``check`` expects something else there."""
    entries = json.loads((HERE / "excluded.json").read_text()).get(check, [])
    return {(entry["file"], entry["case"]): entry["reason"] for entry in entries}
