"""Gold behind a stream: steps that take in all that was added to bronze meanwhile.

Steps are made in this process and do not hold the stream up: bronze is as fresh as its batches, gold a few seconds
older. What a step leaves open for the next one (``_open``) is kept first; then each table gets its
rows with the number of the last addition they are of, so that a step that was killed adds to no table twice; ``_runs``
gets its row last, and with it the number up to which all tables are made. Tables that are ahead, because a step was
killed or ``batch`` made them, end the next step where they are.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gateway import delta
from gateway.pipeline import lake, runs, schema
from gateway.pipeline.errors import Conflict, PipelineError
from gateway.pipeline.tables.increment import TABLES, Kept, increment
from gateway.pipeline.warehouse import BRONZE, GOLD, Warehouse

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from gateway.pipeline.lake import Snapshot

OnRun = Callable[[runs.Run], None]
_LOOK_S: Final = 0.5
ADDITIONS_MOST: Final = 200
ROWS_MOST: Final = 1_000_000
"""Of one step: what a stream left behind for days is caught up with in pieces."""
PACE_S: Final = 3.0
"""From one step to the next: each adds a file and a version to every table that it has rows of."""


class Follow(threading.Thread):
    """Makes gold as long as the stream runs.

    Args:
        warehouse: which.
        on_run: called after each step.

    Attributes:
        error: what ended it, or None.
    """

    def __init__(self, warehouse: Warehouse, on_run: OnRun | None = None) -> None:
        super().__init__(name="gold", daemon=True)
        self._warehouse, self._on_run = warehouse, on_run
        self._come, self._leave = threading.Event(), threading.Event()
        self._come.set()  # what an earlier stream left
        self._all = False
        self.error: Exception | None = None

    def wake(self) -> None:
        """There is more in bronze."""
        self._come.set()

    def finish(self, *, all_of_it: bool) -> None:
        """End it: behind the last batch, or behind the step that goes on.

        Raises:
            PipelineError: a step failed.
        """
        self._all = all_of_it
        self._leave.set()
        self._come.set()
        self.join()
        if self.error is not None and all_of_it:
            raise self.error

    def run(self) -> None:
        """Step by step."""
        try:
            leaving = False
            while not leaving:
                self._come.wait()
                self._come.clear()
                leaving, began = self._leave.is_set(), time.monotonic()
                while (self._all or not self._leave.is_set()) and self._turn():
                    self._leave.wait(max(0.0, began + PACE_S - time.monotonic()))
                    began = time.monotonic()
        except Exception as error:  # told by whoever waits for the stream
            self.error = error

    def _turn(self) -> bool:
        """One step, unless another job makes gold right now; whether there may be more to do."""
        with self._warehouse.making_gold(wait=self._all) as ours:
            if ours:
                try:
                    run = step(self._warehouse)
                except Conflict:
                    return True
                if run is not None and self._on_run is not None:
                    self._on_run(run)
                return run is not None
        self._come.wait(_LOOK_S)
        return True


def step(warehouse: Warehouse) -> runs.Run | None:
    """Add to gold what came into bronze; None where nothing did.

    Raises:
        Conflict: another job made gold meanwhile.
        PipelineError: the files of an addition are not there any more.
    """
    known, bronze = warehouse.gold(), warehouse.at(schema.MESSAGES.name)
    on = {name: warehouse.at(name) for name in TABLES}
    ahead = [each.done(GOLD) for each in on.values() if each.done(GOLD) > known]
    until = min([bronze.done(BRONZE), known + ADDITIONS_MOST, *ahead])
    if until <= known:
        return None
    notes = bronze.notes(known, BRONZE, until)
    if len(notes) == until - known:
        until = known + _few(notes)
        del notes[until - known :]
    run = runs.Run("gold", "stream", until)
    run.rows_in = sum(note["rows"] for note in notes)
    files = [lake.File(path, "", 0, 0) for note in notes for path in note["files"]]
    if len(notes) < until - known or not bronze.has(files):
        raise PipelineError(
            f"{warehouse}: the gold tables are too far behind to add to them: headgate pipeline batch makes them "
            "anew"
        )
    if files:
        with delta.plain_errors(bronze.place):
            run.rows_out = _add(warehouse, on, _read(bronze, files, run.rows_in), known, until)
    runs.add(warehouse, run.finish(), {GOLD: until})
    return run


def _few(notes: Sequence[Mapping[str, Any]]) -> int:
    """How many additions make a step: no more rows than are well held in memory, but one addition at least.

    >>> _few([{"rows": 600_000}, {"rows": 300_000}, {"rows": 200_000}]), _few([{"rows": 2_000_000}])
    (2, 1)
    """
    rows = itertools.accumulate(int(note["rows"]) for note in notes)
    return max(1, sum(each <= ROWS_MOST for each in rows))


def _read(bronze: Snapshot, files: Sequence[lake.File], count: int) -> ds.Dataset:
    """The rows of files; in memory, unless one addition alone is of more than that is good for."""
    import pyarrow.dataset as ds

    rows = bronze.dataset(files)
    return rows if count > ROWS_MOST else ds.dataset(rows.to_table())


def _add(warehouse: Warehouse, on: Mapping[str, Snapshot], rows: ds.Dataset, known: int, until: int) -> int:
    """Commit what ``rows`` add to each table that has not got it yet; returns how many rows that are."""
    kept, written = Kept(warehouse.left_open), 0
    kept.forget(known)
    added, after = increment(rows, kept.behind(known))
    kept.save(until, after)
    for name, made in added.items():
        if made.num_rows and on[name].done(GOLD) < until:
            on[name].commit(warehouse.write_rows(name, made), done={GOLD: until})
            written += made.num_rows
    return written
