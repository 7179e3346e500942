"""How long the client library waits, and how much one client may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.nfp.store.peers import KEEP_S

JOB_TIMEOUT_S: Final = 600.0
"""A job's deadline when none is given, as in deployed NorFab."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one NfpClient; none can be switched off."""

    resend_s: float = 5.0
    """A POST without any answer is sent again, under the same uuid, after this many seconds."""
    poll_s: float = 10.0
    """A job that nothing was heard of for this long is asked for, as deployed NorFab's clients do."""
    poll_pushed_s: float = 60.0
    """The same at a broker that pushes results: a safety net."""
    poll_attached_s: float = 2.0
    """The same for a job that was submitted by somebody else: what comes of it is pushed to them."""
    answer_s: float = 10.0
    """How long management requests and cancellations wait for an answer."""
    at_broker_msgs: int = 500
    """Unfinished jobs given to the broker at a time, half of what it takes from one client; the rest wait here."""
    jobs: int = 100_000
    """Unfinished jobs of this client; beyond it EAGAIN."""
    keep_s: float = KEEP_S
    """How long an ended job of a named client is kept on its disk (NFP, "Job Persistence": "a configurable amount")."""
    events_msgs: int = 1000
    """Events one job keeps for its readers; older ones are dropped and counted."""
    events_bytes: int = 4 << 20
    """The same in bytes."""
    stream_bytes: int = 64 << 20
    """Bytes of a job's stream that wait for their reader; beyond it the stream raises Overrun."""
    subscription_msgs: int = 10_000
    """Events one subscription keeps for its reader; older ones are dropped and counted."""
