"""The figures of a recorder as samples for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from broker.exposition import Sample

if TYPE_CHECKING:  # a broker that records nothing does not load it
    from broker.journal.recorder import Recorder


_FIGURES: Final = (
    ("handed", "handed_records_total", "counter", "Records handed to the journal."),
    ("written", "written_records_total", "counter", "Records on disk."),
    (
        "shed",
        "shed_records_total",
        "counter",
        "Records left out because the disk was too slow, or capture off.",
    ),
    (
        "lost",
        "lost_records_total",
        "counter",
        "Records that a writer had when it died, or when the disk was full.",
    ),
    ("restarts", "writer_restarts_total", "counter", "Writers started in place of dead ones."),
    ("waiting_bytes", "waiting_bytes", "gauge", "Bytes that wait for the writer."),
    ("disk_bytes", "disk_bytes", "gauge", "Bytes of its segments on disk."),
)
"""Field of a recorder's figures, name of the series behind the family's, kind, help."""


def samples(recorder: Recorder, family: str = "journal") -> list[Sample]:
    """Samples of a recorder of this process: whether it records, and its counts.

    Args:
        recorder: of one writer.
        family: how the names begin, behind ``headgate_``.
    """
    return samples_of(recorder.state, recorder.figures._asdict(), family)


def samples_of(
    state: str, figures: Mapping[str, int], family: str, labels: Mapping[str, str] | None = None
) -> list[Sample]:
    """Samples of a recorder in another process.

    Args:
        state: of the recorder.
        figures: its ``Figures``; what is not there is 0.
        family: how the names begin, behind ``headgate_``.
        labels: of every value.
    """
    common = dict(labels or {})
    recording = [({**common, "off": state.partition(": ")[2]}, float(state == "on"))]
    samples: list[Sample] = [(f"{family}_recording", "gauge", "1 while it records.", recording)]
    for field, name, kind, text in _FIGURES:
        samples.append((f"{family}_{name}", kind, text, [(common, float(figures.get(field, 0)))]))
    return samples
