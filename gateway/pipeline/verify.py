"""Whether bronze holds every record of the journal exactly once. Reads both without Spark.

Compared are, for each segment that is still there, its numbers with those of rows. Bronze says how far it read each
writer: what lies below that and is no row is lost, what lies above has not been read yet (``behind``), and of a writer
that it knows nothing of all is missing. Damage of the journal is named; it is an error of the journal, not of the
warehouse.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from broker.journal.layout import DICTIONARY, HEADER_BYTES, KIND_AT
from broker.journal.reading.blocks import Block, salvage
from broker.journal.reading.segments import base_name, listing, named
from gateway import delta
from gateway.pipeline import spans
from gateway.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass
class Compared:
    """One segment against bronze.

    Attributes:
        segment: name of the file.
        records: of the journal that should be rows.
        rows: numbers of them that bronze has.
        twice: rows whose number is there already.
        behind: records that lie behind what bronze has read.
        unknown: bronze knows nothing of its writer.
        damages: stretches that cannot be read.
    """

    segment: str
    records: int = 0
    rows: int = 0
    twice: int = 0
    behind: int = 0
    unknown: bool = False
    damages: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Every record that bronze says it read is there once, and it did read of this writer, if there is anything."""
        return self.records == self.rows and not self.twice and not (self.unknown and self.behind)


@dataclass
class Report:
    """All segments. ``beyond``: rows whose segments are not there any more."""

    segments: list[Compared] = field(default_factory=list)
    rows: int = 0
    beyond: int = 0

    @property
    def ok(self) -> bool:
        """Every record of the journal, as far as it was read, is in bronze once."""
        return all(each.ok for each in self.segments)

    def total(self, name: str) -> int:
        """Of all segments."""
        return sum(getattr(each, name) for each in self.segments)

    @property
    def verdict(self) -> str:
        """In words: of what was compared, and no more."""
        records, behind = self.total("records"), self.total("behind")
        later = f"; {behind:,} have not been read yet" if behind else ""
        if self.ok:
            return f"{records:,} records were read, every one is there once{later}"
        lost, twice = records - self.total("rows"), self.total("twice")
        writers = {named(each.segment)[0] for each in self.segments if each.unknown and each.behind}
        missing = f", all of {', '.join(sorted(writers))} is MISSING" if writers else ""
        return f"{lost:,} records that were read are LOST, {twice:,} are there TWICE{missing}{later}"

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        totals = {name: self.total(name) for name in ("records", "behind")}
        segments = [{**asdict(each), "ok": each.ok} for each in self.segments]
        return {"ok": self.ok, "rows": self.rows, **totals, "beyond": self.beyond, "segments": segments}


def verify(journal: str | os.PathLike[str], warehouse: Warehouse) -> Report:
    """Compare.

    Raises:
        ConfigError: no such journal.
        PipelineError: a segment of a newer version.
    """
    import numpy as np

    report = Report()
    held = _numbers(warehouse)
    report.rows = sum(len(each) for each in held.values())
    inside = 0
    found = listing(delta.place_of(journal))
    bronze = warehouse.at("messages")
    read = spans.committed(bronze.done, {writer for _path, writer, _first in found})
    for path, writer, _first in found:
        spans.refuse_newer(path)
        rows = held.get(writer, np.empty(0, np.int64))
        compared = _one(path, rows, read[writer]["next"] if writer in read else None)
        inside += compared.rows + compared.twice
        report.segments.append(compared)
    report.beyond = max(0, report.rows - inside)
    return report


def _numbers(warehouse: Warehouse) -> dict[str, NDArray[np.int64]]:
    """The numbers that bronze has of each writer, in order."""
    import numpy as np
    import pyarrow.compute as pc

    parts: dict[str, list[Any]] = {}
    bronze = warehouse.at("messages")
    for date in bronze.dates():
        rows = bronze.scan(["writer", "seq"], bronze.files([date]))
        for writer in pc.unique(rows["writer"]).to_pylist():
            some = rows.filter(pc.equal(rows["writer"], writer))["seq"]
            parts.setdefault(writer, []).append(some.to_numpy())
    return {writer: np.sort(np.concatenate(each)) for writer, each in parts.items()}


def _one(path: str, rows: NDArray[np.int64], read: int | None) -> Compared:
    """``read``: the number up to which bronze read of the writer."""
    import numpy as np

    compared = Compared(base_name(path), unknown=read is None)
    last = max(-1 if read is None else read - 1, int(rows[-1]) if len(rows) else -1)
    every: list[Any] = []
    for block in salvage(path, HEADER_BYTES):
        if not isinstance(block, Block):
            compared.damages.append(str(block))
            continue
        if block.numbered:
            kinds = np.frombuffer(block.entries, np.uint8)[KIND_AT::HEADER_BYTES]
            every.append(np.flatnonzero(kinds != DICTIONARY).astype(np.int64) + block.first_seq)
    numbers = np.concatenate(every) if every else np.empty(0, np.int64)
    compared.behind = int((numbers > last).sum())
    numbers = numbers[numbers <= last]
    compared.records = len(numbers)
    if len(numbers):
        left, right = np.searchsorted(rows, numbers, "left"), np.searchsorted(rows, numbers, "right")
        compared.rows = int((right > left).sum())
        compared.twice = int(np.maximum(right - left - 1, 0).sum())
    return compared
