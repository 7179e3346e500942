"""How far a job of Spark has come: asked of Spark now and then, drawn by rich on a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S: Final = 0.5


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
