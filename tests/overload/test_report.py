"""What the table of loads says, and that it does not hide what misses a bar."""

from pathlib import Path

import pytest

from tests.overload.__main__ import main
from tests.overload.figures import Figures, Timed
from tests.overload.report import MARKS, markdown

pytestmark = pytest.mark.tools


def figures(load, p99_ms, worst_ms, seed=0, **more):
    base = {
        "seconds": 1.0,
        "crowding": 1.0,
        "sent": 1,
        "ops": {"call": Timed(100, 1.0, 2.0), "event": Timed(100, p99_ms, worst_ms)},
        "failed": {},
        "ended": [],
        "lost": 0,
        "rss_before": {"rank 0": 20.0},
        "rss_peak": {"rank 0": 30.0},
        "rss_after": {"rank 0": 25.0},
        "fds_before": {"rank 0": 20},
        "fds_after": {"rank 0": 20},
    }
    return Figures(load=load, seed=seed, **base | more)


def test_a_row_for_a_load_and_a_column_for_a_way():
    runs = [
        figures("unix.pings", 12.0, 30.0),
        figures("child.pings", 51.0, 60.0),
        figures("unix.random", 3.0, 4.0, seed=1),
        figures("unix.random", 2.0, 9.0, seed=2),
        figures("nfp.jobs", 1.0, 2.0, ended=["rank 1"], failed={"a call": 2}),
    ]
    *table, empty, summary = markdown(runs).splitlines()
    assert table == [
        "| load | unix | child | others |",
        "| --- | ---: | ---: | ---: |",
        "| pings | 12 / 30 | **51 / 60** |  |",
        "| random | 3 / 9 |  |  |",
        "| nfp.jobs |  |  | **1 / 2** |",
    ]
    assert empty == ""
    assert summary.startswith("5 runs, 2 of them drawn by seed.")
    assert (
        "3 runs reach all of them. Links of innocents ended: 1; events lost: 0; calls failed: 2;" in summary
    )
    assert summary.endswith("kept: 5 MiB.")


def test_the_page_has_a_place_for_it_and_the_command_says_so(capsys):
    page = (Path(__file__).parents[2] / "docs/reliability.md").read_text()
    assert [page.count(mark) for mark in MARKS] == [1, 1]
    assert main(["--list"]) == 0
    assert "unix.pings" in capsys.readouterr().out
