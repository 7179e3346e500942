"""Our worker and client at the real NorFab broker, with its real client beside them."""

import asyncio
import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.nfp.client import NfpClient
from broker.nfp.worker import JobContext, Result, ThreadContext, Worker
from tests.live.norfab import NorFab, Side, norfab
from tests.live.ports import free_endpoint

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]
PATIENCE_S = 40.0


def until(true: Any, seconds: float = PATIENCE_S) -> Any:
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "it did not become so in time"
        time.sleep(0.02)
    return found


def our_worker(endpoint: str, key: str, folder: Path, name: str = "ours-1", **options: Any) -> Worker:
    worker = Worker("dummy", name=name, broker=endpoint, server_key=key, state_dir=folder, **options)

    @worker.task
    def ping(n: int = 0) -> dict[str, Any]:
        return {"n": n, "worker": worker.name}

    @worker.task
    async def steps(job: JobContext, count: int = 3) -> Result:
        for step in range(count):
            job.progress(f"step {step}", resource=f"r{step}")
            job.resources.append(f"r{step}")
        return Result(result=count, messages=["well done"])

    @worker.task
    def fail() -> None:
        raise ValueError("this task fails")

    @worker.task
    def ask(job: ThreadContext, question: str = "who?") -> dict[str, Any]:
        return {"answer": job.ask(question, timeout_s=20)}

    @worker.task
    def slow(job: ThreadContext, seconds: float, marker: str) -> str:
        with open(marker, "a", encoding="utf-8") as file:
            file.write(f"{job.uuid}\n")
        time.sleep(seconds)
        return "slept"

    return worker


def workers_of(client: Side) -> set[str]:
    """Whom their broker knows."""
    shown = client.ask(do="mmi", service="mmi.service.broker", task="show_workers")["results"]
    return {each["name"] for each in shown}


class Running:
    """A worker of ours in a thread with a loop of its own; ``client``: their broker knows of it, too."""

    def __init__(self, worker: Worker, client: Side | None = None) -> None:
        self.worker = worker
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._work, name=worker.name)
        self.thread.start()
        until(lambda: worker.connected)
        if client is not None:  # the worker's word and the client's take different ways to the broker
            until(lambda: worker.name in workers_of(client))

    def _work(self) -> None:
        self.loop.run_until_complete(self.worker.run())

    def stop(self) -> None:
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.worker.stop)
            self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        self.loop.close()


@contextlib.contextmanager
def running(worker: Worker, client: Side | None = None) -> Iterator[Running]:
    live = Running(worker, client)
    try:
        yield live
    finally:
        live.stop()


class Stage:
    """The real broker with one worker of ours and one client of theirs."""

    def __init__(self, nf: NorFab, folder: Path) -> None:
        self.nf = nf
        self.folder = folder
        self.endpoint = free_endpoint()
        self.shared = folder / "shared"
        self.shared.mkdir()
        inventory = {
            "files-1": [{"service": "filesharing", "base_dir": str(self.shared)}],
            "ours-*": [{"site": "oslo"}],
        }
        self.broker: Side = nf.broker(self.endpoint, workers=inventory)
        self.key: str = self.broker.ready["key"]
        self.client = nf.client(self.endpoint, self.key, "ada")

    def run(self, task: str, **words: Any) -> Any:
        words.setdefault("workers", ["ours-1"])
        return self.client.ask(do="run", service="dummy", task=task, timeout=30, **words)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("norfab")
    with norfab(folder) as nf:
        stage = Stage(nf, folder)
        with running(our_worker(stage.endpoint, stage.key, folder / "state", inventory=True), stage.client):
            yield stage


def test_a_task_of_ours_called_by_their_client(stage: Stage) -> None:
    found = stage.run("ping", kwargs={"n": 7})["ours-1"]
    assert found["result"] == {"n": 7, "worker": "ours-1"}
    assert (found["failed"], found["status"], found["service"]) == (False, "completed", "dummy")
    for target in ("all", "any"):
        assert stage.run("ping", workers=target)["ours-1"]["result"]["n"] == 0


def test_a_task_of_ours_that_fails(stage: Stage) -> None:
    found = stage.run("fail")["ours-1"]
    assert found["failed"] is True
    assert "this task fails" in found["errors"][0]
    assert "absent" in stage.run("absent")["ours-1"]["errors"][0]


def test_their_client_sees_progress(stage: Stage) -> None:
    told = stage.client.ask(do="interactive", service="dummy", task="steps", answer="", workers=["ours-1"])
    said = [(each["event_type"], each["message"], each["resource"]) for each in told["events"]]
    assert said == [
        ("progress", "starting", []),
        ("progress", "step 0", ["r0"]),
        ("progress", "step 1", ["r1"]),
        ("progress", "step 2", ["r2"]),
        ("result_ready", "completed", []),
    ]
    found = told["result"]["ours-1"]
    assert (found["result"], found["messages"], found["resources"]) == (3, ["well done"], ["r0", "r1", "r2"])


