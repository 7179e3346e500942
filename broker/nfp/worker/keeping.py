"""The seam between a worker and the store of its jobs (NFP, "Job Persistence").

Everything put is written in order, in batches, by a thread of the store's; ``durable`` waits for what was put so far.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class KeptJob(NamedTuple):
    """A job as the store has it.

    ``state`` is accepted, started, done, recorded or cancelled; times are wall clock, 0: not yet.
    """

    uuid: str
    client: bytes | None
    service: str
    task: str
    body: bytes
    idempotent: bool
    state: str = "accepted"
    status: int = 0
    result: bytes = b""
    received_s: float = 0.0
    started_s: float = 0.0
    ended_s: float = 0.0
    age_s: float = 0.0
    """Since it came; no step of the wall clock changes it."""


class JobStore(Protocol):
    """What a worker asks of its store; none of it blocks the loop."""

    async def open(self) -> list[KeptJob]:
        """Begin; the jobs that are not recorded, oldest first.

        Raises:
            ConfigError: the file cannot be used.
        """

    def state(self, uuid: str) -> str:
        """accepted, started, done, recorded or cancelled; "" for a job that is not here."""

    def accepted(self, job: KeptJob) -> bool:
        """A job came. False: its uuid is there already and stays as it is."""

    def readdressed(self, uuid: str, client: bytes | None) -> None:
        """A job that is here came again, with another attempt in its address."""

    def started(self, uuid: str) -> None:
        """Its task begins now."""

    def done(self, job: KeptJob) -> None:
        """Its result; the job need not have been put before."""

    def recorded(self, uuids: list[str]) -> None:
        """The broker has these results: they are kept for the retention time only."""

    def cancelled(self, uuid: str) -> None:
        """Nobody wants it any more: it does not come back after a restart."""

    def forget(self, uuid: str) -> None:
        """Drop a job: it was refused after all, or is to be run once more."""

    async def durable(self) -> None:
        """Return when everything put so far is on disk.

        Raises:
            HeadgateError: it cannot be written at present (disk full); the text says why.
        """

    async def find(self, uuid: str) -> KeptJob | None:
        """The job ``uuid`` with body and result.

        Raises:
            HeadgateError: the file cannot be read.
        """

    async def listing(self, last: int) -> list[KeptJob]:
        """The newest ``last`` jobs, newest first, without bodies and results."""

    async def close(self) -> None:
        """Write what is left and end."""


class NoStore:
    """Nothing is kept: a worker that ends forgets its jobs, and its broker gives them to another."""

    async def open(self) -> list[KeptJob]:
        """See ``JobStore``."""
        return []

    def state(self, uuid: str) -> str:
        """See ``JobStore``."""
        return ""

    def accepted(self, job: KeptJob) -> bool:
        """See ``JobStore``."""
        return True

    def readdressed(self, uuid: str, client: bytes | None) -> None:
        """See ``JobStore``."""

    def started(self, uuid: str) -> None:
        """See ``JobStore``."""

    def done(self, job: KeptJob) -> None:
        """See ``JobStore``."""

    def recorded(self, uuids: list[str]) -> None:
        """See ``JobStore``."""

    def cancelled(self, uuid: str) -> None:
        """See ``JobStore``."""

    def forget(self, uuid: str) -> None:
        """See ``JobStore``."""

    async def durable(self) -> None:
        """See ``JobStore``."""

    async def find(self, uuid: str) -> KeptJob | None:
        """See ``JobStore``."""
        return None

    async def listing(self, last: int) -> list[KeptJob]:
        """See ``JobStore``."""
        return []

    async def close(self) -> None:
        """See ``JobStore``."""
