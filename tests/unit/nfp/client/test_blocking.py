"""The same names for ordinary threads."""

import threading

import pytest

from broker.errors import HeadgateError
from broker.nfp.client import BlockingClient, JobFailed, TaskFailed
from broker.nfp.peer.keys import default_base_dir
from broker.transport import curve
from tests.live.nfp import nfp_broker
from tests.unit.nfp.client.running import SOON


@pytest.fixture
def nfp(ours):
    with BlockingClient("c", broker=ours.endpoint, limits=SOON) as client:
        yield client


def test_run_and_check(nfp):
    assert set(nfp.run("dummy", "ping", target="any")) == {"w1"}
    with pytest.raises(TaskFailed):
        nfp.run("dummy", "fail", check=True)


def test_a_job(nfp, ours):
    job = nfp.submit("dummy", "ask", target="w1")
    for event in job.events():
        if event.input_id:
            job.answer(event.input_id, 5)
    assert job.result()["w1"]["result"] == 5
    assert (job.done, job.status, job.workers, set(job.results), job.error) == (
        True,
        "done",
        ("w1",),
        {"w1"},
        None,
    )


def test_a_stream(nfp):
    job = nfp.submit("dummy", "stream", kwargs={"chunks": 3}, target="any")
    assert [chunk[0] for chunk in job.stream] == [0, 1, 2]


def test_waiting_has_an_end(nfp):
    job = nfp.submit("dummy", "never")
    with pytest.raises(TimeoutError):
        job.result(timeout_s=0.05)
    events = job.events(from_start=False)
    with pytest.raises(TimeoutError, match=r"nothing came within 0\.05 s"):
        while True:
            events.next(timeout_s=0.05)
    assert job.cancel()


def test_questions(nfp):
    assert nfp.wait_connected(5).startswith("tcp://127.0.0.1:")
    assert nfp.is_connected
    assert {service["name"] for service in nfp.services()} == {"dummy", "filesharing"}
    assert len(nfp.workers()) == 4
    assert nfp.inventory() == {"hosts": ["c"]}
    nfp.run("dummy", "ping")
    (told,) = nfp.jobs()
    assert set(nfp.attach(told["uuid"]).result()) == {"w1", "w2"}
    assert nfp.unfinished() == []
    with pytest.raises(HeadgateError):
        nfp.mmi("nonsense")


def test_events(nfp, ours):
    with nfp.subscribe() as events:
        ours.do(lambda: ours.publish("closed"))
        assert next(events).kind == "closed"
        assert events.lost == 0


def test_files(nfp, ours, tmp_path):
    ours.files["nf://a"] = b"abc"
    assert nfp.fetch("nf://a", tmp_path / "a").path.read_bytes() == b"abc"
    assert nfp.list_files() == ["a"]


def test_many_threads(nfp):
    found = []

    def work():
        found.extend(
            nfp.run("dummy", "ping", kwargs={"n": n}, target="any")["w1"]["result"] for n in range(20)
        )

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(found) == sorted(list(range(20)) * 5)


def test_closed(ours):
    with BlockingClient("c", broker=ours.endpoint) as client:
        job = client.submit("dummy", "never")
    with pytest.raises(RuntimeError, match="not open"):
        client.run("dummy", "ping")
    with pytest.raises(HeadgateError, match="closed"):
        job.result()
    client.close()


def test_errors(norfab):
    with BlockingClient("c", broker=norfab.endpoint) as client, pytest.raises(JobFailed):
        client.run("nobody", "ping")


def test_without_arguments_beside_a_broker_in_the_usual_folder(rundir, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(rundir))
    home = default_base_dir()
    files = rundir / "files"
    files.mkdir()
    (files / "a").write_bytes(b"abc")
    with nfp_broker(rundir, base_dir=str(home), files=str(files)) as live:
        monkeypatch.setenv("HEADGATE_NFP", live.endpoint)
        monkeypatch.chdir(rundir)
        owner = curve.load(home / "owner.key_secret")
        for options in ({}, {"name": "me"}, {"name": "me"}, {"state_dir": rundir / "s"}, {"key": owner}):
            with BlockingClient(**options) as nfp:
                assert nfp.wait_connected(10).startswith("tcp://127.0.0.1:")
                assert nfp.fetch("nf://a", rundir / "here").path.read_bytes() == b"abc"
        with BlockingClient() as nfp:
            assert nfp.fetch("nf://a").path.read_bytes() == b"abc"
        # who has a name of its own has a key of its own, and nobody else leaves one
        assert sorted(path.name for path in home.glob("peers/*.key_secret")) == ["me.key_secret"]
