"""The supervisor of worker processes: what its workers are told, and when."""

import asyncio
import os
import signal
import time

from broker import supervision
from broker.endings import OK
from gateway import workers
from gateway.settings import loads


def test_a_reload_while_workers_start_is_theirs_once_they_are_ready(rundir, monkeypatch):
    """Until a process has a handler the signal would end it, and the gateway with its first worker."""

    def work(_settings, *, worker, **_):
        name = worker[0]
        if name == "0-0":
            os.kill(os.getppid(), signal.SIGHUP)
            time.sleep(0.3)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(OK))
        signal.signal(signal.SIGHUP, lambda *_: (rundir / name).touch())
        supervision.notify("READY=1")
        while True:
            signal.pause()

    def read_again():
        reads.append(settings)
        return settings

    async def until_told():
        async with asyncio.timeout(10):
            while not (rundir / "0-0").exists():
                await asyncio.sleep(0.01)
        supervisor.leave()

    def ready():
        telling.append(asyncio.get_running_loop().create_task(until_told()))

    reads, telling = [], []
    settings = loads(
        f'[gateway]\nworkers = 2\nstatedir = "{rundir}/state"\n[[listen]]\nurl = "http://127.0.0.1:0"\n'
    )
    monkeypatch.setattr(workers.process, "run", work)
    monkeypatch.setattr(workers.process, "set_up_logging", lambda *_: None)
    supervisor = workers.Supervisor(settings, upstream="local:///nobody", reread=read_again)
    assert supervisor.run(ready) == OK
    assert len(reads) == 1
    assert all(each.result() is None for each in telling)
