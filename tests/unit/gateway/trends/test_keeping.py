"""The file of the charts: whole or not at all, never in the way of a start."""

import os

from gateway.trends import trends
from gateway.trends.rings import Rings
from tests.tables import for_each

BEGIN = 1_795_700_000


def filled():
    rings = Rings()
    for second in range(100):
        rings.put(BEGIN + second, {"calls": float(second), "ms:0": 1.0})
    rings.mark(BEGIN + 5.5, "the gateway began")
    return rings


def test_a_restart_loses_the_seconds_and_keeps_the_day(rundir):
    path, again = rundir / trends.FILE, Rings()
    trends.write(filled().kept(), path)
    assert path.stat().st_mode & 0o777 == 0o600
    trends.load(again, path)
    before, after = (rings.read(BEGIN + 99, 3600) for rings in (filled(), again))
    assert before == after
    assert os.listdir(rundir) == [trends.FILE]


@for_each("data", [b"", b"\xff\x00", b"\x80", b"\x83\xa7version\x09\xa5marks\x90\xa6tracks\x80"])
def test_a_broken_file_or_one_of_another_version_is_a_new_beginning(rundir, data):
    path, rings = rundir / trends.FILE, Rings()
    path.write_bytes(data)
    trends.load(rings, path)
    assert rings.tracks == {}
    trends.load(rings, rundir / "nosuch")
    assert rings.tracks == {}


def test_where_it_cannot_be_written_a_line_says_so(rundir, caplog):
    trends.write(filled().kept(), rundir / "nosuch" / trends.FILE)
    assert "cannot be kept: No such file" in caplog.text
