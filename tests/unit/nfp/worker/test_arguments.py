"""URLs in arguments become paths or texts."""

import asyncio

import pytest

from broker.nfp.client.errors import FetchFailed
from broker.nfp.urls import is_url
from broker.nfp.worker import tasks
from broker.nfp.worker.tasks import localise, urls_in
from tests.tables import for_each


class Cache:
    def __init__(self, folder, **files):
        self.folder = folder
        self.asked = []
        for name, data in files.items():
            (folder / name).write_bytes(data)

    async def __call__(self, url):
        self.asked.append(url)
        path = self.folder / url.removeprefix("nf://").replace("/", "_")
        if not path.exists():
            raise FileNotFoundError(f"{url} is not there")
        return path


def run(arguments, fetch, **more):
    return asyncio.run(localise(arguments, fetch, **more))


def test_urls_are_replaced_wherever_they_are_and_fetched_once(tmp_path):
    cache = Cache(tmp_path, a=b"A", b=b"B")
    args = ["nf://a", 5, None, "plain", ["nf://b", {"deep": ["nf://a"], "nf://a": "a key stays"}]]
    kwargs = {"template": "nf://b", "text": "see nf://a there", "number": 1.5}
    got_args, got_kwargs = run((args, kwargs), cache)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert got_args == [a, 5, None, "plain", [b, {"deep": [a], "nf://a": "a key stays"}]]
    assert got_kwargs == {"template": b, "text": "see nf://a there", "number": 1.5}
    assert cache.asked == ["nf://a", "nf://b"]
    assert args[0] == "nf://a"  # what came is left as it is
    assert kwargs["template"] == "nf://b"


def test_arguments_without_a_url_are_the_same_object(tmp_path):
    arguments = ([1, "x"], {"a": ["y"]})
    cache = Cache(tmp_path)
    assert run(arguments, cache) is arguments
    assert cache.asked == []


def test_named_keywords_become_what_the_file_says(tmp_path):
    cache = Cache(tmp_path, a="grüße".encode())
    arguments = (["nf://a"], {"template": "nf://a", "files": ["nf://a"], "other": "nf://a"})
    args, kwargs = run(arguments, cache, as_text=("template", "files", "absent"))
    assert kwargs == {"template": "grüße", "files": ["grüße"], "other": str(tmp_path / "a")}
    assert args == [str(tmp_path / "a")]
    assert cache.asked == ["nf://a"]


@for_each(
    ("value", "is_one"),
    [
        ("nf://a", True),
        ("nf://ü b/c.txt", True),
        ("nf://", False),
        (" nf://a", False),
        ("NF://a", False),
        ("nf://a\nnf://b", False),
        ("nf://" + "x" * 5000, False),
        (b"nf://a", False),
        (None, False),
        (5, False),
    ],
)
def test_what_is_a_url(value, is_one):
    assert is_url(value) is is_one
    assert urls_in([value]) == ([value] if is_one else [])


def test_a_file_that_cannot_be_fetched_stops_the_task_with_its_name(tmp_path):
    cache = Cache(tmp_path, a=b"A")
    with pytest.raises(FetchFailed, match=r"^nf://none is not there$"):
        run(([], {"x": ["nf://a", "nf://none"]}), cache)

    async def fetch(url):
        raise OSError("the disk is gone")

    with pytest.raises(FetchFailed, match=r"^fetching 'nf://a' failed: the disk is gone$"):
        run((["nf://a"], {}), fetch)


def test_text_must_be_text_and_not_too_long(tmp_path, monkeypatch):
    cache = Cache(tmp_path, bad=b"\xff\xfe", long=b"x" * 100)
    with pytest.raises(FetchFailed, match="nf://bad"):
        run(([], {"t": "nf://bad"}), cache, as_text=("t",))
    monkeypatch.setattr(tasks, "TEXT_MAX_BYTES", 99)
    with pytest.raises(FetchFailed, match="longer than 99"):
        run(([], {"t": "nf://long"}), cache, as_text=("t",))


def test_many_files_and_deep_nesting_are_refused(tmp_path):
    cache = Cache(tmp_path)
    with pytest.raises(FetchFailed, match="more than"):
        run(([f"nf://{number}" for number in range(1000)], {}), cache)
    deep = "nf://a"
    for _ in range(200):
        deep = [deep]
    with pytest.raises(FetchFailed, match="deeper"):
        run(([deep], {}), cache)
    assert cache.asked == []


def test_cancelling_is_passed_on(tmp_path):
    async def scenario():
        async def never(url):
            await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await localise((["nf://a"], {}), never)

    asyncio.run(scenario())


def test_an_error_without_a_readable_text_is_told_as_one_that_fetching_ended_with():
    class Unreadable(Exception):
        def __str__(self):
            raise ValueError("no text")

    async def fetch(url):
        raise Unreadable

    with pytest.raises(
        FetchFailed, match=r"fetching 'nf://a' failed: .Unreadable, whose text cannot be read"
    ):
        run((["nf://a"], {}), fetch)
