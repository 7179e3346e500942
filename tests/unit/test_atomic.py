"""Files that are written whole: their mode, and that nothing of another writer comes between."""

import os
import stat

import pytest

from broker import atomic


@pytest.mark.parametrize("mode", [0o600, 0o644])
@pytest.mark.parametrize("durable", [False, True])
def test_the_mode_is_what_was_asked_for(rundir, mode, durable):
    path = rundir / "file"
    before = os.umask(0o077)
    try:
        atomic.write(path, b"new", mode, durable=durable)
    finally:
        os.umask(before)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", mode)
    assert os.listdir(rundir) == ["file"]


def test_two_writers_do_not_meet_before_the_end(rundir, monkeypatch):
    """As two containers with one folder: each has a thread number 1."""
    path, sync = rundir / "file", os.fsync
    monkeypatch.setattr("threading.get_native_id", lambda: 1)

    def synced(number):
        monkeypatch.setattr(os, "fsync", sync)
        atomic.write(path, b"of another")
        sync(number)

    monkeypatch.setattr(os, "fsync", synced)
    atomic.write(path, b"ours", durable=True)
    assert path.read_bytes() == b"ours"
    assert os.listdir(rundir) == ["file"]


def test_a_link_of_somebody_else_is_not_followed(rundir, monkeypatch):
    """Who may write to the folder puts a link in the place of the file that is being written."""
    other, link = rundir / "other", os.rename
    other.write_bytes(b"")
    other.chmod(0o600)
    fdopen = open

    def swapped(number, *more):
        (fresh,) = [each for each in rundir.iterdir() if each != other]
        link(fresh, rundir / "away")
        os.symlink(other, fresh)
        return fdopen(number, *more)

    monkeypatch.setattr("builtins.open", swapped)
    atomic.write(rundir / "file", b"data", 0o644)
    assert stat.S_IMODE(other.stat().st_mode) == 0o600
