"""Spark's part of a stream without Spark: a checkpoint, batch after batch of our source, each a task of this process.

Where a batch ends is written down before it begins; a batch whose end was not written down is done again. The real one
is tried beside it (``test_stream``), and takes a hundred times as long.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.types import StructType

from broker import atomic
from gateway.pipeline.source import Options, StreamReader


class Rows:
    """The DataFrame of a batch: parts, each for one task."""

    def __init__(self, reader: StreamReader, parts: list[Any]) -> None:
        self._reader, self._parts = reader, parts

    def mapInArrow(self, task: Callable[[Iterator[pa.RecordBatch]], Any], _ddl: str) -> Any:
        return SimpleNamespace(
            collect=lambda: [
                row
                for part in self._parts
                for batch in task(self._reader.read(part))
                for row in batch.to_pylist()
            ]
        )


class Loop:
    """A session, its reader and writer, and the query: what `Stream` asks of each."""

    isActive = False  # noqa: N815 - Spark's name
    id = ""
    sparkContext = SimpleNamespace(defaultParallelism=2)  # noqa: N815 - Spark's name

    @property
    def readStream(self) -> Self:
        return self

    writeStream = readStream  # noqa: N815 - Spark's name

    def format(self, _name: str) -> Self:
        return self

    def options(self, **given: str) -> Self:
        self._options = given
        return self

    def load(self, path: str) -> Self:
        self._options["path"] = path
        return self

    def foreachBatch(self, job: Callable[[Rows, int], None]) -> Self:
        self._job = job
        return self

    def trigger(self, **_when: object) -> Self:
        return self

    def option(self, _name: str, checkpoint: str) -> Self:
        self._checkpoint = Path(checkpoint)
        return self

    def start(self) -> Self:
        told = self._checkpoint / "metadata"
        if not told.exists():
            for name in ("offsets", "commits"):
                (self._checkpoint / name).mkdir(parents=True)
            told.write_text(uuid.uuid4().hex)
        self.id = told.read_text()
        return self

    def stop(self) -> None:
        """It has ended already."""

    def exception(self) -> None:
        """It was raised."""

    def awaitTermination(self) -> None:
        """All there is now."""
        reader = StreamReader(Options.parse(self._options), StructType([]))
        reader.prepareForTriggerAvailableNow()
        offsets, commits = self._checkpoint / "offsets", self._checkpoint / "commits"
        while True:
            number = len(list(commits.iterdir()))
            start = json.loads((offsets / str(number - 1)).read_text()) if number else reader.initialOffset()
            planned = offsets / str(number)
            if not planned.exists():
                until = reader.latestOffset(start, reader.getDefaultReadLimit())
                if until == start:
                    return
                atomic.write(planned, json.dumps(until).encode())
            until = json.loads(planned.read_text())
            self._job(Rows(reader, reader.partitions(start, until)), number)
            (commits / str(number)).touch()
