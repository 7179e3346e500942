"""The supervisor of worker processes: what its workers are called, what they are told, and when."""

import asyncio
import os
import signal
import time

import pytest

from broker import supervision
from broker.endings import OK
from gateway import workers
from gateway.settings import loads


@pytest.fixture
def supervisor_of(rundir, monkeypatch):
    """Makes a supervisor of two workers that do ``work``, which gets their name, and then only hear signals."""

    def make(work, **options):
        def run(_settings, *, worker, **_):
            work(worker[0])
            signal.signal(signal.SIGTERM, lambda *_: os._exit(OK))
            supervision.notify("READY=1")
            while True:
                signal.pause()

        monkeypatch.setattr(workers.process, "run", run)
        return workers.Supervisor(settings, upstream="local:///nobody", **options)

    settings = loads(
        f'[gateway]\nworkers = 2\nstatedir = "{rundir}/state"\n[[listen]]\nurl = "http://127.0.0.1:0"\n'
    )
    monkeypatch.setattr(workers.process, "set_up_logging", lambda *_: None)
    return make


def test_a_reload_while_workers_start_is_theirs_once_they_are_ready(rundir, supervisor_of):
    """Until a process has a handler the signal would end it, and the gateway with its first worker."""

    def work(name):
        if name.startswith("0-"):
            os.kill(os.getppid(), signal.SIGHUP)
            time.sleep(0.3)
        signal.signal(signal.SIGHUP, lambda *_: (rundir / "told").touch())

    async def until_told():
        async with asyncio.timeout(10):
            while not (rundir / "told").exists():
                await asyncio.sleep(0.01)
        supervisor.leave()

    reads, telling = [], []
    supervisor = supervisor_of(work, reread=lambda: reads.append(1) or supervisor._settings)
    assert supervisor.run(lambda: telling.append(asyncio.get_running_loop().create_task(until_told()))) == OK
    assert len(reads) == 1
    assert all(each.result() is None for each in telling)


def test_workers_of_two_gateways_on_one_store_are_told_apart(rundir, supervisor_of):
    """One may still drain when the next has begun; under one name either would write over what the other counts."""
    for _ in range(2):
        supervisor = supervisor_of(lambda name: (rundir / f"worker-{name}").touch())
        assert supervisor.run(supervisor.leave) == OK
    assert len([*rundir.glob("worker-?-*")]) == 4
