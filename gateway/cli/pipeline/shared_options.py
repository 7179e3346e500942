"""What the verbs share: options, how far a job is on a terminal, the Spark session, leaving at a signal."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from broker.cli.exits import UsageError
from gateway.pipeline.warehouse import Run, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.bronze import Pending

ROW_BYTES: Final = 32
"""A record takes more in a journal, compressed, too."""
LOOK_S: Final = 0.5
"""From one look at the stages of Spark to the next."""

Journal = Annotated[
    str,
    typer.Option(
        "--journal", "-j", metavar="DIR|URL", help="The journal; all workers reach it by this name."
    ),
]
MaybeJournal = Annotated[
    str | None,
    typer.Option("--journal", "-j", metavar="DIR|URL", help="Bring bronze up to this journal first."),
]
Where = Annotated[
    str,
    typer.Option(
        "--warehouse",
        "-w",
        metavar="DIR|URL",
        envvar="HEADGATE_WAREHOUSE",
        show_envvar=True,
        help="The tables; all workers reach it by this name.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark, there: local[2], spark://HOST:7077, yarn, ... Default: what spark-submit says, else local[*].",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be given again."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Let Spark say what it does.")]
Payload = Annotated[bool, typer.Option("--payload", help="Keep payloads in bronze, too.")]
Corrupt = Annotated[
    str,
    typer.Option(
        "--on-corrupt", metavar="fail|skip", help="Damage and deleted segments: stop, or count and name them."
    ),
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="DATE", help="From this date on (2026-01-31, UTC).")
]
Until = Annotated[str | None, typer.Option("--until", metavar="DATE", help="Up to this date, included.")]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", "-t", metavar="NAME", help="Only this table; may be given again."),
]


class Progress:
    """Bars on stderr, one a stage of Spark; nothing where that is no terminal."""

    def __init__(self, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),
            transient=True,
            disable=quiet or not sys.stderr.isatty(),
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self._bars.stop()

    @contextlib.contextmanager
    def stages(self, spark: SparkSession) -> Iterator[None]:
        """A bar for each stage that Spark runs, while it does: how many of its tasks are done."""
        if self._bars.disable:  # nobody asks Spark in vain
            yield
            return
        ended = threading.Event()
        shown: dict[int, Any] = {}
        tracker = spark.sparkContext.statusTracker()

        def look() -> None:
            while not ended.wait(LOOK_S):
                with contextlib.suppress(Exception):  # the session may be ending
                    self._show(shown, [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()])

        watcher = threading.Thread(target=look, name="stages", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
            self._show(shown, [])

    def _show(self, shown: dict[int, Any], stages: list[Any]) -> None:
        """Bars of these stages, and no others."""
        active = {stage.stageId: stage for stage in stages if stage is not None}
        for number in shown.keys() - active.keys():
            self._bars.remove_task(shown.pop(number))
        for number, stage in active.items():
            if number not in shown:
                shown[number] = self._bars.add_task(f"  stage {number}", total=stage.numTasks)
            self._bars.update(shown[number], completed=stage.numCompletedTasks)

    @contextlib.contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """A bar without an end, while something takes its time."""
        task = self._bars.add_task(text, total=None)
        try:
            yield
        finally:
            self._bars.remove_task(task)


@dataclass(frozen=True)
class Spark:
    """How the session is made."""

    master: str | None
    conf: Sequence[str] | None
    verbose: bool

    @contextlib.contextmanager
    def session(
        self, name: str, progress: Progress, *, rows: int | None = None, lasting: bool = False
    ) -> Iterator[SparkSession]:
        """A session, ended behind the block; ``progress`` shows that it takes its time to come up, and its stages.

        Args:
            name: of the verb.
            progress: where its bars are.
            rows: about how many it is for; None: nobody knows.
            lasting: until somebody ends it.

        Raises:
            UsageError: a ``--conf`` without ``=``.
            Missing: PySpark or Java is not there.
        """
        from gateway.pipeline import session

        settings = dict(_pair(each) for each in self.conf or ())
        with progress.waiting("Spark starts"):
            made = session.session(
                self.master,
                f"headgate pipeline {name}",
                settings,
                rows=rows,
                keep=not lasting,
                verbose=self.verbose,
            )
        try:
            with progress.stages(made):
                yield made
        finally:
            keeps = session.keeps_classes(made)
            words = (
                "Spark keeps its classes: from now on it starts in a third of the time"
                if keeps
                else "Spark ends"
            )
            with progress.waiting(words):
                session.close(made)


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise UsageError(f"--conf {text!r:.64}: expected KEY=VALUE")
    return key, value


def rows_of(pending: Pending) -> int:
    """About how many rows a journal has that bronze has not, at most."""
    return sum(span.end - span.start for span in pending.spans) // ROW_BYTES


def skips(corrupt: str) -> bool:
    """What ``--on-corrupt`` means.

    Raises:
        UsageError: neither fail nor skip.
    """
    if corrupt not in ("fail", "skip"):
        raise UsageError(f"--on-corrupt {corrupt!r:.64}: expected fail or skip")
    return corrupt == "skip"


def dates(warehouse: Warehouse, table: str, since: str | None, until: str | None) -> list[str] | None:
    """The dates of a table within bounds; None where none is given.

    Raises:
        UsageError: a bound is no date.
    """
    from datetime import date

    for name, text in (("--since", since), ("--until", until)):
        try:
            date.fromisoformat(text or "2026-01-01")
        except ValueError:
            raise UsageError(f"{name} {text!r:.64}: expected a date such as 2026-01-31") from None
    if since is None and until is None:
        return None
    return [each for each in warehouse.dates(table) if (since or each) <= each <= (until or each)]


class Leave:
    """Whether a signal told this process to leave.

    ``threading.Event`` will not do: its ``set`` takes a lock, which the thread that the signal interrupts may hold.
    """

    def __init__(self) -> None:
        self._told = False
        self._wake: SimpleQueue[None] = SimpleQueue()  # may be put to by a signal handler at any time

    def set(self) -> None:
        """End what waits, from now on."""
        self._told = True
        self._wake.put(None)

    def is_set(self) -> bool:
        """Whether somebody has."""
        return self._told

    def wait(self, seconds: float) -> bool:
        """Wait for that, for so many seconds at most; whether it has come."""
        if not self._told:
            with contextlib.suppress(Empty):
                self._wake.get(timeout=seconds)
        return self._told


@contextlib.contextmanager
def leaving() -> Iterator[Leave]:
    """What SIGINT and SIGTERM set."""
    leave = Leave()
    before = {
        number: signal.signal(number, lambda *_came: leave.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield leave
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def line_of(run: Run) -> str:
    """A run in one line."""
    seconds = (run.finished_ns - run.started_ns) / 1e9
    line = f"{run.job}: {run.rows_in:,} rows read, {run.rows_out:,} written in {seconds:.1f} s by Spark"
    if run.losses:
        line += (
            f"; {len(run.losses)} stretches could not be read ({run.lost_records:,} records): {run.losses[0]}"
        )
    return line
