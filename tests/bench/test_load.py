"""A busy machine: what the benchmark says of it, and that no document gets a table from there."""

import pytest

from tests.bench import __main__ as command
from tests.bench import load
from tests.bench.targets import Row

pytestmark = pytest.mark.tools

BEGIN, END = "<!-- benchmark table of broker: begin -->", "<!-- benchmark table of broker: end -->"
BEFORE = f"{BEGIN}\nas it was\n{END}\n"


@pytest.fixture
def readings(monkeypatch):
    """Says what the machine's load will be from look to look; the last one stays. Time passes only by sleeping."""
    left, clock = [0.0], [0.0]

    def sleep(seconds):
        clock[0] += seconds

    monkeypatch.setattr(load, "reading", lambda: left.pop(0) if len(left) > 1 else left[0])
    monkeypatch.setattr(load, "sleep", sleep)
    monkeypatch.setattr(load, "monotonic", lambda: clock[0])
    return left


def test_a_quiet_machine_is_not_waited_for(readings):
    readings[:] = [load.QUIET, 7.0]
    assert load.await_quiet(60.0) == load.QUIET


def test_what_fades_within_the_time_is_waited_for(readings, capsys):
    readings[:] = [3.0, 2.0, 1.1, 0.9]
    assert load.await_quiet(60.0) == 0.9
    assert "waiting up to 60 s for 1 or less: 3.00" in capsys.readouterr().err


def test_what_stays_is_refused(readings):
    readings[:] = [1.01]
    for wait_s in (0.0, 60.0):
        with pytest.raises(
            load.Busy, match=r"is 1\.01: above 1 no table .*\(--wait SECONDS\).*\(--any-load\)"
        ):
            load.await_quiet(wait_s)


@pytest.fixture
def document(tmp_path, monkeypatch):
    """A document with the broker's table; what would be measured is there at once."""

    def relay(bench):
        """Nothing."""
        row = Row("relay_vs_flux")
        row.settle([6.0])
        return [row]

    monkeypatch.setitem(command.WORKS, "relay", relay)
    monkeypatch.setattr(command, "compiler", lambda: "cc")
    monkeypatch.setattr(command, "Loadgen", lambda *_source: Built())
    monkeypatch.setattr(command, "raise_descriptor_limit", lambda: None)
    path = tmp_path / "README.md"
    path.write_text(BEFORE)
    return path


class Built:
    """A load generator that nobody runs."""

    def close(self):
        pass


def run(document, *words):
    return command.main(["relay", "--json", str(document.with_name("bench.json")), *words])


def test_a_busy_machine_writes_no_table_and_measures_nothing(document, readings, capsys):
    readings[:] = [4.5]
    assert run(document, "--page", str(document), "--wait", "0") == 1
    said = capsys.readouterr().err
    assert said.startswith("benchmark refused: the load of the machine is 4.50")
    assert document.read_text() == BEFORE
    assert not document.with_name("bench.json").exists()


def test_a_quiet_machine_writes_it_and_says_both_readings(document, readings, capsys):
    readings[:] = [0.25, 2.5]
    assert run(document, "--page", str(document)) == 0
    said = capsys.readouterr().err
    assert "load of the machine, 1 minute, before: 0.25" in said
    assert "load of the machine, 1 minute, after (with our own): 2.50" in said
    assert "6.00 x" in document.read_text()
    assert '"before": 0.25' in document.with_name("bench.json").read_text()


def test_a_busy_machine_may_be_overruled(document, readings):
    readings[:] = [4.5]
    assert run(document, "--page", str(document), "--any-load") == 0
    assert "6.00 x" in document.read_text()


def test_figures_that_are_not_published_are_measured_at_any_load(document, readings, capsys):
    readings[:] = [4.5]
    assert run(document) == 0
    assert "before: 4.50" in capsys.readouterr().err
    assert document.read_text() == BEFORE
