"""The directory of a local tree: one that was there before keeps what is in it."""

import os

import pytest

from broker.errors import ConfigError
from broker.local.rundir import Rundir


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
