"""The page on asking the tables: each of its programs runs as written, and says what the rows say."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.live import warehouse as wh
from tests.live.pages import ROOT, Page

PAGE = Page("guides/tables.md")
DAY = [row for row in wh.traffic() if row["_when"] >= wh.FIRST + wh.DAY_S]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where somebody is who has a warehouse."""
    folder = tmp_path_factory.mktemp("page")
    wh.rich(folder / "warehouse")
    return folder


def said(place: Path, holding: str, **environ: str) -> str:
    """What the program of the page prints, spaces and frames left out."""
    done = subprocess.run(
        [sys.executable, "-c", PAGE.block("python", holding)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **environ},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return re.sub(r"[^\w.\n]+", " ", done.stdout)


def test_duckdb(place: Path) -> None:
    topics: Counter[str] = Counter()
    for row in DAY:
        if (row["direction"], row["kind"]) == ("in", "flux"):
            topics[row["topic"]] += row["n"]
    ((topic, messages),) = topics.most_common(1)
    assert f" {topic} {messages} " in said(place, "import duckdb")


def test_polars(place: Path) -> None:
    out = said(place, "import polars")
    for topic in ("store.get", "job.list"):
        ends = [end for row in wh.latency() if row["topic"] == topic and (end := row.get("le_ns"))
                for _ in range(row["n"])]  # fmt: skip
        expected = sorted(ends)[-(-len(ends) * 99 // 100) - 1]
        found = re.search(rf" {topic} (\S+)", out)
        assert found
        assert float(found[1]) == expected / 1e6, topic


def test_pandas(place: Path) -> None:
    refused = Counter((row["userid"], row["topic"]) for row in wh.denied() if row["_when"] >= wh.SPIKE)
    out = said(place, "to_pandas")
    for (userid, topic), count in refused.items():
        assert re.search(rf"^({userid})? {topic} 1 {count}$", out, re.MULTILINE), (topic, out)


@pytest.mark.timeout(300)
def test_pyspark(java: None, place: Path) -> None:
    out = said(place, "pipeline.views")
    unanswered: Counter[str] = Counter()
    for row in wh.latency():
        if row["_when"] >= wh.FIRST + wh.DAY_S:
            unanswered[row["topic"]] += row["unmatched_no_response"]
    for topic, count in unanswered.items():
        assert (f" {topic} {count} " in out) == (count > 0), (topic, out)
