"""The driver's lines of a log: what was built, which faults were played, who used what. See `tests.proof.record`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any


class Scribe(ABC):
    """What the driver writes."""

    @abstractmethod
    def line(self, ev: str, **fields: Any) -> float:
        """Write one line; return its time."""

    def world(
        self,
        parents: Sequence[int | None],
        hosts: Mapping[str, int],
        *,
        seed: int,
        seconds: float,
        **more: Any,
    ) -> float:
        """What was built. The first line of the driver.

        Args:
            parents: of each rank; None for rank 0.
            hosts: the rank that each member beside the brokers is attached to and runs beside (gateway, nfp, oslo-1 …).
            seed: of the schedule.
            seconds: for how long load was meant to run.
            more: ``tells=True`` when the driver will write `told` lines from the logs of all brokers.
        """
        return self.line(
            "world", parents=list(parents), hosts=dict(hosts), seed=seed, seconds=seconds, **more
        )

    def load(self, on: bool) -> float:
        """The load begins, or has been told to end."""
        return self.line("load", on=on)

    def fault(
        self,
        begin: bool,
        kind: str,
        *,
        members: Sequence[str] = (),
        ranks: Sequence[int] = (),
        links: Sequence[Sequence[int]] = (),
        settle_s: float = 0.0,
        **more: Any,
    ) -> float:
        """A fault is about to be applied (begin), or has been taken away.

        What must be survived unnoticed (a clock step, a full disk of the journal, a new certificate, a short delay)
        names no members, ranks or links: then everything is demanded all the same. Say on whom it was played in
        ``more``.

        Args:
            begin: which of the two. The first is written before anything is done, the second when all is done.
            kind: ``kill9``, ``freeze``, ``partition``, ``oneway``, ``netem``, ``slow``, ``disk``, ``clock``,
                ``certificate``, ``key``, ``restart``, ``directory``.
            members: whose processes it touches (``broker-3``, ``gateway``, a party).
            ranks: whose host or broker it touches: nothing is demanded of a path through them.
            links: pairs of ranks whose hosts cannot reach each other (well), while both go on: for a partition every
                pair across it, not only those of the tree.
            settle_s: for how long after its end nothing is demanded of what it touched.
            more: whatever helps a person; a number in ``number`` joins begin and end of faults that overlap.
        """
        return self.line(
            "fault",
            begin=begin,
            kind=kind,
            members=list(members),
            ranks=list(ranks),
            links=[list(pair) for pair in links],
            settle_s=settle_s,
            **more,
        )

    def stall(self, seconds: float) -> float:
        """The machine did not run the driver for so long: nobody's time-out means anything then."""
        return self.line("stall", seconds=round(seconds, 3))

    def events_lost(self, rank: int, first: int, last: int) -> float:
        """A broker's own log says which numbers of events it has missed: written after the run, from those logs."""
        return self.line("told", rank=rank, first=first, last=last)

    def baseline(
        self,
        when: str,
        member: str,
        rss_kib: int,
        fds: int,
        tasks: int | None = None,
        *,
        pid: int | None = None,
    ) -> float:
        """What a member uses. when: ``before`` the load, or ``after`` it has ended and everything is quiet."""
        return self.line("baseline", when=when, member=member, rss_kib=rss_kib, fds=fds, tasks=tasks, pid=pid)

    def member(self, name: str, did: str, code: int | None = None, **more: Any) -> float:
        """A process has ``started``, ``ready`` or ``exited`` (code: negative for a signal)."""
        return self.line("member", name=name, did=did, code=code, **more)

    def note(self, text: str, **more: Any) -> float:
        """Anything a person may want to know; the checker does not look at it."""
        return self.line("note", text=text, **more)
