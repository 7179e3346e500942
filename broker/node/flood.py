"""Keeps a hostile or broken peer from filling the log: so many lines of a kind a second, the rest is counted."""

from __future__ import annotations

import logging

LINES_PER_S = 10
"""Lines with the same template in one second; a person reads no more, and a retrying peer makes hundreds."""
TEMPLATES_MAX = 256
"""Templates remembered; the code has fewer, text made by others is no template."""


class FloodGate(logging.Filter):
    """Lets the first ``LINES_PER_S`` lines of each template through; the next second's first line tells of the rest."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether ``record`` is written; its own time is the clock."""
        template = str(record.msg)
        since, count = self._seen.get(template, (record.created, 0))
        if not 0 <= record.created - since < 1.0:
            held_back = count - LINES_PER_S
            if held_back > 0:
                record.msg = f"{template} (and {held_back} more of this kind)"
            since, count = record.created, 0
        if template not in self._seen and len(self._seen) >= TEMPLATES_MAX:
            self._seen = {}
        self._seen[template] = since, count + 1
        return count < LINES_PER_S
