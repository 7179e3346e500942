"""What a task makes of spans, and what becomes bronze of it: all or nothing, and nothing is passed over in silence.

A task is called here without Spark: it is a function.
"""

import errno
from pathlib import Path
from typing import Any

import pytest

from gateway.pipeline import bronze, schema, spans, verify
from gateway.pipeline.errors import Busy, Conflict, Lost, PipelineError
from gateway.pipeline.spans import Span
from gateway.pipeline.warehouse import Run, Warehouse
from tests.live import segments
from tests.spark.talk import PEERS, said
from tests.tables import for_each

SEGMENTS = 6
ROWS = SEGMENTS * 100


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    segments.write_many(tmp_path / "journal", "rank0", said(ROWS), 100, per_block=20, peers=PEERS)
    return tmp_path / "journal"


@pytest.fixture
def warehouse(bare: Path, tmp_path: Path) -> Warehouse:
    import shutil

    return Warehouse(shutil.copytree(bare, tmp_path / "warehouse"))


def read(journal: Path, warehouse: Warehouse, write: Any = bronze.write, **how: bool) -> Run:
    return bronze.bring(write, journal, warehouse, **how)


def nothing_in(warehouse: Warehouse) -> bool:
    left = list((warehouse.root / "messages").glob("dt=*/*"))
    return (left, warehouse.feed()["bronze"]) == ([], -1)


def damage(path: Path) -> int:
    data = bytearray(path.read_bytes())
    at = data.index(b"FJBK", 3000)
    data[at + 70] ^= 0xFF
    path.write_bytes(data)
    return at


def test_every_record_is_a_row_and_read_once(journal: Path, warehouse: Warehouse) -> None:
    assert read(journal, warehouse, payload=True).rows_out == ROWS
    assert len(warehouse.at("messages").files()) == 1, "neighbours are put together"
    names = (*schema.MESSAGES.names, "payload")
    rows = warehouse.scan("messages", names).sort_by("seq").to_pylist()
    assert [row["seq"] for row in rows] == list(range(ROWS))
    assert {(row["peer"], row["payload"]) for row in rows} == {("unix:1", b"{}")}
    assert read(journal, warehouse).rows_out == 0
    segments.write(journal, "rank0", said(30, ROWS), ROWS, peers=PEERS)
    segments.write(journal, "rank1", said(20), peers=PEERS)
    assert read(journal, warehouse).rows_out == 50
    assert verify.verify(journal, warehouse).ok


def test_a_damaged_segment_is_named_and_nothing_of_the_others_stays(
    journal: Path, warehouse: Warehouse
) -> None:
    path = sorted(journal.iterdir())[SEGMENTS - 1]
    at = damage(path)
    with pytest.raises(PipelineError, match=f"{path.name}: .*bytes at {at}: CRC of the block"):
        read(journal, warehouse)
    assert nothing_in(warehouse)
    run = read(journal, warehouse, skip=True)
    assert (run.rows_out, len(run.losses), run.lost_records) == (ROWS - 20, 1, 20)
    assert verify.verify(journal, warehouse).ok, "what is damaged is no loss of bronze's"


@for_each(
    "seen, why",
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "No such file"),
        (PermissionError(errno.EACCES, "Permission denied"), "Permission denied"),
        (400, "400 bytes, blocks up to"),
    ],
)
def test_a_worker_that_does_not_see_what_the_driver_listed_is_an_error(
    journal: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, seen: object, why: str
) -> None:
    """Whatever is to be skipped: as deleted it would be lost for good, for the offset would pass it."""
    path = sorted(journal.iterdir())[2]
    whole = spans.size_of

    def size_of(given: str) -> int:
        if given != str(path):
            return whole(given)
        if isinstance(seen, Exception):
            raise seen
        return seen

    def write(given: list[Span], how: bronze.How) -> bronze.Written:
        with monkeypatch.context() as there:
            there.setattr(spans, "size_of", size_of)
            return bronze.write(given, how)

    for skip in (False, True):
        with pytest.raises(PipelineError, match=rf"this worker does not see the journal: {path}, \S+: {why}"):
            read(journal, warehouse, write, skip=skip)
        assert nothing_in(warehouse)
    assert [each.start for each in bronze.pending(journal, warehouse).spans] == [64] * SEGMENTS


def test_what_was_deleted_meanwhile_is_an_error_or_counted(journal: Path, warehouse: Warehouse) -> None:
    path = sorted(journal.iterdir())[0]
    data = path.read_bytes()

    def write(given: list[Span], how: bronze.How) -> bronze.Written:
        path.unlink()
        return bronze.write(given, how)

    text = f"{path.name}: the segment was deleted before bytes 64 to {len(data)} were read"
    with pytest.raises(Lost, match=text):
        read(journal, warehouse, write)
    assert nothing_in(warehouse)
    path.write_bytes(data)
    run = read(journal, warehouse, write, skip=True)
    assert (run.rows_out, [str(each) for each in run.losses]) == (ROWS - 100, [text])


