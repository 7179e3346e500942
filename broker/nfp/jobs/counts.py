"""What the dispatcher counts, for management and metrics: plain ints that only grow."""

# compiled: mypyc

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Counts:
    """One attribute a count."""

    submitted: int = 0
    """Jobs accepted."""
    duplicates: int = 0
    """POSTs of a job that is known already, answered from its state."""
    denied: int = 0
    """Requests that a rule, a full queue or a foreign uuid refused."""
    dispatched: int = 0
    """Times a job was given to a worker."""
    returned: int = 0
    """Times a job came back because its worker was lost or did not know it."""
    finished: int = 0
    """Final results recorded, one for each worker's part of a job."""
    done: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    """Jobs that ended like this, see ``outcome.job_state``."""
    late: int = 0
    """Results that came after the recorded one; none of them was used."""
    forged: int = 0
    """RESPONSE, EVENT and STREAM about a job that its sender was never given."""
    refused: int = 0
    """READYs that no rule allows."""
    unexpected: int = 0
    """Valid commands at a wrong time, answered with DISCONNECT."""
    unroutable: int = 0
    """Packets about jobs nobody knows, or for workers that are not there."""
    dropped: int = 0
    """Events and streams that their client's queue did not take."""
    unsent: int = 0
    """POSTs that a worker's queue did not take; the job went back to the queue."""
    died: int = 0
    """Workers that were lost."""
    forgotten: int = 0
    """Closed jobs removed."""

    def ended(self, state: str) -> None:
        """A job ended in ``state``."""
        setattr(self, state, getattr(self, state) + 1)

    def as_dict(self) -> dict[str, int]:
        """All of them by name."""
        return asdict(self)
