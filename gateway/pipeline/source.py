"""``spark.read.format("headgate")`` and ``spark.readStream.format("headgate")``: a journal as a table ``messages``.

Options::

    path                 the journal's directory, seen by all workers, or the URL of a store (``load(DIR)``); to be read
                         once also a segment, a pattern (``*/journal``), or a list of these
    payload              false; true adds the column ``payload``
    onCorrupt            fail (default) or skip: damage and deleted segments are an error, or passed over
    startingTs, endingTs ISO 8601 (UTC unless it says otherwise) or ns since 1970: rows from, and before
    splitBytes           64m: what a task reads at most; a longer segment is read by several, short ones by one
    tasks                4 a core of the driver: so many tasks, where none reads more than ``splitBytes``
    startingOffsets      stream: where it begins, JSON as in Spark's checkpoint; default: where the journal does
    spans                false; true: not records, but which bytes of which segments hold them, for a job that reads
                         them itself
    maxBytesPerTrigger   stream: bytes of a batch (1048576, 64m)

``.schema("seq bigint, topic string")`` reads those columns only, which saves most of the time. Any session of an
environment with Headgate finds the source by its name (``pyspark_headgate``); workers must be able to import it.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob, has_magic
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from broker.errors import ConfigError
from broker.journal.stores import is_url
from broker.times import ns_of
from gateway import delta
from gateway.pipeline import schema, spans
from gateway.pipeline.errors import PipelineError
from gateway.pipeline.spans import Loss, Offset, Position, Span

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_TASKS_A_CORE: Final = 4
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE: Final = re.compile(r"(\d{1,15})\s*([kmg]?)b?", re.IGNORECASE)


def size_of(text: str) -> int:
    """Bytes of ``1048576``, ``64m``, ``1g``; above 0, or a ValueError.

    >>> size_of("64k")
    65536
    """
    if (match := _SIZE.fullmatch(text)) and (size := int(match[1]) * _UNITS[match[2].lower()]):
        return size
    raise ValueError(text)


def moment_ns(text: str) -> int:
    """Ns since 1970 of ISO 8601 (UTC unless it says otherwise) or of digits; else a ValueError.

    >>> moment_ns("1970-01-01T00:00:01")
    1000000000
    """
    return int(text) if re.fullmatch(r"-?\d{9,20}", text) else ns_of(text)


def _offset(text: str) -> Offset:
    return {writer: Position.of(at)._asdict() for writer, at in json.loads(text).items()}


def _flag(text: str) -> bool:
    return ("false", "true").index(text.lower()) > 0


_BYTES: Final = "bytes above 0, such as 1048576 or 64m"
_TIME: Final = "a date and time such as 2026-01-31T12:00:00, or ns since 1970"
_TAKEN: Final[Mapping[str, tuple[str, Callable[[str], Any], str]]] = {
    "payload": ("payload", _flag, "true or false"),
    "onCorrupt": ("skip", lambda text: ("fail", "skip").index(text.lower()) > 0, "fail or skip"),
    "startingTs": ("since_ns", moment_ns, _TIME),
    "endingTs": ("until_ns", moment_ns, _TIME),
    "splitBytes": ("split_bytes", size_of, _BYTES),
    "tasks": ("tasks", size_of, "a number above 0"),
    "startingOffsets": ("starting", _offset, 'JSON such as {"rank0": {"seg": 0, "pos": 64, "next": 0}}'),
    "spans": ("spans", _flag, "true or false"),
    "maxBytesPerTrigger": ("max_bytes", size_of, _BYTES),
}
"""Each option, where it goes, what reads it, and what is expected."""


@dataclass(frozen=True)
class Options:
    """The options of the source, checked."""

    paths: tuple[str, ...]
    payload: bool = False
    skip: bool = False
    since_ns: int = -(1 << 63)
    until_ns: int = (1 << 63) - 1
    split_bytes: int = spans.TASK_BYTES
    tasks: int = _TASKS_A_CORE * (os.cpu_count() or 1)
    starting: Offset = field(default_factory=dict)
    spans: bool = False
    max_bytes: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """From Spark's options, whose names know no case.

        Raises:
            PipelineError: an option is unknown or cannot be; the text says what was expected.
        """
        values = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(set(values) - {name.lower() for name in (*_TAKEN, "path", "paths")}):
            raise PipelineError(
                f"option {unknown[0]:.64}: unknown; there are path, {', '.join(sorted(_TAKEN))}"
            )
        paths = json.loads(values["paths"]) if values.get("paths") else [values.get("path", "")]
        if not all(paths):
            raise PipelineError("option path: missing; expected the journal's directory: .load(DIR)")
        read = {}
        for name, (kept, parse, expected) in _TAKEN.items():
            if (text := values.get(name.lower())) is not None:
                try:
                    read[kept] = parse(text.strip())
                except (ValueError, AttributeError, KeyError, TypeError):
                    raise PipelineError(f"option {name}: {text!r:.64}; expected {expected}") from None
        return cls(tuple(delta.place_of(each) for each in paths), **read)

    def journals(self) -> list[str]:
        """What is to be read, patterns looked up.

        Raises:
            ConfigError: nothing is like a pattern.
        """
        found: list[str] = []
        for each in self.paths:
            some = sorted(glob(each)) if not is_url(each) and has_magic(each) else [each]
            if not some:
                raise ConfigError(f"{each}: no such journal", errno.ENOENT)
            found += some
        return found

    @property
    def journal(self) -> str:
        """The one that a stream reads: of two of them a writer might have the same name.

        Raises:
            PipelineError: there are several.
        """
        if len(found := self.journals()) > 1:
            raise PipelineError(f"option path: {len(found)} journals; a stream reads one")
        return found[0]

    def packed(self, wanted: Iterable[Span]) -> list[Part]:
        """What tasks read."""
        return [Part(pack) for pack in spans.packed(wanted, self.tasks, self.split_bytes)]

    @property
    def times(self) -> tuple[int, int]:
        """From which ns on, and before which."""
        return self.since_ns, self.until_ns


class Part(InputPartition):  # type: ignore[misc]  # pyspark is not typed for us
    """What one task reads; ``offset``: where a stream's batch begins and ends, in the first one of it."""

    def __init__(self, given: Sequence[Span], offset: Any = None) -> None:
        super().__init__(None)
        self.spans, self.offset = tuple(given), offset


