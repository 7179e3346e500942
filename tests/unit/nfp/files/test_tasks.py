"""The tasks: answers in the deployed shapes, transfers by credits."""

import hashlib
import os

import pytest

from broker.nfp.client.errors import JobCancelled
from broker.nfp.files.service import CHUNK_MAX_BYTES, URLS_MAX, FileService
from broker.nfp.files.tree import Tree
from tests.tables import for_each

DATA = os.urandom(1000)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("hello norfab\n")
    (tmp_path / "sub" / "big.bin").write_bytes(DATA)
    (tmp_path / "empty").touch()
    return tmp_path


@pytest.fixture
def sharing(root, monkeypatch):
    monkeypatch.setattr("broker.nfp.files.tree.FILE_MAX_BYTES", 5000)
    service = FileService(Tree(root))
    yield service
    service.close()


class Client:
    """Asks for ``offsets``, one after the other, and keeps what it gets."""

    def __init__(self, *offsets, after=None):
        self.offsets = list(offsets)
        self.after = after
        self.cancelled = False
        self.chunks = []
        self.waited = []

    def stream(self, chunk):
        self.chunks.append(bytes(chunk))
        if self.after is not None:
            self.after()

    def next_offset(self, timeout_s):
        self.waited.append(timeout_s)
        return self.offsets.pop(0) if self.offsets else None


def fetch(sharing, client, url="nf://sub/big.bin", **more):
    return sharing.fetch_file(client, url, **more)


def test_a_fetch_streams_the_first_chunk_unasked_and_ends_at_the_end(sharing):
    client = Client(256, 512, 768)
    outcome = fetch(sharing, client, chunk_size=256)
    assert (outcome.result, outcome.failed) == (True, False)
    assert b"".join(client.chunks) == DATA
    assert [len(chunk) for chunk in client.chunks] == [256, 256, 256, 232]
    assert client.waited == [5.0, 5.0, 5.0]


def test_a_file_of_one_chunk_needs_no_credit(sharing):
    for url, data in (("nf://a.txt", b"hello norfab\n"), ("nf://empty", b"")):
        client = Client()
        assert fetch(sharing, client, url).result is True
        assert b"".join(client.chunks) == data
        assert client.waited == []


def test_it_resumes_at_any_offset(sharing):
    client = Client(800)
    assert fetch(sharing, client, offset=600, chunk_size=200).result is True
    assert b"".join(client.chunks) == DATA[600:]
    for offset in (1000, 10**12):
        client = Client()
        assert fetch(sharing, client, offset=offset).result is True
        assert client.chunks == []


def test_a_client_that_asks_for_nothing_more_ends_it(sharing):
    client = Client()
    outcome = fetch(sharing, client, chunk_size=100, chunk_timeout=0.5)
    assert outcome.failed
    assert outcome.errors == ["0.5 s without a request for the next chunk"]
    assert client.waited == [0.5]
    client = Client()
    fetch(sharing, client, chunk_size=100, chunk_timeout=10**6)
    assert client.waited == [60.0]


@for_each(
    "wrong",
    [
        {"chunk_size": 0},
        {"chunk_size": -1},
        {"chunk_size": CHUNK_MAX_BYTES + 1},
        {"chunk_size": "256"},
        {"chunk_size": True},
        {"offset": -1},
        {"offset": 2**70},
        {"offset": None},
        {"chunk_timeout": 0},
        {"chunk_timeout": float("nan")},
        {"chunk_timeout": "5"},
    ],
)
def test_wrong_arguments_are_told(sharing, wrong):
    client = Client()
    outcome = fetch(sharing, client, **wrong)
    assert outcome.failed
    assert outcome.errors[0].startswith(next(iter(wrong)))
    assert client.chunks == []


def test_a_negative_credit_ends_it(sharing):
    assert fetch(sharing, Client(-5), chunk_size=10).errors == ["offset -5, expected 0 or more"]


def test_a_file_that_changes_meanwhile_is_told(sharing, root):
    path = root / "sub" / "big.bin"
    outcome = fetch(sharing, Client(500, after=lambda: path.write_bytes(b"y" * 700)), chunk_size=500)
    assert outcome.failed
    assert "shorter" in outcome.errors[0]
    path.write_bytes(DATA)
    outcome = fetch(sharing, Client(500, after=lambda: path.write_bytes(b"y" * 1000)), chunk_size=500)
    assert outcome.failed
    assert "changed" in outcome.errors[0]


@for_each("url", ["nf://none", "nf://../etc/passwd", "http://x", "nf://sub", 5])
def test_what_cannot_be_fetched_fails_without_a_chunk(sharing, url):
    client = Client()
    outcome = fetch(sharing, client, url)
    assert outcome.failed
    assert client.chunks == []
    assert "/" + "tmp" not in outcome.errors[0]


def test_no_descriptor_is_left_when_a_transfer_is_cancelled(sharing):
    class Cancelled(Client):
        def next_offset(self, timeout_s):
            assert len(os.listdir("/proc/self/fd")) == before + 1
            raise JobCancelled("job u1 was cancelled", "u1")

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(JobCancelled):
        fetch(sharing, Cancelled(), chunk_size=10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_details_of_one_and_of_many(sharing):
    outcome = sharing.file_details(Client(), "nf://a.txt")
    data = b"hello norfab\n"
    details = {
        "md5hash": hashlib.md5(data).hexdigest(),
        "sha256": hashlib.sha256(data).hexdigest(),
        "size_bytes": 13,
        "exists": True,
    }
    assert outcome.result == details
    outcome = sharing.file_details(Client(), ["nf://a.txt", "nf://none", "nf://../x", "nf://a.txt"])
    assert not outcome.failed  # each entry says so itself
    assert outcome.result["nf://a.txt"] == {"result": details, "failed": False, "errors": []}
    absent = {"md5hash": None, "sha256": None, "size_bytes": None, "exists": False}
    assert outcome.result["nf://none"] == {
        "result": absent, "failed": True, "errors": ["'nf://none' file not found"],
    }  # fmt: skip
    assert outcome.result["nf://../x"]["failed"]
    assert len(outcome.errors) == 2
    assert sharing.file_details(Client(), []).result == {}


def test_details_are_bounded(sharing, root):
    (root / "huge").write_bytes(b"x" * 6000)
    outcome = sharing.file_details(Client(), "nf://huge")
    assert outcome.failed
    assert "at most 5000" in outcome.errors[0]
    for wrong in (None, 5, ["nf://a", 5], {"url": 1}, ["nf://a"] * (URLS_MAX + 1)):
        assert sharing.file_details(Client(), wrong).failed


def test_details_stop_when_the_job_is_cancelled(sharing):
    cancelled = Client()
    cancelled.cancelled = True
    outcome = sharing.file_details(cancelled, "nf://a.txt")
    assert outcome.failed
    assert "cancelled" in outcome.errors[0]


def test_listings(sharing):
    assert sharing.list_files("nf://").result == ["a.txt", "empty", "sub"]
    assert sharing.walk("nf://").result == ["nf://a.txt", "nf://empty", "nf://sub/big.bin"]
    assert sharing.walk("nf://sub").result == ["nf://sub/big.bin"]
    for task in (sharing.list_files, sharing.walk):
        assert task("nf://none").errors == ["Directory Not Found"]
        assert task("nf://a.txt").failed
        assert task("nf://..").failed
        assert task(None).failed
