"""Who asks: a peer of the NFP broker for each caller, which looks after the jobs that its requests follow.

All sessions of a userid with the same standing are one caller, so that a job belongs to the person and not to a
connection; who shares a userid with others is another one with each request. A caller nobody waits for is forgotten
when ``IDLE_MAX`` others came after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from broker.errors import HeadgateError
from broker.nfp.client.errors import JobCancelled
from broker.nfp.client.events import Event
from broker.nfp.client.job import Job, JobOwner, Limits, Question, Submission
from broker.nfp.frames import Packet
from broker.nfp.names import ASKED_BY_MMI, Code, Command
from broker.nfp.opening import read_object
from broker.nfp.outcome import STATUS_WORDS
from broker.nfp.principal import Principal
from broker.nfp.server.broker import NfpBroker
from broker.nfp.targets import ALL, Target

FEATURES: Final = frozenset({"push"})
IDLE_MAX: Final = 256
"""Callers kept although nobody of them waits: a dashboard's user comes back every few seconds."""
_ENDS: Final = tuple(STATUS_WORDS.values())
LIMITS: Final = Limits(events_msgs=1024, events_bytes=4 << 20)
"""What one request keeps for its reader; older events make room, and the reader is told how many."""


class Caller(JobOwner):
    """One caller.

    Attributes:
        principal: who it is.
        name: its identity at the NFP broker. peer: how it is connected there.
        jobs: by uuid, one for each request that follows it.
    """

    limits = LIMITS

    def __init__(self, broker: NfpBroker, principal: Principal, number: int) -> None:
        self.principal = principal
        self.jobs: dict[str, list[Job]] = {}
        self._expected: dict[Job, int] = {}
        self._deleted: set[Job] = set()
        self.name = f"flux:{principal.userid}:{principal.standing}{f':{number}' if number else ''}"
        self.peer = broker.local_peer(principal, self.name, self._take, FEATURES)
        self.peer.on_lost = self._lose

    @contextmanager
    def follow(self, uuid: str, service: str, task: str, target: Target, body: bytes = b"") -> Iterator[Job]:
        """The job as one request sees it, in the block; ``body`` b"": it is not known any more."""
        submission = Submission(uuid, service, task, target, body, math.inf, math.inf)
        job = Question(submission, self, once=True) if service in ASKED_BY_MMI else Job(submission, self)
        job.divert_stream(lambda chunk: job.note(Event("stream", body=chunk), len(chunk)))
        mine = self.jobs.setdefault(uuid, [])
        mine.append(job)
        try:
            yield job
        finally:
            mine.remove(job)
            self._expected.pop(job, None)
            if not mine:
                del self.jobs[uuid]

    def expect(self, job: Job, results: int) -> None:
        """The request waits for so many results and no more: there are no others yet, or ``job`` is over."""
        self._expected[job] = results
        self.keep_progress(job)

    def delete(self, job: Job) -> None:
        """Have the broker end ``job``."""
        self.send(job, Command.DELETE, target=ALL)

    # -- JobOwner ---------------------------------------------------------------------------------

    def send(self, job: Job, command: Command, body: bytes = b"", target: Target | None = None) -> bool:
        """See ``JobOwner.send``."""
        self.peer.submit(job.packet(command, body, target))
        return self.peer.alive

    def keep_progress(self, job: Job) -> None:
        """See ``JobOwner.keep_progress``."""
        settled = len(job.outcome.results) + len(job.outcome.failures)
        if settled >= self._expected.get(job, math.inf):
            job.finish(None)

    async def cancel(self, job: Job) -> bool:
        """See ``Job.cancel``; it waits for the answer."""
        self._deleted.add(job)
        try:
            self.delete(job)
            await job.wait()
        finally:
            self._deleted.discard(job)
        return isinstance(job.error, JobCancelled)

    # -- from the broker --------------------------------------------------------------------------

    def _take(self, packet: Packet) -> None:
        for job in list(self.jobs.get(packet.uuid, ())):
            fresh = not job.outcome.acknowledged
            job.take(packet)
            if job in self._deleted and _was_over(packet):  # its results may go to somebody else
                job.finish(None)
            if fresh and packet.status == Code.ACCEPTED and not job.workers:
                # nobody was chosen yet, but the caller has to know the uuid
                job.note(Event("dispatched", body={}))

    def _lose(self, why: str) -> None:
        for job in [each for mine in self.jobs.values() for each in mine]:
            job.give_up(HeadgateError(f"the NFP broker has left: {why}"))


def _was_over(packet: Packet) -> bool:
    """Whether it answers the DELETE of a job that had ended before."""
    return packet.status == Code.ACCEPTED and read_object(packet.data).get("status") in _ENDS


class Callers:
    """All of them; ``close`` ends them."""

    def __init__(self, broker: NfpBroker) -> None:
        self._broker = broker
        self._callers: dict[tuple[Principal, int], Caller] = {}
        self._strangers = 0

    def find(self, principal: Principal) -> Caller:
        """The one of ``principal``."""
        number = 0
        if principal.nobody:
            self._strangers = number = self._strangers + 1
        known = self._callers.pop((principal, number), None)
        if known is None or not known.peer.alive:
            known = Caller(self._broker, principal, number)
            self._trim()
        self._callers[principal, number] = known  # behind all others: the latest
        return known

    def _trim(self) -> None:
        idle = [who for who, caller in self._callers.items() if not caller.jobs]
        for who in idle[: max(0, len(idle) - IDLE_MAX)]:
            self._callers.pop(who).peer.close()

    def close(self) -> None:
        """Disconnect every caller."""
        for caller in self._callers.values():
            caller.peer.close()
        self._callers.clear()
