"""The workers that live with the broker: management cannot end them, and they are started again when they end."""

import asyncio

import msgspec

from broker.nfp.names import MMI_WORKER, Command, Sender
from broker.nfp.principal import Principal, Standing
from broker.nfp.server import files_worker, local, process
from tests.live.nfp import request, running, section, workers_of
from tests.unit.nfp.server.stage import until

NAMES = {"broker-files", "broker-fss"}
OWNER = Principal("key:O", Standing.OWNER)


def alive(broker) -> set[str]:
    return {view.name for view in workers_of(broker) if view.status == "alive"}


async def managed(broker, task: str) -> dict:
    """What the workers answer to an owner."""
    got = []
    peer = broker.local_peer(OWNER, f"owner-{task}", got.append)
    body = msgspec.json.encode({"task": task})
    peer.submit(request(Command.MMI, f"u-{task}", service=MMI_WORKER, target="all", body=body))
    await until(lambda: [packet for packet in got if packet.command is Command.MMI])
    peer.close()
    return msgspec.json.decode(got[-1].data)


def test_management_does_not_end_them(rundir):
    async def story():
        async with running(section(rundir)) as broker:
            await until(lambda: alive(broker) == NAMES)
            workers = list(broker.files_worker._workers)
            for task in ("shutdown", "restart", "disconnect"):
                said = await managed(broker, task)
                assert set(said) == NAMES
                assert all("leaves with the broker" in each["error"] for each in said.values())
            await asyncio.sleep(0.3)  # longer than a worker takes to leave once its answer has left
            assert all(worker.connected for worker in workers)
            assert alive(broker) == NAMES
            assert set(await managed(broker, "show_workers")) == NAMES

    asyncio.run(story())


def test_one_that_ends_is_started_again(rundir, monkeypatch, caplog):
    monkeypatch.setattr(files_worker, "FIRST_PAUSE_S", 0.02)

    async def story():
        async with running(section(rundir)) as broker:
            await until(lambda: alive(broker) == NAMES)
            first = broker.files_worker._workers[0]
            shift = first._session
            first.stop()
            await until(lambda: first._session not in (None, shift) and first.connected)
            await until(lambda: alive(broker) == NAMES)

            async def broken() -> str:
                monkeypatch.undo()
                raise ValueError("broken")

            monkeypatch.setattr(files_worker, "FIRST_PAUSE_S", 0.02)
            monkeypatch.setattr(first, "run", broken)
            first.stop()
            await until(lambda: "broker-files failed" in caplog.text)
            await until(lambda: first.connected)

    asyncio.run(story())


def test_the_end_does_not_wait_for_the_pause(rundir, monkeypatch):
    monkeypatch.setattr(files_worker, "FIRST_PAUSE_S", 1000.0)

    async def story():
        async with running(section(rundir)) as broker:
            await until(lambda: alive(broker) == NAMES)
            for worker in broker.files_worker._workers:
                worker.stop()
            await until(lambda: not alive(broker))
            async with asyncio.timeout(10):
                await broker.files_worker.stop()

    asyncio.run(story())


def test_one_that_is_cut_comes_back(rundir, monkeypatch):
    monkeypatch.setattr(local, "RETRY_S", 0.02)

    async def story():
        async with running(section(rundir)) as broker:
            await until(lambda: alive(broker) == NAMES)
            peer = broker.locals["broker-files"]
            peer.cut("for a test")
            await until(lambda: broker.locals.get("broker-files") not in (None, peer))
            await until(lambda: alive(broker) == NAMES)

    asyncio.run(story())


def test_a_broker_that_stops_takes_nobody_back(rundir, monkeypatch):
    monkeypatch.setattr(local, "RETRY_S", 0.0)

    class Receiver:
        def __init__(self):
            self.log = []

        def on_connect(self, broker, opened):
            self.log.append("connected")

        def on_packet(self, packet):
            pass

        def on_disconnect(self, why):
            self.log.append("lost")

    async def story():
        receiver = Receiver()
        async with running(section(rundir, files="")) as broker:
            channel = broker.local_channel("here", Sender.CLIENT)
            channel.start(receiver, dict)
            await until(lambda: receiver.log)
        await asyncio.sleep(0.02)
        assert receiver.log == ["connected", "lost"]
        assert "stops" in channel.trouble
        assert broker.locals == {}
        await channel.close()

    asyncio.run(story())


def test_a_broker_that_says_it_is_ready_has_their_services(rundir):
    seen = []

    def ready(broker) -> None:
        seen.append(alive(broker))
        broker.leave(restart=False, reason="seen")

    assert asyncio.run(process.serve(section(rundir), ready=ready)) == "stop"
    assert seen == [NAMES]
