"""What a recorder has to tell, as Prometheus is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.exposition import Sample

if TYPE_CHECKING:  # a broker that records nothing does not load it
    from broker.journal.recorder import Recorder


def samples(recorder: Recorder, family: str = "journal") -> list[Sample]:
    """Whether it records, what it was handed, and what became of that.

    Args:
        recorder: of one writer.
        family: how the names begin, behind ``headgate_``.
    """
    figures = recorder.figures
    reason = recorder.state.partition(": ")[2]
    counters = (
        ("handed_records", "Records handed to the journal.", figures.handed),
        ("written_records", "Records on disk.", figures.written),
        ("shed_records", "Records left out because the disk was too slow, or capture off.", figures.shed),
        ("lost_records", "Records that a writer had when it died, or when the disk was full.", figures.lost),
        ("writer_restarts", "Writers started in place of dead ones.", figures.restarts),
    )
    gauges = (
        ("waiting_bytes", "Bytes that wait for the writer.", figures.waiting_bytes),
        ("disk_bytes", "Bytes of its segments on disk.", figures.disk_bytes),
    )
    recording = [({"off": reason}, float(recorder.state == "on"))]
    found: list[Sample] = [(f"{family}_recording", "gauge", "1 while it records.", recording)]
    for name, text, count in counters:
        found.append((f"{family}_{name}_total", "counter", text, [({}, float(count))]))
    for name, text, size in gauges:
        found.append((f"{family}_{name}", "gauge", text, [({}, float(size))]))
    return found
