"""Why a broker cannot be reached, said once.

libzmq says little about a wrong key of the broker: the broker hangs up in the middle of the handshake, as one does
that restarts. After ``HANGUPS`` of these in a row the text says what that means.
"""

from __future__ import annotations

import logging
from typing import Final

from broker.errors import ConfigError, LinkEnded, LinkError, LinkRefused
from broker.transport.curve import CurveClient

log = logging.getLogger("headgate")
HANGUPS: Final = 3
"""A broker that so often in a row hangs up during the handshake refuses us."""
REASONS_MAX: Final = 16
"""Different reasons that are said about a broker until it answers: two may take turns, new ones must not go on."""


class Complaints:
    """Says in the log why a broker cannot be reached: once for each broker and reason."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._hangups: dict[str, int] = {}
        self._said: dict[str, set[str]] = {}

    def forget(self, broker: str) -> None:
        """It answers now."""
        self._hangups.pop(broker, None)
        if self._said.pop(broker, None):
            log.warning("%s: the broker %s answers now", self._name, broker)

    def refuses(self, broker: str, error: LinkError | ConfigError) -> bool:
        """Whether it is there and does not want us: to be tried less often than one that is away."""
        return isinstance(error, LinkRefused) or self._hangups.get(broker, 0) >= HANGUPS

    def failed(self, broker: str, error: LinkError | ConfigError, curve: CurveClient | None) -> str:
        """What is wrong, for people."""
        text = str(error)
        if isinstance(error, LinkEnded):
            count = self._hangups[broker] = self._hangups.get(broker, 0) + 1
            if count < HANGUPS:
                return text
            text = f"{text} {_hangup(curve)}"
        elif isinstance(error, LinkRefused) and curve is not None:
            text = f"{text}; our key {curve.certificate.public_key} is probably not on its list"
        said = self._said.setdefault(broker, set())
        if text not in said and len(said) < REASONS_MAX:
            said.add(text)
            level = (
                logging.ERROR if isinstance(error, (LinkRefused, LinkEnded, ConfigError)) else logging.WARNING
            )
            log.log(level, "%s: cannot reach the broker: %s", self._name, text)
        return text


def _hangup(curve: CurveClient | None) -> str:
    if curve is None:
        return "again and again: it probably wants CURVE, and no key of it is configured"
    return (
        f"again and again: its key is probably not {curve.server_key} as configured, "
        "or it speaks no CURVE (compare with the broker's .key file)"
    )
