"""The files of a run, and their reader. See `tests.proof.record` for what the lines say. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

DRIVER: Final = "driver"
"""The ``who`` of the driver, and the stem of its file."""


def path_of(folder: Path, who: str) -> Path:
    """Return the file of a party, or of the driver."""
    return folder / (f"{DRIVER}.jsonl" if who == DRIVER else f"party-{who}.jsonl")


class Malformed(Exception):
    """A line in the middle of a log that is not one: the run cannot be judged."""


def read_file(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of one file in order. A torn line, and an empty one, is passed over.

    Raises:
        Malformed: a whole line is no JSON object with ``t``, ``who`` and ``ev``.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            line = _parse(raw)
            if line is None:
                continue
            if not isinstance(line, dict) or not {"t", "who", "ev"} <= line.keys():
                raise Malformed(f"{path.name}:{number}: no line of a run: {raw[:80]!r}")
            yield line


def _parse(raw: bytes) -> Any:
    """Return what a line says; None when it is empty or torn by a `kill -9`."""
    try:
        return json.loads(raw) if raw.strip() else None
    except ValueError:
        return None


def read(folder: Path) -> list[list[dict[str, Any]]]:
    """Return the lines of every file of a run, a list a file, the driver's first.

    Raises:
        FileNotFoundError: there is no driver's log.
        Malformed: a file does not hold lines of a run.
    """
    files = [path_of(folder, DRIVER), *sorted(folder.glob("party-*.jsonl"))]
    return [list(read_file(path)) for path in files]
