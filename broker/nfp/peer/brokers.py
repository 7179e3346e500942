"""Which broker is tried next, how long to wait before, and what is said of one that cannot be reached.

A peer has an ordered list of brokers and stays with the one that answers (NFP, "Reliability"). It goes on to the next,
in a circle, when one could not be reached for ``failover_s``. A return to the first is not automatic: the jobs of the
peers that moved are in the store of the broker they moved to, and while some are at the one and some at the other
broker they do not see each other. Whoever repairs the first broker sends everybody back by stopping the other.

A broker with another key than we think hangs up in the middle of the handshake, as one does that restarts. After
``HANGUPS`` of these in a row the text of ``ConnectFailures`` says what that means.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from errno import EADDRINUSE
from typing import Final

from broker.backoff import Backoff
from broker.errors import ConfigError, LinkEnded, LinkError, LinkRefused
from broker.transport.curve import CurveClient

log = logging.getLogger("headgate")
HANGUPS: Final = 3
"""A broker that so often in a row hangs up during the handshake refuses us."""
REASONS_MAX: Final = 16
"""Different reasons that are said about a broker until it answers: two may take turns, new ones must not go on."""
FIRST_S: Final = 0.05
"""Bound of the first wait; each further one doubles. A broker that restarts is back in a few tenths of a second."""
SOON_S: Final = 0.5
"""Largest bound during the first ``LONG_S``: peers are back well within a second of their broker."""
LATE_S: Final = 5.0
"""Largest bound later: a broker that is away for long is not hammered by thousands of peers."""
LONG_S: Final = 60.0
BROKERS_MAX: Final = 64
DEFAULT: Final = "tcp://127.0.0.1:5555"
"""Where our broker and deployed NorFab's listen unless told otherwise."""
VARIABLE: Final = "HEADGATE_NFP"
"""Environment: addresses of brokers, in order, with blanks or commas between them."""


def choose_brokers(given: str | Sequence[str] | None, environ: Mapping[str, str]) -> list[str]:
    """The addresses given, else those of ``$HEADGATE_NFP``, else the usual one.

    >>> choose_brokers(None, {"HEADGATE_NFP": "tcp://a:1, tcp://b:1"}), choose_brokers("tcp://c:1", {})
    (['tcp://a:1', 'tcp://b:1'], ['tcp://c:1'])
    """
    if isinstance(given, str):
        return [given]
    return list(given or ()) or environ.get(VARIABLE, "").replace(",", " ").split() or [DEFAULT]


class Brokers:
    """The ordered list, and where in it we are.

    Args:
        endpoints: in order of preference. failover_s: patience with one of them; 0: never go on.
        now: monotonic seconds.

    Attributes:
        pause_s: how long to wait before the next attempt.

    Raises:
        ConfigError: no endpoint, too many, or one twice.
    """

    def __init__(self, endpoints: Sequence[str], failover_s: float, now: float) -> None:
        if not 0 < len(endpoints) <= BROKERS_MAX or len(set(endpoints)) != len(endpoints):
            raise ConfigError(
                f"brokers: {len(endpoints)} of them, expected 1 to {BROKERS_MAX} different endpoints"
            )
        self._endpoints = tuple(endpoints)
        self._failover_s = failover_s
        self._at = 0
        self._since = now
        self._away_since = now
        self._backoff = Backoff(FIRST_S, LATE_S, LATE_S)
        self.pause_s = 0.0

    @property
    def current(self) -> str:
        """The endpoint in use or tried now."""
        return self._endpoints[self._at]

    def note_reached(self, now: float) -> None:
        """The handshake with ``current`` succeeded."""
        self._since = self._away_since = now

    def note_left(self, now: float, lived_s: float) -> None:
        """A connection ended after ``lived_s``; one that ends at once does not shorten the next wait."""
        self._since = self._away_since = now
        self.pause_s = self._backoff.after(lived_s)

    def note_failure(self, now: float, *, refused: bool = False) -> bool:
        """``current`` could not be reached, or ``refused`` us; True when another one is tried next."""
        longest = SOON_S if now - self._away_since < LONG_S and not refused else LATE_S
        self.pause_s = self._backoff.after(longest_s=longest)
        if len(self._endpoints) == 1 or not self._failover_s or now - self._since < self._failover_s:
            return False
        self._at = (self._at + 1) % len(self._endpoints)
        self._since = now
        self._backoff.reset()
        return True


class ConnectFailures:
    """Says in the log why a broker cannot be reached: once for each broker and reason."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._hangups: dict[str, int] = {}
        self._said: dict[str, set[str]] = {}

    def forget(self, broker: str) -> None:
        """Note that ``broker`` answers: what is wrong with it is said again when it fails next."""
        self._hangups.pop(broker, None)
        if self._said.pop(broker, None):
            log.warning("%s: the broker %s answers now", self._name, broker)

    def refuses(self, broker: str, error: LinkError | ConfigError) -> bool:
        """Whether it is there and does not want us: to be tried less often than one that is away."""
        return isinstance(error, LinkRefused) or self._hangups.get(broker, 0) >= HANGUPS

    def explain(self, broker: str, error: LinkError | ConfigError, curve: CurveClient | None) -> str:
        """What is wrong, for people."""
        text = str(error)
        if isinstance(error, LinkEnded):
            count = self._hangups[broker] = self._hangups.get(broker, 0) + 1
            if count < HANGUPS:
                return text
            text = f"{text} {_explain_hangup(curve)}"
        elif isinstance(error, LinkRefused) and error.errno == EADDRINUSE:
            text = f"{text}; take another name, or have an owner free one of another key (headgate nfp manage unpin)"
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


def _explain_hangup(curve: CurveClient | None) -> str:
    if curve is None:
        return "again and again: it probably wants CURVE, and no key of it is configured"
    return (
        f"again and again: its key is probably not {curve.server_key} as configured, "
        "or it speaks no CURVE (compare with the broker's .key file)"
    )
