"""The broker's own log lines in the log ring, where ``flux dmesg`` and ``headgate log`` look for them."""

from __future__ import annotations

import logging
from collections.abc import Callable

_SEVERITIES = ((50, 2), (40, 3), (30, 4), (25, 5), (20, 6))
"""(level of the standard library, RFC 5424 severity), highest first; below all of them 7, debug."""


class RingHandler(logging.Handler):
    """Passes every record on as (severity, text).

    Args:
        note: takes them; what it logs itself while it does so is not passed on again.
    """

    def __init__(self, note: Callable[[int, str], None]) -> None:
        super().__init__()
        self._note = note
        self._inside = False

    def emit(self, record: logging.LogRecord) -> None:
        """Pass ``record`` on; never raises."""
        if self._inside:
            return
        self._inside = True
        try:
            self._note(severity_of(record.levelno), record.getMessage())
        except Exception:
            self.handleError(record)
        finally:
            self._inside = False


def severity_of(level: int) -> int:
    """RFC 5424 severity (0 emergency to 7 debug) of a level of the standard library."""
    return next((severity for bound, severity in _SEVERITIES if level >= bound), 7)
