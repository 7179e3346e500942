"""What the dispatcher counts, for management and metrics: plain ints that only grow."""

from __future__ import annotations

from typing import Final

_NAMES: Final = (
    "cancelled",
    "denied",
    "died",
    "dispatched",
    "done",
    "dropped",
    "duplicates",
    "expired",
    "failed",
    "finished",
    "forged",
    "forgotten",
    "late",
    "refused",
    "returned",
    "submitted",
    "unexpected",
    "unroutable",
    "unsent",
)


class Counts:
    """One attribute a count.

    Attributes:
        submitted: jobs accepted.
        duplicates: POSTs of a job that is known already, answered from its state.
        denied: requests that a rule, a full queue or a foreign uuid refused.
        dispatched: times a job was given to a worker.
        returned: times a job came back because its worker was lost or did not know it.
        finished: final results recorded, one for each worker's part of a job.
        done, failed, expired, cancelled: jobs that ended like this, see ``outcome.job_state``.
        late: results that came after the recorded one; none of them was used.
        forged: RESPONSE, EVENT and STREAM about a job that its sender was never given.
        refused: READYs that no rule allows.
        unexpected: valid commands at a wrong time, answered with DISCONNECT.
        unroutable: packets about jobs nobody knows, or for workers that are not there.
        dropped: events and streams that their client's queue did not take.
        unsent: POSTs that a worker's queue did not take; the job went back to the queue.
        died: workers that were lost.
        forgotten: closed jobs removed.
    """

    __slots__ = _NAMES

    def __init__(self) -> None:
        self.cancelled = self.denied = self.died = self.dispatched = self.done = self.dropped = (
            self.duplicates
        ) = 0
        self.expired = self.failed = self.finished = self.forged = self.forgotten = self.late = 0
        self.refused = self.returned = self.submitted = self.unexpected = self.unroutable = self.unsent = 0

    def ended(self, state: str) -> None:
        """A job ended in ``state``."""
        setattr(self, state, getattr(self, state) + 1)

    def as_dict(self) -> dict[str, int]:
        """All of them by name."""
        return {name: getattr(self, name) for name in _NAMES}