def test_what_was_deleted_between_two_runs_is_an_error_or_counted(
    journal: Path, warehouse: Warehouse
) -> None:
    first, second, *rest = sorted(journal.iterdir())
    kept = {path: path.read_bytes() for path in (second, *rest)}
    for path in kept:
        path.unlink()
    assert read(journal, warehouse).rows_out == 100
    for path in rest:
        path.write_bytes(kept[path])
    first.unlink()  # all of it was read
    with pytest.raises(Lost, match="the segment was deleted before its last 100 records were read"):
        read(journal, warehouse)
    run = read(journal, warehouse, skip=True)
    assert (run.rows_out, run.lost_records) == (ROWS - 200, 100)
    assert read(journal, warehouse).losses == []


def test_a_segment_that_was_cut_is_an_error_or_counted(journal: Path, warehouse: Warehouse) -> None:
    path = sorted(journal.iterdir())[-1]
    until = spans.latest(str(journal), {})
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 40)
    *_whole, loss, short = spans.plan(str(journal), {}, until)
    assert (short.end, str(loss.loss)) == (
        size - 40,
        f"{path.name}: {size - 40} bytes, blocks up to {size} expected: it was cut",
    )


def test_paths_are_absolute_wherever_a_worker_stands(
    journal: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(journal.parent)
    wanted = bronze.pending("journal", Warehouse("warehouse"))
    assert {str(Path(span.path).parent) for span in wanted.spans} == {str(journal)}
    assert Warehouse("warehouse").table("messages") == str(warehouse.root / "messages")


def test_a_commit_whose_answer_was_lost_has_passed(
    journal: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try finds its own commit in its way: nothing is brought twice, and no file of it is deleted."""
    commit, lost = Warehouse.add_bronze, [True]

    def add_bronze(self: Warehouse, *given: object) -> int:
        number = commit(self, *given)
        if lost and lost.pop():
            raise Conflict("another commit has that number")
        return number

    monkeypatch.setattr(Warehouse, "add_bronze", add_bronze)
    read(journal, warehouse)
    report = verify.verify(journal, warehouse)
    assert (report.ok, report.rows, lost) == (True, ROWS, [])


def test_a_batch_that_does_not_begin_where_bronze_is_is_refused(journal: Path, warehouse: Warehouse) -> None:
    """A checkpoint that is older than bronze would bring rows twice, one that is newer would leave some out."""
    read(journal, warehouse)
    how = bronze.How(warehouse.table("messages"))
    segments.write(journal, "rank0", said(30, ROWS), ROWS, peers=PEERS)
    for since in ({}, {"rank0": {"seg": ROWS, "pos": 64, "next": ROWS}}):
        written = bronze.write([Span(str(path), 64, path.stat().st_size) for path in journal.iterdir()], how)
        until = spans.latest(str(journal), {})
        with pytest.raises(Busy, match=r"has rank0 up to rank0-0+500 byte \d+, and this begins at"):
            bronze.commit(warehouse, written, since, until)
    assert len(list((warehouse.root / "messages").glob("dt=*/*"))) == 1


@for_each(
    "size, tasks, most, counts",
    [
        (1 << 20, 3, 1 << 30, [4, 4, 4]),
        (1 << 20, 99, 1 << 30, [1] * 12),
        (1 << 20, 1, 1 << 30, [12]),
        (100_000, 1, 200_000, [1] * 12),
        (100, 8, 1 << 30, [12]),
    ],
)
def test_spans_are_packed_by_their_bytes(size: int, tasks: int, most: int, counts: list[int]) -> None:
    given = [Span(f"s-{number}", 0, size) for number in range(12)]
    packs = spans.packed(given, tasks, most)
    assert [len(pack) for pack in packs] == counts
    assert [span for pack in packs for span in pack] == given
    assert spans.packed([], tasks) == []


# ---------------------------------------------------------------- verify


def test_what_bronze_says_it_read_and_has_no_row_of_is_lost(journal: Path, warehouse: Warehouse) -> None:
    """As a job left it that passed over what it did not see."""
    until = spans.latest(str(journal), {})
    *seen, _last = [Span(str(path), 64, path.stat().st_size) for path in sorted(journal.iterdir())]
    bronze.commit(warehouse, bronze.write(seen, bronze.How(warehouse.table("messages"))), {}, until)
    report = verify.verify(journal, warehouse)
    assert (report.ok, report.total("behind")) == (False, 0)
    assert report.verdict == "100 records that were read are LOST, 0 are there TWICE"


def test_a_writer_that_bronze_knows_nothing_of_is_missing_and_a_tail_is_not(
    journal: Path, warehouse: Warehouse
) -> None:
    report = verify.verify(journal, warehouse)
    assert (report.ok, report.verdict) == (
        False,
        "0 records that were read are LOST, 0 are there TWICE, all of rank0 is MISSING; 600 have not been read yet",
    )
    read(journal, warehouse)
    segments.write(journal, "rank0", said(30, ROWS), ROWS, peers=PEERS)
    report = verify.verify(journal, warehouse)
    assert (report.ok, report.verdict) == (
        True,
        "600 records were read, every one is there once; 30 have not been read yet",
    )
    segments.write(journal, "rank1", said(20), peers=PEERS)
    report = verify.verify(journal, warehouse)
    assert not report.ok
    assert "all of rank1 is MISSING" in report.verdict