class HeadgateSource(DataSource):  # type: ignore[misc]
    """The source ``headgate``."""

    @classmethod
    def name(cls) -> str:
        """As ``format`` takes it."""
        return "headgate"

    def schema(self) -> str:
        """Columns of ``messages``; with the option ``payload`` that column, too."""
        options = Options.parse(self.options)
        if options.spans:
            return spans.DDL
        return f"{schema.MESSAGES.ddl}, {schema.PAYLOAD.ddl}" if options.payload else schema.MESSAGES.ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """The journal as it is."""
        return BatchReader(Options.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark calls it so
        """The same journal as it grows."""
        return StreamReader(Options.parse(self.options), schema)


class _Reader:
    """What both have: they read parts."""

    def __init__(self, options: Options, shape: StructType) -> None:
        self.options, self.names = options, tuple(shape.names)
        if not options.spans:
            check_columns(options, shape)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one part."""
        import pyarrow as pa

        from gateway.pipeline.arrow import record_batches

        if not isinstance(partition, Part):  # an empty journal has one partition without any
            return
        if self.options.spans:
            pack = spans.as_pack(partition.spans, partition.offset)
            yield pa.RecordBatch.from_pydict({spans.DDL.split()[0]: [pack]})
            return
        for span in partition.spans:
            found = record_batches(span, self.names, skip=self.options.skip, times=self.options.times)
            yield from (each for each in found if not isinstance(each, Loss))


class BatchReader(_Reader, DataSourceReader):  # type: ignore[misc]
    """All that the journal holds when the query is planned."""

    def partitions(self) -> list[Part]:
        """As many bytes for each task."""
        return self.options.packed(
            span for journal in self.options.journals() for span in spans.whole(journal)
        )


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Offsets: ``{writer: position}`` (``spans``); always the end of a complete block."""

    _target: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark calls it so
        """Nothing read of any writer, unless it is to begin elsewhere."""
        return self.options.starting

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark calls it so
        """In bytes."""
        return ReadMaxBytes(self.options.max_bytes) if self.options.max_bytes else ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark calls it so
        """As far as complete blocks and the limit go."""
        most = None if isinstance(limit, ReadAllAvailable) else self.options.max_bytes
        return spans.latest(self.options.journal, start, most, self._target)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark calls it so
        """What comes later is for the next run."""
        self._target = spans.latest(self.options.journal, {})

    def partitions(self, start: Offset, end: Offset) -> list[Part]:
        """The spans between two offsets; one that cannot be read any more ends the query, unless it is to be skipped.

        Raises:
            Lost: a segment was deleted; the text names it.
        """
        planned = spans.plan(self.options.journal, start, end)
        for span in planned:
            span.refuse(skip=self.options.skip)
        parts = self.options.packed(planned) or [Part(())]
        changed = {writer: at for writer, at in end.items() if at != start.get(writer)}
        since = {writer: start[writer] for writer in changed if writer in start}
        parts[0].offset = (since, changed)
        return parts


def check_columns(options: Options, shape: StructType) -> None:
    """Raise unless all columns are ours, of the types that they have.

    Raises:
        PipelineError: one is not.
    """
    known = {
        each.name: each for each in (*schema.MESSAGES.columns, *([schema.PAYLOAD] if options.payload else []))
    }
    for asked in shape:
        name, kind = asked.name, asked.dataType.simpleString()
        if name not in known:
            hint = "; it needs the option payload=true" if name == schema.PAYLOAD.name else ""
            raise PipelineError(f"no column {name!r:.64} in messages{hint}; there are {', '.join(known)}")
        if known[name].ddl != f"`{name}` {kind}":
            raise PipelineError(
                f"column {name} of messages: {kind:.64} asked for; it is {known[name].ddl.split()[1]}"
            )
