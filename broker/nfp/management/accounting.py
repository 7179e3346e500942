"""Who used how much: jobs, failures, bytes and busy seconds by holder, key and service (NFP, "Accounting", is TBD).

Numbers are added up in memory and written down as differences, at most every ``FLUSH_S`` of activity: a broker that is
killed forgets at most that much. ``failed``, ``expired`` and ``cancelled`` count jobs that ended so (see ``outcome``).
Busy seconds run from dispatch to the recorded result, on the monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from broker.nfp.contract import JobEvent, Journal
from broker.nfp.outcome import CANCELLED, EXPIRED, FAILED
from broker.nfp.records import ACCOUNTS_MAX, OTHERS, Unused, Used

FLUSH_S: Final = 10.0
"""How much activity a killed broker may forget."""
OPEN_MAX: Final = 200_000
"""Jobs under way, more than a broker takes; one whose end is never told, as it was not stored, makes room some day."""


class Account(NamedTuple):
    """What is added up separately."""

    holder: str
    key: str
    service: str


class Tally(msgspec.Struct, eq=False, gc=False):
    """The sums of an account."""

    jobs: int = 0
    failed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    busy_s: float = 0.0
    expired: int = 0
    cancelled: int = 0

    def used(self, account: Account) -> Used:
        """As it is written down."""
        return Used(
            *account,
            self.jobs,
            self.failed,
            self.bytes_in,
            self.bytes_out,
            round(self.busy_s, 6),
            self.expired,
            self.cancelled,
        )

    def add(self, used: Used | Tally) -> None:
        """Add to these sums."""
        self.jobs += used.jobs
        self.failed += used.failed
        self.bytes_in += used.bytes_in
        self.bytes_out += used.bytes_out
        self.busy_s += used.busy_s
        self.expired += used.expired
        self.cancelled += used.cancelled


class _Open(msgspec.Struct, eq=False, gc=False):
    """A job that has not ended."""

    account: Account
    running: dict[str, float] = {}
    """Worker -> when it was given the job."""


class Accounting:
    """Adds up what job events tell.

    Args:
        journal: takes ``Used`` operations.
        clock: monotonic seconds.
    """

    def __init__(self, journal: Journal, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._clock = clock
        self._flushed_at = clock()
        self._totals: dict[Account, Tally] = {}
        self._fresh: dict[Account, Tally] = {}
        self._open: dict[str, _Open] = {}
        self._acts: dict[str, Callable[[JobEvent], None]] = {
            "submitted": self._submitted,
            "dispatched": self._dispatched,
            "stream": self._streamed,
            "finished": self._finished,
            "returned": self._stopped,
            **dict.fromkeys(("closed", "expired", "cancelled"), self._ended),
        }

    def restore(self, known: Iterable[Used]) -> None:
        """Add what a former broker wrote down."""
        for used in known:
            account = Account(used.holder, used.key, used.service)
            self._totals.setdefault(account, Tally()).add(used)

    def count(self, event: JobEvent) -> None:
        """Add what ``event`` tells to the sums."""
        act = self._acts.get(event.kind)
        if act is not None:
            act(event)

    def _submitted(self, event: JobEvent) -> None:
        tally = self._tally(self._job(event).account)
        tally.jobs += 1
        tally.bytes_in += event.size

    def _dispatched(self, event: JobEvent) -> None:
        self._job(event).running[event.worker] = self._clock()

    def _streamed(self, event: JobEvent) -> None:
        self._tally(self._job(event).account).bytes_out += event.size or len(event.body)

    def _finished(self, event: JobEvent) -> None:
        self._tally(self._job(event).account).bytes_out += event.size
        self._stopped(event)

    def _stopped(self, event: JobEvent) -> None:
        """A worker has ended its part, or lost it."""
        job = self._job(event)
        started = job.running.pop(event.worker, None)
        if started is not None:
            self._tally(job.account).busy_s += max(0.0, self._clock() - started)

    def _ended(self, event: JobEvent) -> None:
        """The last event of a job is one of closed, expired and cancelled."""
        self._add_up(event)
        if self._fresh and self._clock() - self._flushed_at >= FLUSH_S:
            self.flush()

    def _add_up(self, event: JobEvent) -> None:
        job = self._open.pop(event.uuid, None)
        if job is None:
            return
        tally = self._tally(job.account)
        tally.failed += event.state == FAILED
        tally.expired += event.state == EXPIRED
        tally.cancelled += event.state == CANCELLED
        now = self._clock()
        for started in job.running.values():  # the broker ended it, they were busy until now
            tally.busy_s += max(0.0, now - started)

    def _job(self, event: JobEvent) -> _Open:
        job = self._open.get(event.uuid)
        if job is None:
            while len(self._open) >= OPEN_MAX:
                del self._open[next(iter(self._open))]
            job = self._open[event.uuid] = _Open(Account(event.holder, event.key, event.service))
        return job

    def _tally(self, account: Account) -> Tally:
        tally = self._fresh.get(account)
        if tally is None:
            if account not in self._totals and len(self._totals) + len(self._fresh) >= ACCOUNTS_MAX:
                self._fold()
            tally = self._fresh.setdefault(account, Tally())
        return tally

    def _fold(self) -> None:
        """Add up the smallest accounts under ``OTHERS``, here and in the store."""
        self.flush()
        others = Account(OTHERS, "", OTHERS)
        rest = Tally()
        found = sorted(self._totals, key=lambda each: (self._totals[each].busy_s, self._totals[each].jobs))
        for account in found[: len(found) - ACCOUNTS_MAX // 2]:
            if account != others:
                rest.add(self._totals.pop(account))
                self._journal.put(Unused(*account))
        self._totals.setdefault(others, Tally()).add(rest)
        self._journal.put(rest.used(others))

    def flush(self) -> None:
        """Write down what is new; call it before the end."""
        self._flushed_at = self._clock()
        fresh, self._fresh = self._fresh, {}
        for account, tally in fresh.items():
            self._totals.setdefault(account, Tally()).add(tally)
            self._journal.put(tally.used(account))

    def usage(self) -> list[Used]:
        """All sums up to now, the busiest account first."""
        sums: dict[Account, Tally] = {}
        for part in (self._totals, self._fresh):
            for account, tally in part.items():
                sums.setdefault(account, Tally()).add(tally)
        used = [tally.used(account) for account, tally in sums.items()]
        return sorted(used, key=lambda one: (-one.jobs, one.holder, one.service))
