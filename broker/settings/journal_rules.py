"""What types cannot say about `[journal]`: limits that contradict each other."""

from collections.abc import Iterator

from broker.settings.faults import Problem, saw
from broker.settings.journal import JournalSection


def journal_problems(section: JournalSection) -> Iterator[Problem]:
    """Yield every fault of a section whose types are right."""
    if section.keep_bytes and section.keep_bytes < section.rotate_bytes:
        yield saw(
            ("journal", "keep_bytes"),
            section.keep_bytes,
            f"0 for all, or at least rotate_bytes, {section.rotate_bytes}: the last segment stays",
        )
    if section.keep_s and section.keep_s < section.rotate_s:
        yield saw(
            ("journal", "keep_s"), section.keep_s, f"0 for all, or at least rotate_s, {section.rotate_s:g}"
        )
    if section.ship_to and "://" not in section.ship_to.reveal():
        yield saw(
            ("journal", "ship_to"), section.ship_to, "a URL such as s3://bucket/folder or file:///mnt/folder"
        )
    if section.rotate_s < section.block_s:
        yield saw(("journal", "rotate_s"), section.rotate_s, f"at least block_s, {section.block_s:g}")
