"""The directory of a local tree: one that was there before keeps what is in it."""

import os
import threading

import pytest

from broker.errors import ConfigError
from broker.local.rundir import Rundir, lock_file


@pytest.fixture
def there(tmp_path):
    """A directory in use, that others may read."""
    place = tmp_path / "there"
    place.mkdir(mode=0o755)
    return place


def test_what_an_instance_made_goes_and_nothing_else(there):
    before = {"env/bin", "environment.yml", "bashrc", "bashrc.d", "lock.json", "lockfile"}
    for name in before:
        path = there / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("of the user")
    rundir = Rundir(str(there))
    environment = rundir.write_environment({"A": "it's"}, "/opt/a b")
    bashrc = rundir.write_bashrc(environment)
    assert {os.stat(path).st_mode & 0o777 for path in (environment, bashrc)} == {0o600}
    rundir.remove()
    assert {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()} == before
    assert all((there / name).read_text() == "of the user" for name in before)


def test_what_cannot_be_written_is_told_with_its_name(there):
    rundir = Rundir(str(there))
    (there / "local-env").mkdir()
    with pytest.raises(ConfigError, match="local-env"):
        rundir.write_environment({}, "")
    rundir.remove()


def test_who_waits_for_a_directory_that_another_one_leaves_has_it_then(tmp_path):
    """The one before removes the directory and lets go of the lock."""
    place = tmp_path / "own"
    first = Rundir(str(place), own=True)
    (place / "left").mkdir()
    (place / "control").touch()
    with pytest.raises(ConfigError, match="runs there already"):
        Rundir(str(place))
    ending = threading.Timer(0.15, first.remove)
    ending.start()
    second = Rundir(str(place), own=True, wait_s=20.0)
    ending.join()
    assert os.listdir(place) == ["lock"]
    assert lock_file(place / "lock", 0.0) is None
    second.remove()
    assert not place.exists()


def test_one_that_is_for_nothing_else_is_emptied_and_removed_whoever_made_it(there):
    with pytest.raises(ConfigError, match="that nobody else may enter"):
        Rundir(str(there), own=True)
    there.chmod(0o700)
    (there / "left").mkdir()
    (there / "left" / "file").touch()
    (there / "link").symlink_to(there.parent)
    rundir = Rundir(str(there), own=True)
    assert os.listdir(there) == ["lock"]
    rundir.remove()
    assert not there.exists()
    assert there.parent.exists()
