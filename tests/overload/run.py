"""One load beside the victims."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from tests.overload.attacker import Attacker, Stuck
from tests.overload.figures import FDS_MORE, MEMORY_MIB, Figures, timed
from tests.overload.stand import Stand, open_stand
from tests.overload.victims import Victims

SAMPLE_S = 0.05
TIDY_S = 10.0
"""How long descriptors and memory have to come back."""


class Peak(threading.Thread):
    """The most memory of each process."""

    def __init__(self, stand: Stand) -> None:
        super().__init__(name="memory", daemon=True)
        self.stand = stand
        self.most = stand.rss_mib()
        self.stopping = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.stopping.wait(SAMPLE_S):
            for name, mib in self.stand.rss_mib().items():
                self.most[name] = max(self.most[name], mib)


def crowding() -> float:
    """Return how many times longer all takes than on an idle machine: what is ready to run, by cores.

    It is the larger one of the last minute's mean and of now, for the mean of a run that has just begun is an idle one.
    """
    minute, _five, _fifteen, running_of_all, _last = Path("/proc/loadavg").read_text().split()
    ready = max(float(minute), float(running_of_all.split("/")[0]))
    return max(1.0, ready / len(os.sched_getaffinity(0)))


class Arena:
    """A stand with an attacker, for one load after the other."""

    def __init__(self, stand: Stand, log: Path) -> None:
        self.stand, self._log = stand, log
        self.attacker = Attacker(stand.place, log)

    def run(self, load: str, seconds: float, seed: int = 0) -> Figures:
        """Make the load for so long; what it has cost."""
        stand = self.stand
        rss, fds, mark = stand.rss_mib(), stand.fds(), stand.mark()
        peak, victims = Peak(stand), Victims(stand)
        stuck = []
        sent = 0
        try:
            victims.await_rounds(1)
            try:
                self.attacker.begin(load, seconds, seed)
                sent = self.attacker.end(seconds)
            except Stuck as error:
                stuck.append(str(error))
                self.attacker.close()
                self.attacker = Attacker(stand.place, self._log)
            victims.await_rounds(1)
        finally:
            notes = victims.finish()
            peak.stopping.set()
            peak.join()
        rss_after, fds_after = self._tidy(rss, fds)
        return Figures(
            load=load,
            seed=seed,
            seconds=seconds,
            crowding=crowding(),
            sent=sent,
            ops={op: timed(each) for op, each in sorted(notes.seconds.items())},
            failed=dict(notes.failed) | dict.fromkeys(stuck, 1),
            ended=notes.ended + stand.complaints(mark),
            lost=notes.lost,
            rss_before=rss,
            rss_peak=peak.most,
            rss_after=rss_after,
            fds_before=fds,
            fds_after=fds_after,
        )

    def _tidy(self, rss: dict[str, float], fds: dict[str, int]) -> tuple[dict[str, float], dict[str, int]]:
        """Wait until descriptors are back, and memory, or for ``TIDY_S``; both."""
        until = monotonic() + TIDY_S
        while True:
            rss_now, fds_now = self.stand.rss_mib(), self.stand.fds()
            more_fds = any(fds_now[name] > fds[name] + FDS_MORE for name in fds)
            more_rss = any(rss_now[name] > rss[name] + MEMORY_MIB for name in rss)
            if not (more_fds or (more_rss and self.patient_of_memory)) or monotonic() > until:
                return rss_now, fds_now
            time.sleep(0.02)

    patient_of_memory = True

    def close(self) -> None:
        self.attacker.close()


@contextlib.contextmanager
def open_arena(rundir: Path, beside: str = "") -> Iterator[Arena]:
    """A stand of its own and an attacker; ``beside``: what else is there, see ``open_stand``."""
    with open_stand(rundir, beside) as stand:
        arena = Arena(stand, rundir / "attacker.log")
        try:
            yield arena
        finally:
            arena.close()


def possible() -> bool:
    """Whether this user can be a guest."""
    return os.geteuid() == 0
