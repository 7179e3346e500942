"""Unmodified NorFab workers and clients at our broker."""

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.nfp.names import Command
from tests.live.nfp import NfpProcess, nfp_process, request
from tests.live.norfab import NorFab, Side, norfab

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

INVENTORY = """
broker: {}
workers:
  "w*":
    - site: {{ env.NFP_TEST_SITE | default("unset") }}
      tags: [lab]
  w1:
    - {site: oslo, password: hunter2}
  files-1:
    - {service: filesharing, base_dir: "{{ env.NFP_TEST_SHARED }}"}
"""


class Stage:
    """A broker of ours, two workers and a client of theirs."""

    def __init__(self, broker: NfpProcess, nf: NorFab) -> None:
        self.broker = broker
        self.nf = nf
        self.workers = {name: self.worker(name) for name in ("w1", "w2")}
        self.client = nf.client(broker.endpoint, broker.server_key, "ada")
        self.until(lambda: len(self.shown()) >= 2)

    def worker(self, name: str) -> Side:
        return self.nf.worker(self.broker.endpoint, self.broker.server_key, name)

    def run(self, task: str, **words: Any) -> Any:
        return self.client.ask(do="run", service=words.pop("service", "dummy"), task=task, **words)

    def mmi(self, task: str, service: str = "mmi.service.broker", **words: Any) -> Any:
        answer = self.client.ask(do="mmi", service=service, task=task, **words)
        assert answer["status"] == "200", answer
        return answer["results"]

    def shown(self) -> list[str]:
        """Names of the registered workers of the service."""
        found = self.mmi("show_workers", kwargs={"service": "dummy"})
        return [each["name"] for each in found if each["name"]]

    @staticmethod
    def until(true: Any, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "it did not become so in time"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("norfab")
    (folder / "inventory.yaml").write_text(INVENTORY)
    shared = folder / "shared"
    (shared / "docs").mkdir(parents=True)
    (shared / "docs" / "big.bin").write_bytes(os.urandom(3_000_001))
    settings: dict[str, Any] = {
        "inventory": str(folder / "inventory.yaml"),
        "files": str(shared),
        "queue_ttl_s": 3.0,
        "multiplier": 3,
    }
    (folder / "theirs").mkdir()
    os.environ.update(NFP_TEST_SITE="bergen", NFP_TEST_SHARED=str(folder / "theirs"))
    with norfab(folder) as nf, nfp_process(folder, **settings) as broker:
        yield Stage(broker, nf)


# -- jobs ------------------------------------------------------------------------------------------


def test_a_job_for_all_workers(stage: Stage) -> None:
    results = stage.run("ping", kwargs={"n": 7})
    assert {name: each["result"] for name, each in results.items()} == {
        "w1": {"n": 7, "worker": "w1"},
        "w2": {"n": 7, "worker": "w2"},
    }
    assert all(each["failed"] is False and each["service"] == "dummy" for each in results.values())


def test_a_job_for_any_worker(stage: Stage) -> None:
    results = stage.run("ping", kwargs={"n": 1}, workers="any")
    assert len(results) == 1
    assert set(results) <= {"w1", "w2"}


def test_jobs_for_one_name_and_for_a_list(stage: Stage) -> None:
    assert set(stage.run("ping", workers="w2")) == {"w2"}
    assert set(stage.run("ping", workers=["w1", "w2"])) == {"w1", "w2"}
    results = stage.run("ping", workers=["w1", "nobody"])
    assert results["w1"]["failed"] is False
    assert results["nobody"]["failed"] is True
    assert results["nobody"]["errors"] == ["no worker is called nobody, and no resource"]


def test_a_failing_task_is_a_result(stage: Stage) -> None:
    result = stage.run("fail", workers="w1")["w1"]
    assert result["failed"] is True
    assert "this task fails" in str(result["errors"])


def test_a_large_result(stage: Stage) -> None:
    assert (
        stage.run("blob", kwargs={"size": 1_500_000}, workers="any").popitem()[1]["result"] == "x" * 1_500_000
    )


def test_many_jobs_at_once(stage: Stage) -> None:
    done = stage.client.ask(do="many", service="dummy", task="ping", count=100, workers="any")
    assert [len(each) for each in done["results"]] == [1] * 100


def test_events_and_an_input_request(stage: Stage) -> None:
    done = stage.client.ask(do="interactive", service="dummy", task="ask", answer="grace", workers="any")
    assert [each["result"]["answer"] for each in done["result"].values()] == ["grace"]
    assert [each["event_type"] for each in done["events"]][:2] == ["progress", "input_request"]


def test_progress_events_arrive(stage: Stage) -> None:
    done = stage.client.ask(
        do="interactive",
        service="dummy",
        task="slow",
        answer="",
        workers="w1",
        kwargs={"seconds": 0.4, "steps": 3},
    )
    assert [e["message"] for e in done["events"] if str(e["message"]).startswith("step")] == [
        "step 0",
        "step 1",
        "step 2",
    ]


def test_every_service_at_once(stage: Stage) -> None:
    results = stage.run("echo", service="all", workers="all", kwargs={"data": 1})
    assert {"w1", "w2"} <= set(results)


def test_a_service_without_workers_expires_with_a_reason(stage: Stage) -> None:
    began = time.monotonic()
    results = stage.run("ping", service="nothere", timeout=30)
    assert 2.0 < time.monotonic() - began < 20.0, "it waited in the queue, and no longer than that"
    assert not results or "expired" in str(results).lower() or "no worker" in str(results).lower()


def test_an_unknown_worker_is_told_at_once(stage: Stage) -> None:
    assert stage.run("ping", uuid="for-nobody", workers="nobody", timeout=30) is None
    (error,) = stage.client.ask(do="errors", uuid="for-nobody")
    assert error == "no worker is called nobody, and no resource"


def test_a_service_whose_worker_comes_later(tmp_path: Path) -> None:
    """However long the worker takes to start: at the broker of the other tests jobs wait for three seconds only."""
    with norfab(tmp_path) as nf, nfp_process(tmp_path) as broker:
        client = nf.client(broker.endpoint, broker.server_key, "ada")
        client.tell(do="run", service="later", task="ping", kwargs={"n": 3}, timeout=40)
        nf.worker(broker.endpoint, broker.server_key, "late-1", "later")
        assert client.told()["late-1"]["result"]["n"] == 3


# -- what the broker answers itself ----------------------------------------------------------------


def test_workers_got_their_inventory(stage: Stage) -> None:
    assert stage.workers["w1"].ready["inventory"] == {"site": "oslo", "tags": ["lab"], "password": "hunter2"}
    assert stage.workers["w2"].ready["inventory"] == {"site": "bergen", "tags": ["lab"]}


def test_management_by_the_names_of_norfab(stage: Stage) -> None:
    workers = stage.mmi("show_workers", kwargs={"service": "dummy"})
    assert sorted(each["name"] for each in workers) == ["w1", "w2"]
    assert {each["status"] for each in workers} == {"alive"}
    assert stage.mmi("show_workers", kwargs={"service": "none"})[0]["name"] == ""
    assert stage.mmi("get_stats")["worker_count"] >= 2
    assert "headgate" in stage.mmi("show_broker_version")
    assert "Unsupported" in str(stage.mmi("bogus"))
    status = str(stage.mmi("get_status"))
    assert str(stage.broker.base_dir) not in status, "paths of keys are nobody's business"


def test_a_user_sees_no_secrets_and_stops_nothing(stage: Stage) -> None:
    assert "hunter2" not in str(stage.mmi("show_broker_inventory"))
    answer = stage.client.ask(do="mmi", service="mmi.service.broker", task="shutdown")
    assert "not allowed" in str(answer).lower()
    assert stage.run("ping", workers="any"), "it is still there"


def test_a_user_sees_the_rest_of_the_inventory(stage: Stage) -> None:
    assert "oslo" in str(stage.mmi("show_broker_inventory"))


def test_a_worker_at_an_address_for_workers_has_its_inventory_at_once(tmp_path: Path) -> None:
    """It asks through a client of its own, at the only address it knows; after a DISCONNECT it is back at once."""
    (tmp_path / "inventory.yaml").write_text('broker: {}\nworkers:\n  "w*":\n    - {site: oslo}\n')
    settings: dict[str, Any] = {
        "inventory": str(tmp_path / "inventory.yaml"),
        "worker_endpoint": "tcp://127.0.0.1:*",
    }
    with norfab(tmp_path) as nf, nfp_process(tmp_path, **settings) as broker:
        began = time.monotonic()
        worker = nf.worker(broker.worker_endpoint, broker.server_key, "w1")
        assert worker.ready["inventory"] == {"site": "oslo"}
        assert time.monotonic() - began < 25.0, "it gave up waiting for its inventory"
        client = nf.client(broker.endpoint, broker.server_key, "ada")
        for turn in range(2):
            found = client.ask(do="run", service="dummy", task="ping", kwargs={"n": turn}, timeout=30)
            assert found["w1"]["result"]["n"] == turn
            with broker.dealer("owner", key=broker.owner()) as owner:
                owner.say(request(Command.MMI, "d", "mmi.service.broker", body=b'{"task":"disconnect"}'))
                told = owner.until(lambda packet: packet.command is Command.MMI)
                assert b'"w1"' in told.data


# -- files -----------------------------------------------------------------------------------------


def test_a_file_from_the_broker(stage: Stage) -> None:
    fetched = stage.client.ask(do="fetch", url="nf://docs/big.bin")
    wanted = (stage.broker.base_dir.parent / "shared" / "docs" / "big.bin").read_bytes()
    assert fetched["md5"] == hashlib.md5(wanted).hexdigest()


def test_no_key_leaves_by_the_file_service(stage: Stage) -> None:
    for url in ("nf://../state/broker.key_secret", "nf:///etc/passwd", "nf://docs/../../state/nfp.db"):
        fetched = stage.client.ask(do="fetch", url=url)
        assert fetched["md5"] is None, url


def test_a_file_from_a_norfab_file_worker(stage: Stage) -> None:
    shared = Path(os.environ["NFP_TEST_SHARED"])
    (shared / "their.txt").write_bytes(b"theirs" * 100_000)
    files = stage.nf.files(stage.broker.endpoint, stage.broker.server_key, "files-1", shared)
    try:
        Stage.until(lambda: "files-1" in str(stage.mmi("show_workers", kwargs={"service": "filesharing"})))
        fetched = stage.client.ask(do="fetch", url="nf://their.txt")
        assert fetched["md5"] == hashlib.md5(b"theirs" * 100_000).hexdigest()
    finally:
        files.close()


# -- faults ----------------------------------------------------------------------------------------


def markers(path: Path) -> list[str]:
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_job_of_a_killed_worker_goes_to_another(stage: Stage, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    stage.client.tell(
        do="run",
        service="dummy",
        task="slow",
        workers="any",
        kwargs={"seconds": 2.0, "marker": str(marker)},
        timeout=90,
    )
    Stage.until(lambda: len(markers(marker)) == 1)
    killed = markers(marker)[0]
    stage.workers[killed].kill()
    try:
        results = stage.client.told()
        survivor = ({"w1", "w2"} - {killed}).pop()
        assert set(results) == {survivor}
        assert results[survivor]["failed"] is False
        assert markers(marker) == [killed, survivor]
    finally:
        stage.workers[killed] = stage.worker(killed)
        Stage.until(lambda: len(stage.shown()) == 2)


def test_a_worker_started_again_under_its_name(stage: Stage) -> None:
    stage.workers["w1"].kill()
    stage.workers["w1"] = stage.worker("w1")
    assert stage.run("ping", workers="w1", timeout=40)["w1"]["result"]["worker"] == "w1"


def test_a_broker_killed_and_started_again_loses_no_job(stage: Stage, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    stage.client.tell(
        do="run",
        service="dummy",
        task="slow",
        workers="w2",
        kwargs={"seconds": 3.0, "marker": str(marker)},
        timeout=120,
    )
    Stage.until(lambda: len(markers(marker)) == 1)
    stage.broker.kill()
    stage.broker.start()
    results = stage.client.told()
    assert results["w2"]["result"] == 4
    assert markers(marker) == ["w2"], "it ran once"


def test_a_frozen_worker_is_left_and_comes_back(stage: Stage, tmp_path: Path) -> None:
    Stage.until(lambda: len(stage.shown()) == 2)
    marker = tmp_path / "ran"
    stage.client.tell(
        do="run",
        service="dummy",
        task="slow",
        workers="any",
        kwargs={"seconds": 2.0, "marker": str(marker)},
        timeout=120,
    )
    Stage.until(lambda: len(markers(marker)) == 1)
    frozen = stage.workers[markers(marker)[0]]
    frozen.signal(signal.SIGSTOP)
    try:
        results = stage.client.told()
    finally:
        frozen.signal(signal.SIGCONT)
    assert len(results) == 1
    assert markers(marker)[0] not in results
    Stage.until(lambda: len(stage.shown()) == 2)


def test_a_client_with_another_brokers_key_gets_nothing(stage: Stage) -> None:
    import zmq

    stranger, _secret = zmq.curve_keypair()
    client = stage.nf.client(stage.broker.endpoint, stranger.decode(), "mallory")
    try:
        answer = client.ask(do="mmi", service="mmi.service.broker", task="show_workers", timeout=2)
        assert answer["status"] != "200"
    finally:
        client.close()
    assert stage.run("ping", workers="any")
