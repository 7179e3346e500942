"""What a worker does when nothing is said: five jobs at a time, kept where it says so at its start."""

import asyncio

import pytest

from broker.errors import ConfigError
from broker.nfp.names import Command
from broker.nfp.peer.keys import default_base_dir
from broker.nfp.worker import Worker
from tests.unit.nfp.peer.raw_broker import RawBroker
from tests.unit.nfp.worker.rig import final, made, post, result, working
from tests.unit.nfp.worker.test_lives import killed


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A default folder that nobody can make."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    return default_base_dir()


def kept_line(worker):
    return next(line for line in worker.summary() if "jobs are kept" in line)


def test_it_takes_five_jobs_at_a_time_and_says_so():
    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker)
            async with working(worker, broker):
                return broker.offers[-1]["credits"], worker.summary()[-1]

    assert asyncio.run(main()) == (5, "  5 jobs at a time")
    assert Worker("s", jobs_at_a_time=1).summary()[-1] == "  1 job at a time"


def test_its_jobs_are_kept_without_a_word():
    runs = []

    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker)
            worker.task(name="once", idempotent=False)(lambda: runs.append(1))
            async with killed(worker, broker):
                post(broker, "u1", "once")
                assert (await broker.take_only(Command.RESPONSE)).status == 201
            worker = made(broker)
            worker.task(name="once", idempotent=False)(lambda: runs.append(1))
            async with working(worker, broker, ready=False):
                await broker.take_only(Command.READY, Command.DISCONNECT)
                assert broker.offers[-1]["jobs"] == {"u1": [1, "waiting"]}

    asyncio.run(main())
    assert runs == []
    assert (default_base_dir() / "peers" / "w1.db").exists()


def test_it_says_where_its_jobs_are_kept(tmp_path):
    home = default_base_dir()
    for worker, said in [
        (Worker("s", name="w"), f"jobs are kept in {home}"),
        (Worker("s", name="w", state_dir=tmp_path), f"jobs are kept in {tmp_path}"),
        (Worker("s", name="w", store=False), "jobs are kept in memory only"),
        (Worker("s", name="w", state_dir=tmp_path, store=False), "jobs are kept in memory only"),
    ]:
        assert kept_line(worker) == f"  {said}"


def test_where_no_folder_can_be_written_its_jobs_are_in_memory_and_it_says_so(nowhere, tmp_path):
    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker)
            async with working(worker, broker):
                post(broker, "u1", "ping")
                assert result(await final(broker))["result"] == {"n": 1}
            return kept_line(worker)

    assert asyncio.run(main()) == f"  jobs are kept in memory only: {nowhere} cannot be written"
    with pytest.raises(ConfigError, match="cannot make the folder"):
        Worker("s", name="w", state_dir=tmp_path / "file" / "x").job_file()


def test_over_a_channel_of_this_process_nothing_is_kept_unless_it_is_told(tmp_path):
    class Channel:
        name = "w1"

    assert Worker("s", channel=Channel()).job_file() is None
    assert Worker("s", channel=Channel(), store=True).job_file() == default_base_dir() / "peers" / "w1.db"
    assert Worker("s", channel=Channel(), state_dir=tmp_path).job_file() == tmp_path / "peers" / "w1.db"


def test_two_of_one_name_do_not_share_their_jobs():
    async def main():
        with RawBroker(opens=True) as broker:
            async with working(made(broker), broker):
                with pytest.raises(ConfigError, match="this worker store is open"):
                    await made(broker).run()

    asyncio.run(main())


def test_a_program_of_its_own_says_all_that_on_its_standard_error(capsys):
    with RawBroker(opens=True) as broker:
        worker = Worker("greet", name="w1", broker=broker.endpoint, files=False)
        worker.starting(lambda worker: worker.stop())
        assert worker.main() == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[:4] == [
        "worker w1 of the service greet: no tasks",
        f"  broker {broker.endpoint}",
        f"  jobs are kept in {default_base_dir()}",
        "  5 jobs at a time",
    ]


def test_how_long_ended_jobs_are_kept_is_the_workers_to_say(tmp_path):
    async def main():
        with RawBroker(opens=True) as broker:
            for keep_s in (None, 60.0):
                worker = Worker(
                    "s",
                    name="w",
                    broker=broker.endpoint,
                    server_key="",
                    files=False,
                    state_dir=tmp_path,
                    **({} if keep_s is None else {"keep_s": keep_s}),
                )
                async with working(worker, broker):
                    assert worker._session.store.retention.keep_s == (keep_s or 86400.0)

    asyncio.run(main())
