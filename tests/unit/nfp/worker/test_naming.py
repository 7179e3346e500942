"""What workers without a name are called."""

import asyncio
import contextlib
import os
import socket

import pytest

from broker.errors import ConfigError
from broker.nfp.names import NAME_BYTES_MAX
from broker.nfp.worker import Worker
from broker.nfp.worker.worker import usual_name
from tests.live.nfp import nfp_broker
from tests.unit.nfp.holder import holder
from tests.unit.nfp.worker.test_house import at_work

HOST = socket.gethostname()


@contextlib.contextmanager
def named(*workers):
    try:
        yield [worker.take_name() for worker in workers]
    finally:
        for worker in workers:
            worker.release_name()


def test_the_same_name_each_time_and_another_beside_it(tmp_path):
    for _ in range(2):
        one, two, three, other = (Worker(service, state_dir=tmp_path) for service in ("s", "s", "s", "t"))
        with named(one, two, three, other) as names:
            assert names == [f"s-{HOST}", f"s-{HOST}-2", f"s-{HOST}-3", f"t-{HOST}"]
            assert [one.take_name(), two.name] == names[:2]
    with named(Worker("s", state_dir=tmp_path / "elsewhere")) as names:
        assert names == [f"s-{HOST}"]


def test_a_name_that_was_found_stays_when_the_worker_runs_again(tmp_path):
    one, two = Worker("s", state_dir=tmp_path), Worker("s", state_dir=tmp_path)
    with named(one, two):
        pass
    with named(two, one) as names:
        assert names == [f"s-{HOST}-2", f"s-{HOST}"]


def test_a_given_name_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    given = Worker("s", name="w1")
    later = Worker("s", state_dir=tmp_path)
    later.name = "w2"
    with named(given, later, Worker("s", name="w2", state_dir=tmp_path)) as names:
        assert names == ["w1", "w2", "w2"]
    assert not (tmp_path / "home").exists()


def test_another_process_has_the_name(tmp_path):
    with named(Worker("s", state_dir=tmp_path)):
        (lock,) = tmp_path.rglob("*.lock")
    with holder(lock), named(Worker("s", state_dir=tmp_path)) as names:
        assert names == [f"s-{HOST}-2"]
    with named(Worker("s", state_dir=tmp_path)) as names:
        assert names == [f"s-{HOST}"]


def test_a_folder_that_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file"):
        Worker("s", state_dir=tmp_path / "file" / "x").take_name()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert Worker("s").take_name() == f"s-{HOST}-{os.getpid()}"


def test_a_name_has_room_for_its_number():
    assert len(f"{usual_name('ü' * 120)}-1000".encode()) <= NAME_BYTES_MAX


def test_started_again_it_is_the_worker_it_was(tmp_path):
    async def life():
        worker = Worker("s", state_dir=tmp_path / "w", broker=live.endpoint, server_key=live.server_key)
        async with at_work(worker):
            pass

    with nfp_broker(tmp_path) as live:
        for _ in range(3):
            asyncio.run(life())
    stores = {path.name for path in (tmp_path / "w" / "peers").glob("*.db")}
    assert stores == {f"s-{HOST}.db"}
