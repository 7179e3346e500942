"""The folder of sockets: modes, owners, one proxy for each room."""

import grp
import os
import stat

import pytest

from broker.errors import ConfigError, NotReady
from broker.oslo.proxy.folder import NodeFolder
from tests.tables import for_each


def mode(path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_it_is_made_with_its_parents_for_us_alone(tmp_path):
    path = tmp_path / "a" / "b"
    folder = NodeFolder(str(path))
    folder.open({"call"})
    assert mode(path) == 0o700
    assert mode(path / "call.lock") == 0o600
    folder.close()
    folder.close()


def test_a_group_may_use_it(tmp_path):
    path = tmp_path / "b"
    own = grp.getgrgid(os.getgid()).gr_name
    for group in (own, str(os.getgid())):
        folder = NodeFolder(str(path), group)
        folder.open({"call"})
        assert (mode(path), os.stat(path).st_gid) == (0o750, os.getgid())
        folder.close()
    with pytest.raises(NotReady, match="no such group"):  # sssd, LDAP may come up later
        NodeFolder(str(path), "no-such-group-here").open({"call"})


@for_each("wrong", [0o755, 0o777, 0o770, 0o701, 0o1777])
def test_it_is_refused_when_others_get_in(tmp_path, wrong):
    path = tmp_path / "b"
    path.mkdir(exist_ok=True)
    path.chmod(wrong)
    with pytest.raises(ConfigError, match="lets others in"):
        NodeFolder(str(path)).open({"call"})
    assert list(path.iterdir()) == []


def test_a_group_that_was_allowed_before_is_no_longer(tmp_path):
    path = tmp_path / "b"
    path.mkdir(0o750)
    folder = NodeFolder(str(path))
    folder.open(())
    assert mode(path) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="optional: only root can give a folder away")
def test_it_is_refused_when_it_is_somebody_elses(tmp_path):
    path = tmp_path / "b"
    path.mkdir(0o700)
    os.chown(path, 12345, -1)
    with pytest.raises(ConfigError, match="uid 12345"):
        NodeFolder(str(path)).open({"call"})


def test_a_link_or_a_file_is_no_folder(tmp_path):
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(ConfigError):
            NodeFolder(str(tmp_path / name)).open({"call"})


def test_paths_that_cannot_work_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="longer than"):
        NodeFolder("/" + "x" * 100).open({"call"})
    with pytest.raises(ConfigError, match="absolute"):
        NodeFolder("somewhere").open({"call"})


def test_one_proxy_for_each_room(tmp_path):
    path = str(tmp_path / "b")
    first, second, third = (NodeFolder(path) for _ in range(3))
    first.open({"call", "cast"})
    with pytest.raises(ConfigError, match=rf"another proxy \(pid {os.getpid()}\) runs cast"):
        second.open({"cast", "directory"})
    third.open({"directory"})
    first.close()
    second.open({"cast"})
    second.close()
    third.close()
