"""What the broker writes down, and gets back after a restart: plain values between ``jobs`` and ``store``.

Times here are wall-clock seconds (for people) or ages; deadlines are monotonic in memory and rebuilt from ages, so a
step of the clock moves none of them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.nfp.names import Dialect
from broker.nfp.targets import Target

KNOWN_MAX: Final = 65_536
"""Names of former workers that are remembered: a request may name one of them and wait."""


class JobAdded(NamedTuple):
    """A POST was accepted."""

    uuid: str
    service: str
    task: str
    """"" when the body names none."""
    target: Target
    body: bytes
    client: bytes
    """Identity of who sent it, for pushing what comes."""
    dialect: Dialect
    holder: str
    userid: int
    ttl_s: float
    """How long after being added it expires without result."""
    parts: tuple[str, ...] = ()
    """Names of the workers it is for, "" for *any*; empty for *all* while the service has nobody."""


class PartAdded(NamedTuple):
    """One of the workers that a job for *all* is for is known now; "" for nobody."""

    uuid: str
    part: str


class Dispatched(NamedTuple):
    """A part of a job was given to a worker; ``part`` is "" for *any*, even after a worker was chosen."""

    uuid: str
    part: str
    worker: str
    attempt: int
    """1 for the first."""


class Accepted(NamedTuple):
    """A part that must not be run twice may have begun, by its present worker: this is its only chance."""

    uuid: str
    part: str
    attempt: int
    """The one that is under way."""


class Returned(NamedTuple):
    """The worker is gone: the part waits again."""

    uuid: str
    part: str


class Owned(NamedTuple):
    """The client of a job for *any* is told that ``worker`` has it: the result comes under that name, whoever brings
    it.
    """

    uuid: str
    worker: str


class Finished(NamedTuple):
    """The one recorded final result of a part. ``worker`` is "" when the broker made it (expiry, cancellation)."""

    uuid: str
    part: str
    worker: str
    attempt: int
    status: int
    body: bytes
    closes: str = ""
    """The last part's: done, failed, cancelled or expired. The job is closed, and its retention begins."""


class Forgotten(NamedTuple):
    """A job is removed with its results."""

    uuid: str


class WorkerSeen(NamedTuple):
    """A worker registered, or its connection broke."""

    name: str
    service: str
    dialect: Dialect
    key: str
    lost: bool = False
    """Its connection is broken; another WorkerSeen or WorkerLeft follows, unless the broker ends before."""


class WorkerLeft(NamedTuple):
    """It said goodbye, or is dead: a restart does not wait for it, but knows the name (up to ``KNOWN_MAX``)."""

    name: str


UNPINNED: Final = "-"
"""In place of a key: whoever comes next gets the name, also after a restart, whosever jobs it has."""


class Pinned(NamedTuple):
    """A name belongs to a key from now on, and was used just now; "": it belongs to nobody. See ``UNPINNED``, too."""

    name: str
    key: str


StoredEvent = PartAdded | Dispatched | Accepted | Returned | Owned | Finished
"""What happens to a job after it was added; a restart applies the same events again, in their order."""

Op = JobAdded | StoredEvent | Forgotten | WorkerSeen | WorkerLeft | Pinned


class StoredJob(NamedTuple):
    """A job after a restart."""

    added: JobAdded
    submitted_s: float
    """Wall clock."""
    age_s: float
    """Since it was added, never below 0."""
    events: tuple[StoredEvent, ...] = ()
    state: str = "open"
    """open, done, failed, cancelled or expired."""
    closed_age_s: float = 0.0


class ClosedJob(NamedTuple):
    """A closed job as a broker starts with it."""

    job: StoredJob
    """Without its body and its events, which are read on demand."""
    parts: int
    """How many it has."""
    body_bytes: int
    result_bytes: int
    """Of all results together."""


class Snapshot(NamedTuple):
    """What a broker starts from."""

    jobs: tuple[StoredJob, ...] = ()
    """Open ones."""
    workers: tuple[WorkerSeen, ...] = ()
    pins: tuple[Pinned, ...] = ()
    """In the order of their last use."""
    closed: tuple[ClosedJob, ...] = ()
    """The earliest end first."""
    known: tuple[str, ...] = ()
    """Names of workers that have left, the latest last."""
