"""Which broker is tried next, how long to wait before, and what is said of one that cannot be reached.

A peer has an ordered list of brokers and stays with the one that answers (NFP, "Reliability"). It goes on to the next,
in a circle, when one could not be reached for ``failover_s``. A return to the first is not automatic: the jobs of the
peers that moved are in the store of the broker they moved to, and while some are at the one and some at the other
broker they do not see each other. Whoever repairs the first broker sends everybody back by stopping the other.

A broker with another key than we think hangs up in the middle of the handshake, as one does that restarts. After
``HANGUPS`` of these in a row the text says what that means, and it is tried less often.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class Broker:
    """One of the list, and what is known of it.

    Attributes:
        endpoint: its address. curve: the keys; None: it is spoken to in plaintext.
        answers: it has answered an OPEN. refuses: it is there and does not want us.
    """

    endpoint: str
    curve: CurveClient | None = None
    answers: bool = False
    refuses: bool = False
    hangups: int = 0
    """In a row, during the handshake."""
    said: set[str] = field(default_factory=set)
    """What was said of it since it answered last."""


class Brokers:
    """The ordered list, and where in it we are. Why one cannot be reached is logged once for each reason.

    Args:
        name: ours. endpoints: in order of preference. curves: keys for each.
        failover_s: patience with one of them; 0: never go on. now: monotonic seconds.

    Attributes:
        current: the one in use or tried now. pause_s: how long to wait before the next attempt.

    Raises:
        ConfigError: no endpoint, too many, or one twice.
    """

    def __init__(
        self,
        name: str,
        endpoints: Sequence[str],
        curves: Mapping[str, CurveClient],
        failover_s: float,
        now: float,
    ) -> None:
        if not 0 < len(endpoints) <= BROKERS_MAX or len(set(endpoints)) != len(endpoints):
            raise ConfigError(
                f"brokers: {len(endpoints)} of them, expected 1 to {BROKERS_MAX} different endpoints"
            )
        self._name = name
        self._all = [Broker(endpoint, curves.get(endpoint)) for endpoint in endpoints]
        self._failover_s = failover_s
        self._since = self._away_since = now
        self._backoff = Backoff(FIRST_S, LATE_S, LATE_S)
        self.current = self._all[0]
        self.pause_s = 0.0

    @property
    def all_refuse(self) -> bool:
        """Whether every one of them refused us when it was tried last."""
        return all(broker.refuses for broker in self._all)

    def note_reached(self, now: float) -> None:
        """The handshake with ``current`` succeeded."""
        self._since = self._away_since = now

    def note_answer(self) -> None:
        """``current`` talks to us: what is wrong with it is said again when it fails next."""
        broker = self.current
        broker.hangups = 0
        if broker.said:
            broker.said.clear()
            log.warning("%s: the broker %s answers now", self._name, broker.endpoint)

    def note_left(self, now: float, lived_s: float) -> None:
        """A connection ended after ``lived_s``; one that ends at once does not shorten the next wait."""
        self.note_reached(now)
        self.pause_s = self._backoff.after(lived_s)

    def note_failure(self, error: LinkError | ConfigError, now: float) -> str:
        """``current`` could not be reached: after ``failover_s`` of it the next one is; returns why, for people."""
        broker = self.current
        text = self._explain(broker, error)
        broker.refuses = isinstance(error, LinkRefused) or broker.hangups >= HANGUPS
        restarts = isinstance(error, LinkEnded) and not broker.refuses  # it may be about to be there again
        if not restarts and text not in broker.said and len(broker.said) < REASONS_MAX:
            broker.said.add(text)
            wrong = isinstance(error, (LinkRefused, LinkEnded, ConfigError))
            level = logging.ERROR if wrong else logging.WARNING
            log.log(level, "%s: cannot reach the broker: %s", self._name, text)
        longest = SOON_S if now - self._away_since < LONG_S and not broker.refuses else LATE_S
        self.pause_s = self._backoff.after(longest_s=longest)
        if len(self._all) > 1 and self._failover_s and now - self._since >= self._failover_s:
            self.current = self._all[(self._all.index(broker) + 1) % len(self._all)]
            self._since = now
            self._backoff.reset()
            log.warning("%s: goes on to the broker %s", self._name, self.current.endpoint)
        return text

    def _explain(self, broker: Broker, error: LinkError | ConfigError) -> str:
        text, curve = str(error), broker.curve
        if isinstance(error, LinkEnded):
            broker.hangups += 1
            return text if broker.hangups < HANGUPS else f"{text} {_explain_hangup(curve)}"
        if isinstance(error, LinkRefused) and error.errno == EADDRINUSE:
            return f"{text}; take another name, or have an owner free one of another key (headgate nfp manage unpin)"
        if isinstance(error, LinkRefused) and curve is not None:
            return f"{text}; our key {curve.certificate.public_key} is probably not on its list"
        return text


def _explain_hangup(curve: CurveClient | None) -> str:
    if curve is None:
        return "again and again: it probably wants CURVE, and no key of it is configured"
    return (
        f"again and again: its key is probably not {curve.server_key} as configured, "
        "or it speaks no CURVE (compare with the broker's .key file)"
    )
