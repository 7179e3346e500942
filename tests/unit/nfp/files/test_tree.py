"""What may be opened: the table of ways out, links, devices, state, races."""

import errno
import gc
import os
import socket
import threading

import pytest

from broker.nfp.files.tree import Missing, TooLarge, Tree
from broker.nfp.urls import DEPTH_MAX, Unsafe, names_of, url_of
from tests.tables import for_each


@pytest.fixture
def outside(tmp_path):
    """A secret next to the shared folder."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.txt").write_text("open sesame")
    return tmp_path / "secret"


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "a.txt").write_text("hello")
    (root / "sub" / "b.bin").write_bytes(bytes(range(256)))
    (root / "sub" / "deep" / "ü c.txt").write_text("deep")
    return root


@pytest.fixture
def tree(root):
    tree = Tree(root)
    yield tree
    tree.close()


def content(tree, url):
    file = tree.open_file(names_of(url))
    return os.pread(file.fd, 1 << 20, 0)


@for_each(
    ("url", "names"),
    [
        ("nf://a.txt", ("a.txt",)),
        ("nf:///a.txt", ("a.txt",)),
        ("nf://sub//./b.bin", ("sub", "b.bin")),
        ("nf://sub\\b.bin", ("sub", "b.bin")),
        ("nf://", ()),
        ("nf:////", ()),
        ("nf://sub/deep/ü c.txt", ("sub", "deep", "ü c.txt")),
        ("nf://%2e%2e/x", ("%2e%2e", "x")),
        ("nf://a.txt?x#y", ("a.txt?x#y",)),
    ],
)
def test_names_of_urls(url, names):
    assert names_of(url) == names
    assert names_of(url_of(names)) == names


@for_each(
    "url",
    [
        "",
        "a.txt",
        "/etc/passwd",
        "file:///etc/passwd",
        "NF://a.txt",
        " nf://a.txt",
        "nf:/a.txt",
        "nf://..",
        "nf://../secret/key.txt",
        "nf:///../secret/key.txt",
        "nf://sub/../../secret/key.txt",
        "nf://sub/../a.txt",
        "nf://sub\\..\\..\\secret\\key.txt",
        "nf://a.txt\0",
        "nf://a\0b",
        "nf://\udcff",
        "nf://" + "x" * 5000,
        "nf://" + "d/" * (DEPTH_MAX + 1),
        None,
        7,
        ["nf://a.txt"],
        b"nf://a.txt",
    ],
)
def test_urls_that_cannot_name_a_file_are_refused_with_a_short_text(tree, url):
    with pytest.raises(Unsafe) as refused:
        names_of(url)
    assert len(str(refused.value)) < 400


def test_files_are_read(tree):
    assert content(tree, "nf://a.txt") == b"hello"
    assert content(tree, "nf://sub/b.bin") == bytes(range(256))
    assert content(tree, "nf://sub/deep/ü c.txt") == b"deep"


@for_each(
    "url",
    [
        "nf://",
        "nf://sub",
        "nf://none",
        "nf://none/a.txt",
        "nf://a.txt/b",
        "nf://" + "n" * 300,
        "nf://" + "/".join("d" * 40 for _ in range(60)),
        "nf://%2e%2e/secret/key.txt",
    ],
)
def test_what_is_no_file_is_missing(tree, url):
    with pytest.raises(Missing):
        tree.open_file(names_of(url))


def test_no_link_is_followed_wherever_it_leads(tree, root, outside):
    (root / "file_out").symlink_to(outside / "key.txt")
    (root / "folder_out").symlink_to(outside)
    (root / "sub" / "up").symlink_to("..")
    (root / "inside").symlink_to("a.txt")
    (root / "loop").symlink_to("loop")
    (root / "proc").symlink_to("/proc/self/environ")
    for url in ("file_out", "folder_out/key.txt", "sub/up/a.txt", "sub/up", "inside", "loop", "proc"):
        with pytest.raises(Missing):
            tree.open_file(names_of(f"nf://{url}"))
        with pytest.raises(Missing):
            tree.list_folder(names_of(f"nf://{url}"))
    assert tree.list_folder(()) == ["a.txt", "sub"]
    assert tree.walk(()) == ["nf://a.txt", "nf://sub/b.bin", "nf://sub/deep/ü c.txt"]


def test_fifos_sockets_and_devices_neither_block_nor_open(tree, root):
    os.mkfifo(root / "fifo")
    listening = socket.socket(socket.AF_UNIX)
    here = os.open(root, os.O_RDONLY)  # a path below 108 bytes, wherever the root is
    listening.bind(f"/proc/self/fd/{here}/sock")
    os.close(here)
    try:
        names = ["fifo", "sock"]
        try:
            os.mknod(root / "null", 0o600 | 0o020000, os.makedev(1, 3))
            names.append("null")
        except PermissionError:
            pass  # only root makes devices; the other two are checked anyway
        for name in names:
            with pytest.raises(Missing):
                tree.open_file((name,))
        assert tree.list_folder(()) == ["a.txt", "sub"]
    finally:
        listening.close()


@for_each(
    "path",
    [
        "broker.key_secret",
        "BROKER.KEY_SECRET",
        "sub/w1.key_secret",
        "nfp.db",
        "nfp.db-wal",
        "nfp.db-shm",
        "old.db.bak",
        ".hidden",
        ".ssh/id",
        "private_keys/k.txt",
        "sub/private_keys/k.txt",
        "__norfab__/files/k.txt",
    ],
)
def test_secrets_stores_and_hidden_names_are_not_there(tree, root, path):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("x")
    with pytest.raises(Missing):
        tree.open_file(names_of(f"nf://{path}"))
    told = tree.walk(()) + tree.list_folder(()) + tree.list_folder(("sub",))
    gone = {path.split("/")[-1], "private_keys", ".ssh", "__norfab__"}
    assert told
    assert not gone & {name.split("/")[-1] for name in told}


def test_the_deny_list_is_a_setting(root):
    (root / "notes.draft").write_text("x")
    (root / ".profile").write_text("x")
    (root / "w.key_secret").write_text("x")
    tree = Tree(root, deny=["*.draft"])
    try:
        with pytest.raises(Missing):
            tree.open_file(("w.key_secret",))  # whatever the settings say
        assert ".profile" in tree.list_folder(())
        with pytest.raises(Missing):
            tree.open_file(("notes.draft",))
    finally:
        tree.close()


def test_state_of_the_broker_is_not_served_under_any_name(root):
    state = root / "state"
    state.mkdir()
    (state / "plain").write_text("x")
    key = root / "sub" / "key"
    key.write_text("secret")
    os.link(key, root / "second_name")
    tree = Tree(root, own=[state, key, root / "not there yet"])
    try:
        for names in (("state", "plain"), ("sub", "key"), ("second_name",)):
            with pytest.raises(Missing):
                tree.open_file(names)
        with pytest.raises(Missing):
            tree.list_folder(("state",))
        assert tree.walk(()) == ["nf://a.txt", "nf://sub/b.bin", "nf://sub/deep/ü c.txt"]
        assert tree.list_folder(()) == ["a.txt", "sub"]
        (root / "not there yet").write_text("x")
        with pytest.raises(Missing):
            tree.open_file(("not there yet",))
    finally:
        tree.close()


def test_the_journals_of_a_store_are_state_like_the_store(root):
    for name in ("jobs", "jobs-wal", "jobs-shm", "jobs-other"):
        (root / name).write_text("x")
    tree = Tree(root, own=[root / "jobs"])
    try:
        assert [name for name in tree.list_folder(()) if name.startswith("jobs")] == ["jobs-other"]
    finally:
        tree.close()


def test_a_file_larger_than_the_cap_is_told_so(root, monkeypatch):
    monkeypatch.setattr("broker.nfp.files.tree.FILE_MAX_BYTES", 5)
    tree = Tree(root)
    try:
        assert content(tree, "nf://a.txt") == b"hello"
        with pytest.raises(TooLarge, match="256 bytes, at most 5") as raised:
            tree.open_file(("sub", "b.bin"))
        assert raised.value.errno == errno.EFBIG
    finally:
        tree.close()


def test_listings_are_bounded(root, monkeypatch):
    monkeypatch.setattr("broker.nfp.files.tree.ENTRIES_MAX", 10)
    for number in range(20):
        (root / "sub" / f"f{number}").touch()
    tree = Tree(root)
    try:
        with pytest.raises(TooLarge, match="more than 10"):
            tree.list_folder(("sub",))
        with pytest.raises(TooLarge):
            tree.walk(())
        assert tree.list_folder(()) == ["a.txt", "sub"]
    finally:
        tree.close()


def test_names_that_no_url_can_carry_are_left_out(tree, root):
    with open(os.path.join(os.fsencode(root), b"bad\xff"), "wb"):
        pass
    assert tree.list_folder(()) == ["a.txt", "sub"]


def test_what_a_url_can_carry_is_no_matter_of_the_locale(tree, root, monkeypatch):
    (root / "zürich.txt").touch()
    monkeypatch.setattr(os, "fsencode", lambda name: name.encode("latin-1", "surrogateescape"))
    assert "zürich.txt" in tree.list_folder(())


def test_a_tree_deeper_than_urls_reach_ends(tree, root):
    at = root
    for _ in range(DEPTH_MAX + 5):
        at = at / "d"
        at.mkdir()
    (at / "lost").touch()
    assert not [url for url in tree.walk(()) if "lost" in url]


def test_the_root_stays_the_folder_that_was_opened(tree, root, outside):
    root.rename(root.with_name("moved"))
    root.symlink_to(outside)
    assert content(tree, "nf://a.txt") == b"hello"
    with pytest.raises(Missing):
        tree.open_file(("key.txt",))


def test_a_closed_tree_serves_nothing(root):
    tree = Tree(root)
    tree.close()
    tree.close()
    with pytest.raises(Missing):
        tree.open_file(("a.txt",))
    with pytest.raises(Missing):
        tree.walk(())


def test_no_descriptor_is_left_behind(tree, root, outside):
    (root / "link").symlink_to(outside / "key.txt")
    gc.collect()  # what former tests have left must not be closed in between
    before = len(os.listdir("/proc/self/fd"))
    for names in (("a.txt",), ("link",), ("sub", "none"), ("sub", "b.bin", "x"), (".x",), ()):
        try:
            tree.open_file(names)
        except Missing:
            pass
        try:
            tree.list_folder(names)
        except Missing:
            pass
    tree.walk(())
    assert len(os.listdir("/proc/self/fd")) == before


def test_swapping_a_folder_for_a_link_meanwhile_never_leads_out(tree, root, outside):
    (root / "swap").mkdir()
    (root / "swap" / "key.txt").write_text("harmless")
    (root / "link").symlink_to(outside)
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            os.rename(root / "swap", root / "kept")
            os.rename(root / "link", root / "swap")
            os.rename(root / "swap", root / "link")
            os.rename(root / "kept", root / "swap")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen = set()
        for _ in range(3000):
            try:
                seen.add(content(tree, "nf://swap/key.txt"))
            except Missing:
                seen.add(None)
    finally:
        stop.set()
        thread.join()
    assert seen <= {b"harmless", None}


def test_a_root_that_cannot_be_used_is_told(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError):
        Tree(tmp_path / "file")
    fresh = tmp_path / "made" / "now"
    tree = Tree(fresh)
    assert tree.walk(()) == []
    assert fresh.is_dir()
    tree.close()
