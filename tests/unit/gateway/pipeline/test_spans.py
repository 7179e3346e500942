"""How far a stream may read: whole blocks, limits, rotation, what is deleted. No Spark."""

from pathlib import Path

import pytest

from broker.journal.reading.blocks import Damaged
from gateway.pipeline import spans
from gateway.pipeline.errors import Lost, PipelineError
from tests.live import segments
from tests.live.segments import T0, note

GAP = {"cause": "the writer did not keep up"}


def said(count: int, first: int = 0) -> list[segments.Rec]:
    return [note(T0 + index * 1000, "t.x", {"i": index}) for index in range(first, first + count)]


def read(path: Path, start: spans.Offset, end: spans.Offset, *, skip: bool = False) -> list[int]:
    """The numbers of the records between two offsets."""
    found = []
    for span in spans.plan(str(path), start, end):
        for block in spans.blocks(span, skip=skip):
            if not isinstance(block, spans.Loss):
                found += range(block.first_seq, block.first_seq + block.count)
    return found


def test_each_limit_gives_whole_blocks_and_all_of_them_in_the_end(tmp_path: Path) -> None:
    segments.write_many(tmp_path, "rank0", said(200), 50, per_block=10)
    segments.write_many(tmp_path, "nfp", said(40), 20, per_block=10)
    for most in (1, 3000, 5000, None):
        at: spans.Offset = {}
        found: list[int] = []
        for _step in range(100):
            until = spans.latest(str(tmp_path), at, most)
            if until == at:
                break
            found += read(tmp_path, at, until)
            at = until
        assert sorted(found) == sorted([*range(200), *range(40)]), most
        assert set(at["rank0"]) == {"seg", "pos", "next", "first"}
        assert (at["rank0"]["next"], at["nfp"]["next"]) == (200, 40)


def test_a_torn_block_waits_until_it_is_whole_at_every_byte(tmp_path: Path) -> None:
    path = segments.write(tmp_path, "rank0", said(9), per_block=3)
    whole = path.read_bytes()
    last = whole.rindex(b"FJBK")
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        at = spans.latest(str(tmp_path), {})
        assert at["rank0"]["pos"] == last
        assert read(tmp_path, {}, at) == list(range(6))
        path.write_bytes(whole)
        assert read(tmp_path, at, spans.latest(str(tmp_path), at)) == list(range(6, 9))


def test_a_range_that_does_not_align_raises(tmp_path: Path) -> None:
    path = segments.write(tmp_path, "rank0", said(20), per_block=10)
    size, middle = path.stat().st_size, path.read_bytes().rindex(b"FJBK")
    for start, end in ((64, size - 8), (72, size), (middle + 8, size), (64, middle - 8)):
        with pytest.raises(Damaged, match=path.name):
            list(spans.blocks(spans.Span(str(path), start, end)))
    with pytest.raises(spans.Unseen, match=rf"does not see the journal: {path}, .*: {size} bytes"):
        list(spans.blocks(spans.Span(str(path), 64, size + 64)))


def test_nothing_new_is_the_same_offset_and_a_target_is_kept(tmp_path: Path) -> None:
    segments.write(tmp_path, "rank0", said(10))
    target = spans.latest(str(tmp_path), {})
    assert spans.latest(str(tmp_path), target) == target
    segments.write(tmp_path, "rank0", said(10, 10), 10)
    segments.write(tmp_path, "late", said(5))
    assert spans.latest(str(tmp_path), {}, target=target) == target
    assert spans.latest(str(tmp_path), target)["rank0"]["next"] == 20
    assert spans.latest(str(tmp_path), {}, 1, target)["rank0"]["next"] == 10


def test_a_sealed_segment_with_a_torn_tail_is_a_named_loss_and_no_error(tmp_path: Path) -> None:
    path = segments.write(tmp_path, "rank0", said(30), per_block=10, tail=b"FJBK" + bytes(40))
    segments.write(tmp_path, "rank0", said(10, 30), 30)
    (first, second) = spans.plan(str(tmp_path), {}, spans.latest(str(tmp_path), {}))
    assert first.sealed
    assert not second.sealed
    found = list(spans.blocks(first))
    assert [block.count for block in found[:-1]] == [10, 10, 10]
    assert found[-1].segment == path.name
    assert found[-1].length == 44


