"""``spark.read.format("headgate")`` and ``spark.readStream.format("headgate")``: a journal as a table ``messages``.

Options::

    path                 the journal's directory, seen by all workers, or the URL of a store (``load(DIR)``)
    payload              false; true adds the column ``payload``
    batchRows            16384: rows of an Arrow batch
    verify               true: CRC of each block
    onCorrupt            fail (default) or skip: damage and deleted segments are an error, or passed over
    losses               false; true: what was passed over is a row of kind ``loss`` with ``detail``, all else null
    startingTs, endingTs ISO 8601 (UTC unless it says otherwise) or ns since 1970: rows from, and before
    pushdown             false; true: filters are applied while reading. Needs
                         spark.sql.python.filterPushdown.enabled=true, which our sessions set; without it Spark refuses
                         every query of a source that can take filters
    splitBytes           64m: longer segments are read by several tasks
    maxFilesPerTrigger   stream: segments of a batch
    maxBytesPerTrigger   stream: bytes of a batch (1048576, 64m)

``.schema("seq bigint, topic string")`` reads those columns only, which saves most of the time. Any session of an
environment with Headgate finds the source by its name (``pyspark_headgate``); workers must be able to import it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from gateway.pipeline import offsets, schema, spans
from gateway.pipeline.errors import PipelineError
from gateway.pipeline.filters import Wanted
from gateway.pipeline.offsets import Limits
from gateway.pipeline.spans import Loss, Span

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from broker.journal.reading.blocks import Block

BATCH_ROWS: Final = 16384
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE: Final = re.compile(r"(\d{1,15})\s*([kmg]?)b?", re.IGNORECASE)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_KNOWN: Final = frozenset(
    (
        "path", "payload", "batchrows", "verify", "oncorrupt", "losses", "startingts", "endingts", "pushdown",
        "splitbytes", "maxfilespertrigger", "maxbytespertrigger",
    )
)  # fmt: skip


def size_of(text: str, name: str) -> int:
    """Bytes of ``1048576``, ``64m``, ``1g``.

    Raises:
        PipelineError: it is none of these, or 0.

    >>> size_of("64k", "splitBytes")
    65536
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) * _UNITS[match[2].lower()] if match else 0
    if not size:
        raise PipelineError(f"option {name}: {text!r:.64}; expected bytes above 0, such as 1048576 or 64m")
    return size


