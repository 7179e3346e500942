"""Coverage by room: sums, the table, and one real run over a single test where the package is installed."""

import importlib.util
import json

import pytest

from tests.reports import rooms
from tests.reports.__main__ import main

pytestmark = pytest.mark.tools


def file(statements, missed):
    return {"summary": {"num_statements": statements, "missing_lines": missed}}


REPORT = {
    "files": {
        "broker/errors.py": file(10, 0),
        "broker/wire/message.py": file(100, 10),
        "broker/wire/dialects/cmb1.py": file(50, 20),
        "gateway/serve.py": file(40, 40),
        "gateway/web/app.py": file(0, 0),
    }
}


def test_files_are_summed_up_by_room():
    assert rooms.rooms(REPORT) == [
        rooms.Room("broker", 10, 0),
        rooms.Room("broker/wire", 150, 30),
        rooms.Room("gateway", 40, 40),
        rooms.Room("gateway/web", 0, 0),
    ]
    assert [round(room.share) for room in rooms.rooms(REPORT)] == [100, 80, 0, 100]
    assert rooms.share(REPORT) == pytest.approx(65.0)


def test_the_table_names_the_files_that_are_run_least():
    lines = rooms.table(REPORT).splitlines()
    assert lines[5].split() == ["together", "200", "70", "65.0%"]
    assert [line.split()[-1] for line in lines[8:]] == [
        "gateway/serve.py",
        "broker/wire/dialects/cmb1.py",
        "broker/wire/message.py",
    ]


def test_without_the_package_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert main(["coverage"]) == 2
    assert "pip install" in capsys.readouterr().err


def test_less_than_wanted_is_a_failure(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(rooms, "measure", lambda _words, _tests: (REPORT, 0))
    assert main(["coverage", "--least", "65", "--json", str(tmp_path / "figures")]) == 0
    assert main(["coverage", "--least", "66"]) == 1
    assert json.loads((tmp_path / "figures").read_text())["broker/wire"] == {"statements": 150, "missed": 30}
    monkeypatch.setattr(rooms, "measure", lambda _words, _tests: (REPORT, 3))
    assert main(["coverage"]) == 3
    capsys.readouterr()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_real_run(capfd, tmp_path):
    pytest.importorskip("coverage", reason="optional: coverage is not installed")
    assert main(["coverage", "tests/unit/wire/test_topic.py", "--json", str(tmp_path / "figures")]) == 0
    figures = json.loads((tmp_path / "figures").read_text())
    assert figures["broker/wire"]["missed"] < figures["broker/wire"]["statements"]
    assert "together" in capfd.readouterr().out
