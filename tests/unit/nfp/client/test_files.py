"""Fetching files: credits, order, digest, what is here already, what was begun."""

import asyncio
import errno
import fcntl
import os

import pytest

from broker.errors import HeadgateError
from broker.nfp.client import FetchFailed, JobTimeout
from broker.nfp.client.fetch import PIPELINE, Details, destination_of, part_of, path_of
from broker.nfp.names import Command
from tests.tables import for_each
from tests.unit.nfp.client.fake_broker import FakeBroker
from tests.unit.nfp.client.running import WITHIN_S, client_of

URL = "nf://configs/a.bin"
CHUNK = 1000


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch):
    monkeypatch.setattr("broker.nfp.client.fetch._PAUSE_S", 0.0)
    monkeypatch.setattr("broker.nfp.client.fetch._LOCK_S", 0.01)
    monkeypatch.setattr("broker.nfp.client.fetch.CHUNK_BYTES", CHUNK)


@pytest.fixture(params=[True, False], ids=["sha256", "md5"])
def broker(request):
    with FakeBroker(push=request.param) as fake:
        fake.files[URL] = os.urandom(25_300)
        yield fake


def fetch(broker, to, times=1, **options):
    """Fetch `times` times; returns what each brought."""

    async def main():
        async with asyncio.timeout(WITHIN_S), client_of(broker) as client:
            return [await client.fetch(URL, to, **options) for _ in range(times)]

    return asyncio.run(main())


def tasks(broker):
    return [data.split(b'"')[3].decode() for command, _uuid, _names, data in broker.seen if command == "POST"]


def part(broker, path):
    import hashlib

    data = broker.files[URL]
    sha256 = hashlib.sha256(data).hexdigest() if broker.push else ""
    return part_of(path, Details(len(data), hashlib.md5(data).hexdigest(), sha256))


def test_fetch(broker, tmp_path):
    steps = []
    (found,) = fetch(broker, tmp_path / "here.bin", progress=lambda have, total: steps.append((have, total)))
    assert found.path.read_bytes() == broker.files[URL]
    assert (found.size_bytes, found.cached) == (25_300, False)
    assert len(found.digest) == (64 if broker.push else 32)
    assert steps[0] == (0, 25_300)
    assert steps[-1] == (25_300, 25_300)
    assert os.listdir(tmp_path) == ["here.bin"]


def test_chunks_are_asked_for_ahead_and_once_each(broker, tmp_path):
    fetch(broker, tmp_path / "a")
    asked = [
        int(data.split(b":")[1][:-1]) for command, _uuid, _names, data in broker.seen if command == "PUT"
    ]
    assert asked == list(range(CHUNK, 25_300, CHUNK))
    first_turn = [seen[0] for seen in broker.seen if seen[0] in ("PUT", "POST")][2:]
    assert first_turn[:PIPELINE] == ["PUT"] * PIPELINE


def test_a_copy_that_is_the_same_is_not_sent_again(broker, tmp_path):
    first, second = fetch(broker, tmp_path / "a", times=2)
    assert (first.cached, second.cached) == (False, True)
    assert tasks(broker) == ["file_details", "fetch_file", "file_details"]


def test_a_copy_that_differs_is_replaced(broker, tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 25_300)
    (found,) = fetch(broker, tmp_path / "a")
    assert not found.cached
    assert found.path.read_bytes() == broker.files[URL]


def test_what_was_begun_is_continued(broker, tmp_path):
    begun = part(broker, tmp_path / "a")
    begun.write_bytes(broker.files[URL][:10_000])
    (found,) = fetch(broker, tmp_path / "a")
    assert found.path.read_bytes() == broker.files[URL]
    assert not begun.exists()
    (post,) = [seen[3] for seen in broker.seen if seen[0] == "POST" and b"fetch_file" in seen[3]]
    assert b'"offset":10000' in post


def test_what_was_begun_and_is_wrong_is_thrown_away(broker, tmp_path):
    part(broker, tmp_path / "a").write_bytes(b"x" * 10_000)
    (found,) = fetch(broker, tmp_path / "a")
    assert found.path.read_bytes() == broker.files[URL]


def test_all_bytes_are_here_but_not_in_place(broker, tmp_path):
    part(broker, tmp_path / "a").write_bytes(broker.files[URL])
    (found,) = fetch(broker, tmp_path / "a")
    assert found.path.read_bytes() == broker.files[URL]
    assert "fetch_file" not in tasks(broker)


def test_another_worker_goes_on_where_one_stopped(broker, tmp_path):
    broker.chunks_left = {"f1": 4, "f2": 3}
    (found,) = fetch(broker, tmp_path / "a")
    assert found.path.read_bytes() == broker.files[URL]
    offsets = [
        seen[3].rsplit(b'"offset":', 1)[1]
        for seen in broker.seen
        if b"fetch_file" in seen[3] and seen[0] == "POST"
    ]
    assert len(offsets) == 3
    assert [int(text.split(b"}")[0]) for text in offsets] in ([0, 3000, 7000], [0, 4000, 7000])


def test_a_wrong_byte_is_found_by_the_digest_and_fetched_again(broker, tmp_path):
    broker.corrupt = 1
    (found,) = fetch(broker, tmp_path / "a")
    assert found.path.read_bytes() == broker.files[URL]
    assert tasks(broker).count("fetch_file") == 2