def moment_ns(text: str, name: str) -> int:
    """Ns since 1970 of ISO 8601 (UTC unless it says otherwise) or of digits.

    Raises:
        PipelineError: it is neither.

    >>> moment_ns("1970-01-01T00:00:01", "since")
    1000000000
    """
    if re.fullmatch(r"-?\d{9,20}", text.strip()):
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise PipelineError(
            f"option {name}: {text!r:.64}; expected a date and time such as 2026-01-31T12:00:00, or ns since 1970"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def _flag(text: str, name: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise PipelineError(f"option {name}: {text!r:.64}; expected true or false")
    return text.lower() == "true"


def _count(text: str, name: str) -> int:
    if not text.strip().isdigit() or not 0 < int(text) < 1 << 31:
        raise PipelineError(f"option {name}: {text!r:.64}; expected a number above 0")
    return int(text)


@dataclass(frozen=True)
class Options:
    """The options of the source, checked."""

    path: str
    payload: bool = False
    batch_rows: int = BATCH_ROWS
    verify: bool = True
    skip: bool = False
    losses: bool = False
    since_ns: int | None = None
    until_ns: int | None = None
    pushdown: bool = False
    split_bytes: int = spans.SPLIT_BYTES
    max_files: int | None = None
    max_bytes: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """From Spark's options, whose names know no case.

        Raises:
            PipelineError: an option is unknown or cannot be; the text says what was expected.
        """
        values = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(set(values) - _KNOWN):
            raise PipelineError(f"option {unknown[0]:.64}: unknown; there are {', '.join(sorted(_KNOWN))}")
        if not values.get("path"):
            raise PipelineError("option path: missing; expected the journal's directory: .load(DIR)")
        corrupt = values.get("oncorrupt", "fail").lower()
        if corrupt not in ("fail", "skip"):
            raise PipelineError(f"option onCorrupt: {corrupt!r:.64}; expected fail or skip")

        def take(name: str, parse: Any, default: Any) -> Any:
            return parse(values[name.lower()], name) if name.lower() in values else default

        return cls(
            path=values["path"],
            payload=take("payload", _flag, False),
            batch_rows=take("batchRows", _count, BATCH_ROWS),
            verify=take("verify", _flag, True),
            skip=corrupt == "skip",
            losses=take("losses", _flag, False),
            since_ns=take("startingTs", moment_ns, None),
            until_ns=take("endingTs", moment_ns, None),
            pushdown=take("pushdown", _flag, False),
            split_bytes=take("splitBytes", size_of, spans.SPLIT_BYTES),
            max_files=take("maxFilesPerTrigger", _count, None),
            max_bytes=take("maxBytesPerTrigger", size_of, None),
        )

    def wanted(self, filters: tuple[Any, ...] = ()) -> Wanted:
        """What of the rows is wanted."""
        bounds = {"since_ns": self.since_ns, "until_ns": self.until_ns}
        return Wanted(filters=filters, **{name: ns for name, ns in bounds.items() if ns is not None})


class Part(InputPartition):  # type: ignore[misc]  # pyspark is not typed for us
    """What one task reads."""

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.span = span


class HeadgateSource(DataSource):  # type: ignore[misc]
    """The source ``headgate``."""

    @classmethod
    def name(cls) -> str:
        """As ``format`` takes it."""
        return "headgate"

    def schema(self) -> str:
        """Columns of ``messages``; with the option ``payload`` that column, too."""
        options = Options.parse(self.options)
        return f"{schema.MESSAGES.ddl}, {schema.PAYLOAD.ddl}" if options.payload else schema.MESSAGES.ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """Two classes: one that merely defines ``pushFilters`` fails every query where the session forbids it."""
        options = Options.parse(self.options)
        return (PushingReader if options.pushdown else BatchReader)(options, tuple(schema.names))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark calls it so
        """The same journal as it grows."""
        return StreamReader(Options.parse(self.options), tuple(schema.names))


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """All that the journal holds when the query is planned."""

    def __init__(self, options: Options, names: tuple[str, ...]) -> None:
        self.options, self.names = options, names
        self.filters: tuple[Any, ...] = ()
        check_columns(options, names)

    def partitions(self) -> list[Part]:
        """A segment, or a stretch of a long one, a task."""
        return [Part(span) for span in spans.whole(self.options.path, self.options.split_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one span."""
        if isinstance(partition, Part):  # an empty journal has one partition without a span
            yield from batches(partition.span, self.options, self.names, self.filters)


class PushingReader(BatchReader):
    """The same, and filters are applied while reading."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802 - Spark calls it so
        """Keep them; all are given back: Spark applies them, too, so that one not understood here does no harm."""
        self.filters = tuple(filters)
        yield from filters


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Offsets: ``{writer: position}`` (``spans``); always the end of a complete block."""

    def __init__(self, options: Options, names: tuple[str, ...]) -> None:
        self.options, self.names = options, names
        self._target: offsets.Offset | None = None
        check_columns(options, names)

    def initialOffset(self) -> offsets.Offset:  # noqa: N802 - Spark calls it so
        """Nothing read of any writer."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark calls it so
        """Of the two limits the one in bytes is told to Spark; `latestOffset` keeps both."""
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable() if self.options.max_files is None else ReadMaxFiles(self.options.max_files)

    def latestOffset(self, start: offsets.Offset, limit: ReadLimit) -> offsets.Offset:  # noqa: N802 - Spark calls it so
        """As far as complete blocks and limits go."""
        limits = Limits()
        if not isinstance(limit, ReadAllAvailable):
            limits.files = self.options.max_files or limits.files
            limits.bytes = self.options.max_bytes or limits.bytes
        return offsets.latest(self.options.path, start, limits, self._target)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark calls it so
        """What comes later is for the next run."""
        self._target = offsets.latest(self.options.path, {})

    def partitions(self, start: offsets.Offset, end: offsets.Offset) -> list[Part]:
        """The spans between two offsets; one that cannot be read any more ends the query, unless it is to be skipped.

        Raises:
            Lost: a segment was deleted; the text names it.
        """
        planned = offsets.plan(self.options.path, start, end, self.options.split_bytes)
        for span in planned:
            if span.loss is not None and not self.options.skip:
                for _nothing in spans.blocks(span):
                    pass
        return [Part(span) for span in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one span."""
        yield from batches(partition.span, self.options, self.names)


def check_columns(options: Options, names: tuple[str, ...]) -> None:
    """Raise unless all columns are ours.

    Raises:
        PipelineError: one is not.
    """
    known = [*schema.MESSAGES.names, *([schema.PAYLOAD.name] if options.payload else [])]
    for name in names:
        if name not in known:
            hint = "; it needs the option payload=true" if name == schema.PAYLOAD.name else ""
            raise PipelineError(f"no column {name!r:.64} in messages{hint}; there are {', '.join(known)}")


def batches(
    span: Span, options: Options, names: tuple[str, ...], filters: tuple[Any, ...] = ()
) -> Iterator[pa.RecordBatch]:
    """The rows of a span as Arrow batches with the columns ``names``, as Spark takes them."""
    from gateway.pipeline.arrow import Decoder

    wanted = options.wanted(filters)
    decoder = Decoder(names, payload=options.payload, needs=wanted.needs)
    decoder.begin(span)

    def passing() -> Iterator[Block | Loss]:
        for block in spans.blocks(span, crc=options.verify, skip=options.skip):
            if isinstance(block, Loss):
                if options.losses:
                    yield block
                continue
            decoder.learn(block)
            if wanted.block(block):
                yield block

    for blocks in spans.gathered(passing(), options.batch_rows):
        if isinstance(blocks, Loss):
            yield decoder.loss(blocks)
        else:
            yield decoder.project(wanted.rows(decoder.batch(blocks)))