def test_their_client_answers_our_question(stage: Stage) -> None:
    told = stage.client.ask(do="interactive", service="dummy", task="ask", answer="grace", workers=["ours-1"])
    kinds = [each["event_type"] for each in told["events"]]
    assert kinds == ["progress", "input_request", "input_response", "result_ready"]
    assert told["result"]["ours-1"]["result"] == {"answer": "grace"}


def test_tasks_that_their_tools_expect_of_a_worker(stage: Stage) -> None:
    assert "ping" in stage.run("list_tasks", kwargs={"brief": True})["ours-1"]["result"]
    stats = stage.run("get_stats")["ours-1"]["result"]
    assert stats["process"]["uptime_seconds"] >= 0
    assert stage.run("get_inventory")["ours-1"]["result"] == {"site": "oslo"}
    assert stage.run("get_worker_status")["ours-1"]["result"]["status"] == "active"
    assert stage.run("echo", kwargs={"x": 1})["ours-1"]["result"]["kwargs"] == {"x": 1}
    assert stage.run("job_list", kwargs={"last": 2})["ours-1"]["failed"] is False
    assert workers_of(stage.client) == {"ours-1"}


def test_many_jobs_at_once(stage: Stage) -> None:
    told = stage.client.ask(do="many", service="dummy", task="ping", count=60, workers=["ours-1"], timeout=60)
    assert len(told["results"]) == 60
    assert all(each["ours-1"]["result"]["n"] == 0 for each in told["results"])


def test_our_client_and_our_worker_at_their_broker(stage: Stage) -> None:
    async def main() -> None:
        folder = stage.folder / "client"
        async with NfpClient("bob", broker=stage.endpoint, server_key=stage.key, state_dir=folder) as nfp:
            found = await nfp.run("dummy", "ping", kwargs={"n": 3}, target=["ours-1"], timeout_s=30)
            assert found["ours-1"]["result"]["n"] == 3
            assert nfp.opened is None

    asyncio.run(main())


def test_a_file_of_theirs_in_the_arguments_of_our_task(stage: Stage) -> None:
    data = os.urandom(700_001)
    (stage.shared / "big.bin").write_bytes(data)
    stage.nf.files(stage.endpoint, stage.key, "files-1", stage.shared)
    worker = our_worker(stage.endpoint, stage.key, stage.folder / "reader", name="reader-1")

    @worker.task
    def digest(path: str) -> str:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()

    with running(worker, stage.client):
        found = stage.run("digest", workers=["reader-1"], kwargs={"path": "nf://big.bin"})["reader-1"]
        assert found["errors"] == []
        assert found["result"] == hashlib.sha256(data).hexdigest()


def test_their_broker_is_killed_and_the_job_that_ran_is_not_lost(stage: Stage, tmp_path: Path) -> None:
    endpoint = free_endpoint()
    with norfab(tmp_path) as nf:
        broker = nf.broker(endpoint)
        key = broker.ready["key"]
        client = nf.client(endpoint, key, "eve")
        with running(our_worker(endpoint, key, tmp_path / "state"), client) as live:
            marker = tmp_path / "marker"
            client.tell(
                do="run",
                service="dummy",
                task="slow",
                workers="all",
                timeout=60,
                kwargs={"seconds": 2.0, "marker": str(marker)},
            )
            until(marker.exists)
            broker.kill()
            until(lambda: not live.worker.connected)
            nf.broker(endpoint)
            until(lambda: live.worker.connected)
            assert client.told()["ours-1"]["result"] == "slept"
            assert len(marker.read_text().split()) == 1


def test_a_worker_of_ours_killed_in_the_middle_runs_its_job_again(stage: Stage, tmp_path: Path) -> None:
    """Deployed NorFab's own worker leaves such a job STARTED for ever."""
    marker = tmp_path / "marker"
    first = Running(our_worker(stage.endpoint, stage.key, tmp_path, name="ours-2", drain_s=0.0), stage.client)
    stage.client.tell(
        do="run",
        service="dummy",
        task="slow",
        workers=["ours-2"],
        timeout=60,
        kwargs={"seconds": 1.0, "marker": str(marker)},
    )
    until(marker.exists)
    first.stop()  # within no time: the job is left as it is
    with running(our_worker(stage.endpoint, stage.key, tmp_path, name="ours-2")):
        assert stage.client.told()["ours-2"]["result"] == "slept"
        assert len(marker.read_text().split()) == 2