def test_what_is_deleted_before_it_is_read_is_named_with_its_number(tmp_path: Path) -> None:
    paths = segments.write_many(tmp_path, "rank0", said(90), 30, per_block=10)
    until = spans.latest(str(tmp_path), {})
    at = spans.latest(str(tmp_path), {}, 1)
    assert at["rank0"]["next"] == 10
    paths[0].unlink()
    with pytest.raises(Lost, match=rf"{paths[0].name}: .* before its last 20 records were read"):
        read(tmp_path, at, until)
    assert read(tmp_path, at, until, skip=True) == list(range(30, 90))
    with pytest.raises(Lost, match=r"before its last 30 records"):
        read(tmp_path, {}, until)
    paths[1].unlink()
    paths[2].unlink()
    losses = [span.loss for span in spans.plan(str(tmp_path), at, until)]
    assert [loss.records for loss in losses if loss] == [80]


def test_a_segment_deleted_when_all_of_it_was_read_is_no_loss(tmp_path: Path) -> None:
    paths = segments.write_many(tmp_path, "rank0", said(60), 30, per_block=10)
    at = spans.latest(str(tmp_path), {}, paths[0].stat().st_size - 64)
    assert at["rank0"]["next"] == 30
    paths[0].unlink()
    assert read(tmp_path, at, spans.latest(str(tmp_path), at)) == list(range(30, 60))


def test_a_hole_in_the_middle_is_found(tmp_path: Path) -> None:
    paths = segments.write_many(tmp_path, "rank0", said(90), 30, per_block=10)
    until = spans.latest(str(tmp_path), {})
    paths[1].unlink()
    with pytest.raises(Lost, match=r"before its last 30 records"):
        read(tmp_path, {}, until)


def test_numbers_that_the_writer_reports_as_lost_are_none(tmp_path: Path) -> None:
    segments.write(tmp_path, "rank0", said(30), per_block=10)
    gap = note(T0, "gap", {"records": 5, "first": 30, "last": 34, **GAP})
    segments.write(tmp_path, "rank0", [gap, *said(5, 35)], 34)
    assert read(tmp_path, {}, spans.latest(str(tmp_path), {})) == [*range(30), *range(34, 40)]


def test_long_segments_are_split_at_blocks(tmp_path: Path) -> None:
    path = segments.write(tmp_path, "rank0", said(100), per_block=10)
    (whole,) = spans.whole(str(tmp_path))
    parts = spans.split(whole, 1000)
    assert len(parts) > 3
    assert [each.start for each in parts] == [64, *(each.end for each in parts[:-1])]
    assert parts[-1].end == path.stat().st_size
    assert sum(len(list(spans.blocks(each))) for each in parts) == 10


def test_a_damaged_block_that_is_skipped_says_how_many_records_it_had(tmp_path: Path) -> None:
    path = segments.write(tmp_path, "rank0", said(50), per_block=10)
    data = bytearray(path.read_bytes())
    at = data.index(b"FJBK", 200)
    data[at + 70] ^= 1
    path.write_bytes(data)
    found = list(spans.blocks(spans.Span(str(path), 64, len(data)), skip=True))
    (loss,) = [each for each in found if isinstance(each, spans.Loss)]
    assert (loss.offset, loss.records) == (at, 10)
    assert spans.Loss(**__import__("json").loads(loss.as_json())) == loss


def test_an_unknown_version_is_refused_by_all_ways(tmp_path: Path) -> None:
    segments.write(tmp_path, "rank0", said(3), version=7)
    for ask in (lambda: spans.whole(str(tmp_path)), lambda: spans.latest(str(tmp_path), {})):
        with pytest.raises(PipelineError, match="segment of version 7; this program knows versions up to 1"):
            ask()


def test_what_is_deleted_while_it_is_planned_is_as_if_it_had_not_been_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = segments.write_many(tmp_path, "rank0", said(90), 30, per_block=10)
    until, whole = spans.latest(str(tmp_path), {}), spans.size_of
    for gone in paths:

        def size_of(path: str, gone: Path = gone) -> int:
            if path == str(gone):
                raise FileNotFoundError(path)
            return whole(path)

        monkeypatch.setattr(spans, "size_of", size_of)
        losses = [span.loss for span in spans.plan(str(tmp_path), {}, until) if span.loss]
        assert [loss.records for loss in losses] == [30], gone.name
