"""The directory of a test instance, and what becomes of it when the instance was killed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from broker.cli import rundir
from broker.cli.rundir import Rundir

KILLED = """
import os, signal, sys
from broker.cli.rundir import Rundir

own = Rundir(sys.argv[1] if sys.argv[1:] else None)
open(f"{own.path}/rank-0.cert", "w").close()
os.mkdir(f"{own.path}/rank-0.state")
print(own.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def tmpdir(tmp_path, monkeypatch):
    """A $TMPDIR of the test's own, here and in its children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def killed(*words):
    """What an instance leaves that is killed."""
    done = subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    path = Path(done.stdout.strip())
    assert (path / "rank-0.cert").exists()
    return path


def test_the_next_one_removes_what_a_killed_one_left(tmpdir):
    left = killed()
    assert left.parent == tmpdir
    own = Rundir()
    assert [each.name for each in tmpdir.iterdir()] == [os.path.basename(own.path)]
    assert Path(own.path).stat().st_mode & 0o777 == 0o700
    own.remove()
    assert not list(tmpdir.iterdir())


def test_what_is_in_use_stays_also_while_a_child_of_the_killed_one_leaves(tmpdir):
    own = Rundir()
    heir = os.dup(own._lock)  # as a forked rank holds it
    os.close(own._lock)
    rundir.sweep()
    assert (Path(own.path) / "lock").exists()
    os.close(heir)
    rundir.sweep()
    assert not Path(own.path).exists()


def test_what_others_made_stays(tmpdir):
    theirs = tmpdir / "headgate-theirs"
    theirs.mkdir()
    (theirs / "lock").write_text("")
    (tmpdir / "headgate-empty").mkdir()
    (tmpdir / "headgate-file").write_text("")
    elsewhere = tmpdir / "elsewhere"
    elsewhere.mkdir()
    (tmpdir / "headgate-link").symlink_to(elsewhere)
    os.mkfifo(tmpdir / "headgate-empty" / "lock")
    before = sorted(tmpdir.rglob("*"))
    rundir.sweep()
    assert sorted(tmpdir.rglob("*")) == before


def test_a_directory_that_somebody_named_stays(tmpdir):
    """It may hold more than ours, and its owner chose where it is."""
    named = killed(str(tmpdir / "headgate-named"))
    rundir.sweep()
    assert (named / "rank-0.cert").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="optional: only root can make a directory of somebody else")
def test_another_users_stays(tmpdir):
    left = killed()
    os.chown(left, 65534, 65534)
    rundir.sweep()
    assert left.exists()
