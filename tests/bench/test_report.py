"""The tables of a document: what replaces them, and what leaves them alone."""

from pathlib import Path

import pytest

from tests.bench.report import CONTENDERS, MARKS, put_into
from tests.bench.targets import Row

pytestmark = pytest.mark.tools

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"


def with_tables(path, *groups):
    path.write_text(
        "".join(f"{MARKS[0].format(group)}\nas it was\n{MARKS[1].format(group)}\n" for group in groups)
    )
    return path


def measured(key, *values):
    row = Row(key)
    row.settle(list(values))
    return row


def test_a_measured_group_gets_its_table_and_others_keep_theirs(tmp_path):
    document = with_tables(tmp_path / "README.md", "broker", "libflux")
    row = measured("libflux_rtt_3", 1.25)
    row.figures = {"headgate": "400 / 900 µs", "flux-core": "320 / 800 µs", "generator": "8% of a core"}
    put_into(document, [row])
    broker, _, libflux = document.read_text().partition(MARKS[0].format("libflux"))
    assert "as it was" in broker
    head, _rule, line = libflux.strip().splitlines()[:3]
    assert head == "| work | figure | floor | aim | verdict | headgate | pure Python | flux-core |"
    assert line.endswith("| 1.25 x | ≤ 0.65 | ≤ 0.5 | MISSED | 400 / 900 µs |  | 320 / 800 µs |")


def test_a_group_of_which_nothing_could_be_measured_keeps_its_table(tmp_path):
    document = with_tables(tmp_path / "README.md", "libflux")
    before = document.read_text()
    put_into(document, [Row("libflux_rtt_3", note="FLUX_PREFIX does not name a flux-core")])
    assert document.read_text() == before


def test_a_document_without_the_marks_is_refused(tmp_path):
    document = with_tables(tmp_path / "README.md", "broker")
    with pytest.raises(ValueError, match="benchmark table of libflux"):
        put_into(document, [measured("libflux_rtt_3", 1.0)])


def test_the_page_has_a_place_for_every_table():
    text = PAGE.read_text()
    assert [
        mark.format(group) for group in CONTENDERS for mark in MARKS if text.count(mark.format(group)) != 1
    ] == []
