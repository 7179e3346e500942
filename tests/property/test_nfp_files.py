"""URLs made of everything that ever led out of a folder lead nowhere but into it."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.nfp.files.tree import Missing, Tree
from broker.nfp.urls import Unsafe, names_of, url_of

WAYS = ["..", ".", "", "\\", "..\\", "/", "//", "~", "$HOME", "nf:", "nf://", "C:", "%2e%2e", "\0", "\udc80"]
NAMES = [
    "a.txt",
    "sub",
    "b.txt",
    "out",
    "up",
    "root",
    "secret",
    "key.txt",
    "w.key_secret",
    "private_keys",
    "x" * 300,
]
WORDS = st.sampled_from([*WAYS, *NAMES, "é", "e\u0301"])
URLS = st.one_of(
    st.lists(WORDS, max_size=8).map(lambda words: "nf://" + "/".join(words)),
    st.lists(WORDS, max_size=8).map("".join),
    st.text(max_size=40).map(lambda text: "nf://" + text),
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    base = tmp_path_factory.mktemp("files")
    (base / "root" / "sub" / "private_keys").mkdir(parents=True)
    (base / "secret").mkdir()
    for path in ("secret/key.txt", "root/w.key_secret", "root/sub/private_keys/key.txt"):
        (base / path).write_text("secret")
    for path in ("root/a.txt", "root/sub/b.txt"):
        (base / path).write_text("shared")
    (base / "root" / "out").symlink_to(base / "secret")
    (base / "root" / "sub" / "up").symlink_to("../..")
    (base / "root" / "sub" / "key.txt").symlink_to(base / "secret" / "key.txt")
    tree = Tree(base / "root")
    yield tree
    tree.close()


@given(url=URLS)
def test_only_what_is_shared_is_ever_opened_or_listed(tree, url):
    try:
        names = names_of(url)
    except Unsafe:
        return
    assert names_of(url_of(names)) == names
    try:
        file = tree.open_file(names)
    except Missing:
        pass
    else:
        assert os.pread(file.fd, 100, 0) == b"shared"
    for listing in (tree.list_folder, tree.walk):
        try:
            told = listing(names)
        except Missing:
            continue
        assert {name.split("/")[-1] for name in told} <= {"a.txt", "b.txt", "sub"}
