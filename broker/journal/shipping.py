"""Sealed segments of a journal go to a store, each once.

Theory of operation. What there is to do is told by comparing the folder with the store, by names and sizes; nothing
else is kept, so that whoever was killed goes on where it was, on another machine, too. A segment has its name in the
store when it is there whole and read back (`Store.put`). What fails is tried again, later each time, while the writer
goes on and keeps as much as its retention says: a store that is away for longer than that costs segments, which are
counted here and seen as gaps by ``headgate journal verify URL``.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

from broker.backoff import Backoff
from broker.errors import ConfigError
from broker.journal.layout import HEADER_BYTES
from broker.journal.options import JournalOptions
from broker.journal.reading.segments import listing, live_writers
from broker.journal.stores import Store, line_of
from broker.loglines import Stderr
from broker.secret import convert_secret, masked

log = logging.getLogger("headgate")

EVERY_S: Final = 5.0
"""How often the folder is looked at."""
PAUSE_S: Final = (1.0, 60.0)
"""Before it is tried again: the first pause and the longest; it doubles in between."""
QUIET_S: Final = 60.0
"""While following, the newest segment of a writer that is not seen counts as sealed so long after it grew: the locks of
another container do not show here."""
LEAVE_S: Final = 10.0
"""How long the writer of a broker that has ended is waited for: its last segment is sealed then."""


class Shipped(msgspec.Struct):
    """What became of the segments of a folder, since a `Shipper` was made."""

    segments: int = 0
    """Sent."""
    size: int = 0
    """Their bytes."""
    there: int = 0
    """Had been in the store before."""
    deleted: int = 0
    """Deleted here, being there."""
    missed: int = 0
    """Deleted by retention before they were sent."""
    failures: int = 0
    """Attempts that failed."""


class Local(msgspec.Struct, frozen=True):
    """A segment that is to be in the store."""

    name: str
    path: str
    writer: str
    size: int
    newest: bool
    """Of its writer, which looks at it when it starts again."""


class Shipper:
    """One journal and one store.

    Args:
        directory: of the journal.
        url: of the store, see ``stores``.
        writer: ship of this one only.
        delete: delete here what is there, except the newest segment of a writer.

    Attributes:
        counts: what became of the segments.

    Raises:
        ConfigError: the URL is none, or nothing here speaks its scheme.
    """

    def __init__(self, directory: str, url: str, *, writer: str | None = None, delete: bool = False) -> None:
        self.counts = Shipped()
        self._directory = directory
        self._store = Store(url)
        self._writer = writer
        self._delete = delete
        self._waiting: set[str] = set()
        self._there: dict[str, int] | None = None

    def round(self, progress: Callable[[int, int], None] | None = None, *, quiet_s: float = 0.0) -> None:
        """Send what is sealed and not there.

        Args:
            progress: called with bytes that are done, and all of this round.
            quiet_s: how long the newest segment must not have grown to count as sealed.

        Raises:
            ConfigError: there is no such folder; or the store has a segment of the same name of another journal.
            OSError: the store does not answer, or refuses; what was sent until then is there.
        """
        sealed = self._sealed(quiet_s)
        names = {each.name for each in sealed}
        self._waiting |= names
        there = self._in_store()
        self._waiting -= there.keys()
        self.counts.missed += len(self._waiting - names)
        self._waiting &= names
        todo = [each for each in sealed if there.get(each.name) != each.size]
        done, whole = 0, sum(each.size for each in todo)
        for each in todo:
            if each.name in there:  # of another size: sent before it grew, or a segment of another journal
                self._check_same(each)
            try:
                for size in self._store.put(each.name, each.path):
                    done += size
                    if progress is not None:
                        progress(done, whole)
            except BaseException as error:
                self._store.discard(each.name)
                if isinstance(error, FileNotFoundError) and not os.path.exists(each.path):
                    continue  # retention was faster: the next round counts it
                raise
            there[each.name] = each.size  # what is there is asked once, and again behind a failure only
            self._waiting.discard(each.name)
            self.counts.segments += 1
            self.counts.size += each.size
        if self._delete and (done_with := [each for each in sealed if not each.newest]):
            # looked at anew: another shipper of this folder may have sent a segment as it was before it grew
            there = self._there = self._store.sizes()
            self._discard([each for each in done_with if there.get(each.name) == each.size])

    def _in_store(self) -> dict[str, int]:
        """Sizes of what is there. One look is enough: this journal's segments are sent from here alone."""
        if self._there is None:
            try:
                self._there = self._store.sizes()
            except FileNotFoundError:
                self._there = {}  # nothing yet
            if not self.counts.segments:  # looked at again behind a failure, it holds what was sent from here
                own = {os.path.basename(path) for path, *_ in listing(self._directory, self._writer)}
                self.counts.there = len(self._there.keys() & own)
        return self._there

    def _sealed(self, quiet_s: float) -> list[Local]:
        """What does not grow any more: all but the newest of a writer that is at work."""
        theirs = listing(self._directory, self._writer)
        living = live_writers(self._directory)
        sealed = []
        for at, (path, writer, _first) in enumerate(theirs):
            newest = at + 1 == len(theirs) or theirs[at + 1][1] != writer
            if newest and writer in living:
                continue
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue  # retention was faster
            if not newest or time.time() - status.st_mtime >= quiet_s:
                sealed.append(Local(os.path.basename(path), path, writer, status.st_size, newest))
        return sealed

    def _check_same(self, segment: Local) -> None:
        """Raise unless the one that is there is the same, of before it grew."""
        with open(segment.path, "rb") as file:
            ours = file.read(HEADER_BYTES)
        if self._store.head(segment.name, HEADER_BYTES) != ours:
            raise ConfigError(
                f"{masked(self._store.url)} has a {segment.name} of another journal: ship to another folder, or give "
                "the writer another name"
            )

    def _discard(self, segments: list[Local]) -> None:
        for each in segments:
            try:
                os.unlink(each.path)
            except OSError as error:
                log.warning("journal: %s cannot be deleted: %s", each.path, error.strerror)
            else:
                self.counts.deleted += 1

    def follow(self, wait: Callable[[float], bool], every_s: float = EVERY_S) -> None:
        """Round after round; one that fails is done again after a pause.

        Args:
            wait: waits so many seconds; True when this was all.
            every_s: seconds between two rounds.

        Raises:
            ConfigError: see ``round``.
        """
        backoff = Backoff(*PAUSE_S, spread=False)
        while True:
            try:
                self.round(quiet_s=QUIET_S)
                backoff.reset()
                seconds = every_s
            except OSError as error:
                self.counts.failures += 1
                seconds, url = backoff.after(), self._store.url
                log.warning("journal: %s: %s; again in %g s", masked(url), line_of(error, url), seconds)
                self._there = None  # what became of it is asked
            if wait(seconds):
                return


def main() -> int:
    """Ship as long as standard input is open, and then what the last writer leaves; its first line are the options."""
    logging.basicConfig(
        level=logging.INFO, handlers=[Stderr(logging.Formatter("headgate %(levelname)s %(message)s"))]
    )
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=JournalOptions, dec_hook=convert_secret)
    assert options.ship_to is not None
    directory, writer, url = options.directory, options.writer, options.ship_to.reveal()
    shipper = Shipper(directory, url, writer=writer)

    def ended(seconds: float) -> bool:
        return bool(select.select([sys.stdin], [], [], seconds)[0])

    try:
        shipper.follow(ended)
        deadline = time.monotonic() + LEAVE_S
        while writer in live_writers(directory) and time.monotonic() < deadline:
            time.sleep(0.1)
        shipper.round()
    except (ConfigError, OSError) as error:
        log.error("journal: shipping to %s ends: %s", masked(url), line_of(error, url))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
