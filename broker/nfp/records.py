"""What the broker writes down, and gets back after a restart: plain values between ``dispatch`` and ``store``.

Times here are wall-clock seconds (for people) or ages; deadlines are monotonic in memory and rebuilt from ages, so a
step of the clock moves none of them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.nfp.names import Dialect
from broker.nfp.targets import Target

KNOWN_MAX: Final = 65_536
"""Names of former workers that are remembered: a request may name one of them and wait."""
ACCOUNTS_MAX: Final = 10_000
"""Sums of accounting, in memory and in the store: anybody with a new key makes one. Beyond it the smallest are added up
under ``OTHERS``, until half as many are left."""
OTHERS: Final = "(others)"


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


class SlotAdded(NamedTuple):
    """A job waits for (one more) worker: ``slot`` is its name, or "" for *any* while nobody was chosen."""

    uuid: str
    slot: str


class Dispatched(NamedTuple):
    """A job was given to a worker; ``slot`` as in SlotAdded ("" for *any*, even after a worker was chosen)."""

    uuid: str
    slot: str
    worker: str
    attempt: int
    """1 for the first."""


class Accepted(NamedTuple):
    """The worker has stored it (201)."""

    uuid: str
    slot: str
    worker: str
    attempt: int
    repeat: bool = True
    """Whether it may be run again when this worker is lost, as it was declared then."""


class Returned(NamedTuple):
    """The worker is gone: the slot waits again."""

    uuid: str
    slot: str


class Owned(NamedTuple):
    """The client of a job for *any* is told that ``worker`` has it: the result comes under that name, whoever brings
    it.
    """

    uuid: str
    worker: str


class Finished(NamedTuple):
    """The one recorded final result of a slot. ``worker`` is "" when the broker made it (expiry, cancellation)."""

    uuid: str
    slot: str
    worker: str
    attempt: int
    status: int
    body: bytes


class Closed(NamedTuple):
    """Every slot of a job is final; ``state`` is done, failed, cancelled or expired. Its retention begins."""

    uuid: str
    state: str


class Forgotten(NamedTuple):
    """A job is removed with its results."""

    uuid: str


class WorkerSeen(NamedTuple):
    """A worker registered."""

    name: str
    service: str
    dialect: Dialect
    key: str


class WorkerLeft(NamedTuple):
    """It said goodbye, or is dead: a restart does not wait for it, but knows the name (up to ``KNOWN_MAX``)."""

    name: str


class Pinned(NamedTuple):
    """A name belongs to a key from now on, and was used just now; "": it belongs to nobody."""

    name: str
    key: str


class Used(NamedTuple):
    """Accounting, added to what is there: who used which service how much."""

    holder: str
    key: str
    service: str
    jobs: int
    failed: int
    bytes_in: int
    bytes_out: int
    busy_s: float


Op = (
    JobAdded
    | SlotAdded
    | Dispatched
    | Accepted
    | Returned
    | Owned
    | Finished
    | Closed
    | Forgotten
    | WorkerSeen
    | WorkerLeft
    | Pinned
    | Used
)


class SlotRow(NamedTuple):
    """A slot after a restart; ``state`` is waiting, dispatched, accepted or final."""

    slot: str
    worker: str
    attempt: int
    state: str
    status: int = 0
    body: bytes = b""
    workers: tuple[tuple[str, int], ...] = ()
    """Every worker it was ever given to, with the attempt: each may still bring the result."""
    owner: str = ""
    """For *any*: the worker that the client was told of before there was a result."""
    repeat: bool = True
    """As of Accepted; True in other states."""


class JobRow(NamedTuple):
    """A job after a restart."""

    added: JobAdded
    submitted_s: float
    """Wall clock."""
    age_s: float
    """Since it was added, never below 0."""
    state: str
    """open, done, failed, cancelled or expired."""
    closed_age_s: float
    slots: tuple[SlotRow, ...]


class Snapshot(NamedTuple):
    """What a broker starts from."""

    jobs: tuple[JobRow, ...] = ()
    """Open ones."""
    workers: tuple[WorkerSeen, ...] = ()
    pins: tuple[Pinned, ...] = ()
    """In the order of their last use."""
    closed: tuple[str, ...] = ()
    """Uuids of closed jobs, the latest end first; the jobs are read while the broker works already."""
    known: tuple[str, ...] = ()
    """Names of workers that have left, the latest last."""
