"""Our file service under deployed NorFab: its broker between, its client fetches from our worker."""

import asyncio
import hashlib
import os
import threading
from pathlib import Path

import pytest

from broker.nfp.files.service import FileService
from broker.nfp.files.tree import Tree
from tests.live.norfab import norfab
from tests.live.ports import free_endpoint

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]


class Serving:
    """Our file worker in a thread of its own."""

    def __init__(self, root: Path, endpoint: str, key: str, state: Path) -> None:
        self.files = FileService(Tree(root))
        self.worker = self.files.worker(
            name="our-files", broker=[endpoint], server_key=key, state_dir=state, drain_s=1.0
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self._loop.run_until_complete(self.worker.run())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self.worker.stop)
        self._thread.join(20)
        self._loop.close()
        self.files.close()


def until_listed(client, name):
    for _ in range(100):
        listed = client.ask(do="mmi", service="mmi.service.broker", task="show_workers")["results"]
        if any(one["name"] == name for one in listed):
            return
        threading.Event().wait(0.1)
    raise AssertionError(f"{name} did not register")


def test_norfabs_client_fetches_from_our_worker_through_norfabs_broker(tmp_path):
    shared = tmp_path / "shared"
    (shared / "sub").mkdir(parents=True)
    data = os.urandom(3_000_001)
    (shared / "sub" / "big.bin").write_bytes(data)
    (shared / "a.txt").write_text("hello norfab\n")
    (shared / "w.key_secret").write_text("secret")
    (shared / "link").symlink_to("/etc/hostname")
    endpoint = free_endpoint()
    with norfab(tmp_path) as real:
        broker = real.broker(endpoint)
        client = real.client(endpoint, broker.ready["key"], "cli-1")
        with Serving(shared, endpoint, broker.ready["key"], tmp_path / "state"):
            until_listed(client, "our-files")
            listed = client.ask(do="run", service="filesharing", task="list_files", kwargs={"url": "nf://"})
            assert listed["our-files"]["result"] == ["a.txt", "sub"]
            fetched = client.ask(do="fetch", url="nf://sub/big.bin")
            assert fetched["answer"]["status"] == "200", fetched
            assert fetched["md5"] == hashlib.md5(data).hexdigest()
            again = client.ask(do="fetch", url="nf://a.txt", read=True)
            assert again["answer"]["content"] == "hello norfab\n"
            for url in ("nf://none", "nf://w.key_secret", "nf://link", "nf://../state"):
                assert client.ask(do="fetch", url=url)["answer"]["status"] in ("404", "500"), url
            walked = client.ask(do="run", service="filesharing", task="walk", kwargs={"url": "nf://"})
            assert walked["our-files"]["result"] == ["nf://a.txt", "nf://sub/big.bin"]
