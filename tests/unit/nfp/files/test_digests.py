"""Digests and what they remember."""

import hashlib
import os
import time

import pytest

from broker.nfp.files import tree as room
from broker.nfp.files.tree import Changed, Digests, OpenFile, Tree

OLD_NS = time.time_ns() - 3600 * 10**9


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    monkeypatch.setattr(room, "_SETTLED_NS", -(10**12))  # inodes of a test are always fresh


@pytest.fixture
def computed(monkeypatch):
    """Files that were read."""
    compute, found = room._compute, []
    monkeypatch.setattr(room, "_compute", lambda file, stop: (found.append(file), compute(file, stop))[1])
    return found


def opened(path):
    return OpenFile(os.open(path, os.O_RDONLY))


def digest(digests, path, **more):
    return digests.of(opened(path), **more)


def test_both_digests_of_any_size(tmp_path):
    for size in (0, 1, room.BLOCK_BYTES, room.BLOCK_BYTES * 2 + 1):
        data = os.urandom(size)
        (tmp_path / "f").write_bytes(data)
        found = digest(Digests(), tmp_path / "f")
        assert found == (hashlib.md5(data).hexdigest(), hashlib.sha256(data).hexdigest())


def test_they_are_remembered_until_the_file_changes_and_in_bounds(tmp_path, computed, monkeypatch):
    monkeypatch.setattr(room, "DIGESTS_MAX", 2)
    digests = Digests()
    for name in "abc":
        (tmp_path / name).write_text(name)
    digest(digests, tmp_path / "a")
    digest(digests, tmp_path / "a")
    assert len(computed) == 1
    (tmp_path / "a").write_text("changed")
    assert digest(digests, tmp_path / "a")[0] == hashlib.md5(b"changed").hexdigest()
    digest(digests, tmp_path / "b")
    digest(digests, tmp_path / "c")
    assert len(computed) == 4
    digest(digests, tmp_path / "c")
    digest(digests, tmp_path / "a")  # was forgotten
    assert len(computed) == 5


def test_a_file_that_changed_a_moment_ago_is_not_remembered(tmp_path, computed, monkeypatch):
    monkeypatch.setattr(room, "_SETTLED_NS", 3600 * 10**9)
    digests = Digests()
    (tmp_path / "a").write_text("a")
    digest(digests, tmp_path / "a")
    digest(digests, tmp_path / "a")
    assert len(computed) == 2


def test_a_file_that_never_stands_still_is_told(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_text("x")
    read = os.pread

    def growing(fd, size, at):
        with open(path, "a") as file:
            file.write("more")
        return read(fd, size, at)

    monkeypatch.setattr(os, "pread", growing)
    with pytest.raises(Changed):
        digest(Digests(), path)


def test_it_stops_when_told(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * (room.BLOCK_BYTES * 3))
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > 2

    with pytest.raises(InterruptedError):
        digest(Digests(), tmp_path / "a", stop=stop)
    assert len(asked) == 3


def test_a_hard_link_shares_what_is_remembered(tmp_path, computed):
    tree = Tree(tmp_path)
    (tmp_path / "a").write_text("a")
    os.link(tmp_path / "a", tmp_path / "b")
    digests = Digests()
    assert digest(digests, tmp_path / "a") == digest(digests, tmp_path / "b")
    assert len(computed) == 1
    tree.close()