def test_bytes_that_stay_wrong(broker, tmp_path):
    broker.corrupt = 1000
    with pytest.raises(FetchFailed, match=r"digest .* expected"):
        fetch(broker, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_an_empty_file(broker, tmp_path):
    broker.files[URL] = b""
    (found,) = fetch(broker, tmp_path / "a")
    assert found.path.read_bytes() == b""


def test_a_file_of_exactly_two_chunks(broker, tmp_path):
    broker.files[URL] = os.urandom(2 * CHUNK)
    (found,) = fetch(broker, tmp_path / "a")
    assert found.path.read_bytes() == broker.files[URL]


def test_a_file_that_nobody_has(broker, tmp_path):
    broker.files.clear()
    with pytest.raises(FetchFailed, match="file not found") as caught:
        fetch(broker, tmp_path / "a")
    assert caught.value.errno == errno.ENOENT
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written(broker, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchFailed):
        fetch(broker, tmp_path / "file" / "a")


def test_a_link_in_place_of_the_partial_file_is_not_followed(broker, tmp_path):
    (tmp_path / "precious").write_text("precious")
    part(broker, tmp_path / "a").symlink_to(tmp_path / "precious")
    with pytest.raises(FetchFailed):
        fetch(broker, tmp_path / "a")
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["ß" * 127, "a" + "€" * 84, "x" * 255], ids=["2", "3", "1"])
def test_a_name_as_long_as_a_disk_takes(broker, tmp_path, name):
    (found,) = fetch(broker, tmp_path / name)
    assert found.path.read_bytes() == broker.files[URL]
    assert os.listdir(tmp_path) == [name]


def test_list_files(broker):
    async def main():
        async with asyncio.timeout(WITHIN_S), client_of(broker) as client:
            return await client.list_files("nf://")

    assert asyncio.run(main()) == ["configs/a.bin"]


def test_where_a_file_goes(tmp_path):
    assert destination_of(URL, None, tmp_path) == tmp_path / "configs" / "a.bin"
    assert destination_of(URL, tmp_path, tmp_path) == tmp_path / "a.bin"
    assert destination_of(URL, f"{tmp_path}/new/", tmp_path) == tmp_path / "new" / "a.bin"
    assert destination_of(URL, tmp_path / "other", tmp_path) == tmp_path / "other"


@for_each("url", ["nf://", "http://x/y", "nf://a/../../b", "nf://..", "nf://a\0b", "configs/a"])
def test_what_names_no_file_is_refused(url):
    with pytest.raises(HeadgateError, match="no nf:// URL"):
        path_of(url)


def test_a_callback_that_raises_ends_the_transfer(broker, tmp_path):
    class Enough(Exception):
        pass

    def progress(have, total):
        if have > total // 2:
            raise Enough

    with pytest.raises(Enough):
        fetch(broker, tmp_path / "a", progress=progress)
    assert part(broker, tmp_path / "a").stat().st_size == 13_000
    broker.wait_for(lambda b: b.count("DELETE") == 1)
    fetch(broker, tmp_path / "a")


def test_a_chunk_of_the_wrong_size_ends_the_attempt(broker, tmp_path):
    steps = []

    def progress(have, total):
        steps.append(have)
        if have == 5000:
            uuid = next(uuid for uuid, job in broker.jobs.items() if job["task"] == "fetch_file")
            broker.do(
                lambda: broker.send(
                    broker.jobs[uuid]["client"], Command.STREAM, uuid, 200, b"odd", "filesharing"
                )
            )

    (found,) = fetch(broker, tmp_path / "a", progress=progress)
    assert found.path.read_bytes() == broker.files[URL]
    assert tasks(broker).count("fetch_file") == 2
    assert steps == sorted(steps)


@pytest.mark.parametrize("times", [2, 5])
def test_several_clients_fetch_to_one_place_at_once(broker, tmp_path, times):
    async def one(name):
        async with client_of(broker, name) as client:
            return await client.fetch(URL, tmp_path / "a")

    async def main():
        async with asyncio.timeout(WITHIN_S):
            return await asyncio.gather(*(one(f"c{each}") for each in range(times)))

    found = asyncio.run(main())
    assert (tmp_path / "a").read_bytes() == broker.files[URL]
    assert sorted(each.cached for each in found) == [False] + [True] * (times - 1)
    assert tasks(broker).count("fetch_file") == 1
    assert os.listdir(tmp_path) == ["a"]


def test_a_partial_file_that_another_writes_is_waited_for_until_the_deadline(broker, tmp_path):
    with open(part(broker, tmp_path / "a"), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(FetchFailed, match="another program that fetches the same file"):
            fetch(broker, tmp_path / "a", timeout_s=0.25)
    (found,) = fetch(broker, tmp_path / "a")
    assert found.path.read_bytes() == broker.files[URL]


def test_what_came_of_other_contents_goes_when_a_file_is_replaced(broker, tmp_path):
    """It would never be taken up; but for what somebody is writing."""
    fetch(broker, tmp_path / "a[1]")
    broker.files[URL] = b"left"
    part(broker, tmp_path / "a[1]").touch()
    part(broker, tmp_path / "a1").touch()
    broker.files[URL] = b"being written"
    with open(part(broker, tmp_path / "a[1]"), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        broker.files[URL] = b"newest"
        fetch(broker, tmp_path / "a[1]")
        assert (tmp_path / "a[1]").read_bytes() == b"newest"
        names = sorted(os.listdir(tmp_path))
    assert [name.split(".")[1] for name in names[:-1]] == ["a1", "a[1]"]
    assert names[-1] == "a[1]"
    assert os.path.samefile(tmp_path / names[1], file.name)


def test_a_transfer_that_takes_too_long_is_no_error_of_the_disk(broker, tmp_path):
    broker._chunk = lambda *_: None
    with pytest.raises(JobTimeout, match="nothing final"):
        fetch(broker, tmp_path / "a", timeout_s=0.25)
