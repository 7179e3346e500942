"""Events outlive gateways and brokers that are killed: none lost, doubled or shown to the wrong one without a word."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.live.brokers import BrokerProcess, one_broker, tree
from tests.live.dashboards import Dashboard, Publisher, wrong
from tests.live.gateways import GatewayProcess, config_in
from tests.live.pair import token
from tests.live.ports import free_port
from tests.unit.gateway.identity.authority import public_pem
from tests.unit.gateway.identity.issuer import AUDIENCE, ISSUER, KEYS

pytestmark = [pytest.mark.story, pytest.mark.patient, pytest.mark.timeout(180)]
DASHBOARDS = 12
EVENTS_PER_S = 300
CAUGHT_UP_S = 30.0


class Fleet:
    """Two gateways at fixed ports, each killed and started as a test says."""

    def __init__(self, folder: Path, upstream: str) -> None:
        (folder / "key.pem").write_bytes(public_pem(KEYS["EdDSA"]))
        self.configs = []
        for name in "ab":
            place = folder / name
            place.mkdir()
            trusted = (
                f'[jwt]\nkeys = ["{folder}/key.pem"]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n'
                f'[[listen]]\nurl = "http://127.0.0.1:{free_port()}"\n'
            )
            self.configs.append(config_in(place, upstream, trusted))
        self.running = [self._started(config) for config in self.configs]
        self.urls = [each.ws for each in self.running]

    def _started(self, config: Path) -> GatewayProcess:
        process = GatewayProcess(config)
        process.wait_ready()
        return process

    def end(self, index: int, how: int) -> None:
        """Kill or stop one."""
        if how == signal.SIGKILL:
            self.running[index].kill()
        else:
            self.running[index].stop()

    def start(self, index: int) -> None:
        self.running[index] = self._started(self.configs[index])

    def close(self) -> None:
        for each in self.running:
            each.kill()


class Scene(NamedTuple):
    """What runs."""

    fleet: Fleet
    broker: BrokerProcess
    publisher: Publisher
    dashboards: list[Dashboard]

    async def caught_up(self) -> int:
        """Until every dashboard has an event that was published after now; the newest that all must have."""
        newest = max(self.publisher.tried, default=0)
        async with asyncio.timeout(CAUGHT_UP_S):
            while any(one.newest <= newest for one in self.dashboards):
                await asyncio.sleep(0.05)
        return newest

    async def check(self) -> None:
        """Nothing is wrong up to now."""
        until = await self.caught_up()
        found = wrong(self.publisher, self.dashboards, until=until)
        kinds = Counter(" ".join(text.split()[-3:]) for text in found)
        assert not found, f"{kinds}: {found[:8]}"


WHO: dict[str, Callable[[str], bool]] = {
    "ada": lambda topic: True,  # the owner
    "bob": lambda topic: topic.startswith("t."),
    "eve": lambda topic: topic.startswith(("t.", "secret.")),
}


@contextlib.asynccontextmanager
async def playing(fleet: Fleet, broker: BrokerProcess) -> AsyncIterator[Scene]:
    publisher = Publisher(broker.uri, EVENTS_PER_S)
    dashboards = [
        Dashboard(f"{name} {number}", token(name), fleet.urls, WHO[name], number)
        for number, name in zip(range(DASHBOARDS), list(WHO) * DASHBOARDS, strict=False)
    ]
    tasks = [asyncio.get_running_loop().create_task(one.run()) for one in dashboards]
    try:
        async with asyncio.timeout(CAUGHT_UP_S):
            await asyncio.gather(*(one.live.wait() for one in dashboards))
        tasks.append(asyncio.get_running_loop().create_task(publisher.run()))
        scene = Scene(fleet, broker, publisher, dashboards)
        await scene.caught_up()
        yield scene
    finally:
        for one in (publisher, *dashboards):
            one.leaving = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def stage(rundir: Path, extra: str = "") -> Iterator[tuple[Fleet, BrokerProcess]]:
    with one_broker(rundir, extra) as broker:
        fleet = Fleet(rundir, broker.uri)
        try:
            yield fleet, broker
        finally:
            fleet.close()


def play(rundir: Path, script: Callable[[Scene], object], extra: str = "") -> None:
    async def main(fleet: Fleet, broker: BrokerProcess) -> None:
        async with playing(fleet, broker) as scene:
            await script(scene)

    with stage(rundir, extra) as (fleet, broker):
        asyncio.run(main(fleet, broker))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_every_gateway_of_a_fleet_in_turn(rundir, how):
    """Each is away for a while, the other one goes on; the new one knows what was published before it was there."""

    async def script(scene):
        for index in (0, 1, 0):
            await asyncio.to_thread(scene.fleet.end, index, how)
            await asyncio.sleep(1)
            await asyncio.to_thread(scene.fleet.start, index)
            await scene.caught_up()
        await scene.check()
        assert [one.told for one in scene.dashboards] == [[]] * DASHBOARDS
        assert sum(len(one.resumes) for one in scene.dashboards) >= 2 * DASHBOARDS

    play(rundir, script)


def test_all_gateways_at_once(rundir):
    """For a second there is none, and nobody has an event in its memory but rank 0."""

    async def script(scene):
        for index in (0, 1):
            scene.fleet.end(index, signal.SIGKILL)
        await asyncio.sleep(1)
        for index in (0, 1):
            await asyncio.to_thread(scene.fleet.start, index)
        await scene.check()
        assert [one.told for one in scene.dashboards] == [[]] * DASHBOARDS

    play(rundir, script)


def test_without_what_rank_0_keeps_the_loss_is_told(rundir):
    async def script(scene):
        for index in (0, 1):
            scene.fleet.end(index, signal.SIGKILL)
        await asyncio.sleep(1)
        for index in (0, 1):
            await asyncio.to_thread(scene.fleet.start, index)
        await scene.check()
        assert all(one.told for one in scene.dashboards)

    play(rundir, script, "[events]\nhistory_bytes = 0\n")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_rank_0_with_a_journal_goes_on_with_its_numbers(rundir, how):
    """Twice, and the second time all gateways with it: what they all have lost is in the journal."""

    async def script(scene):
        for alone in (True, False):
            if how == signal.SIGKILL:
                scene.broker.kill()
            else:
                await asyncio.to_thread(scene.broker.stop)
            for index in () if alone else (0, 1):
                scene.fleet.end(index, signal.SIGKILL)
            scene.broker.start()
            await asyncio.to_thread(scene.broker.wait_ready)
            for index in () if alone else (0, 1):
                await asyncio.to_thread(scene.fleet.start, index)
            await scene.caught_up()
        await scene.check()
        assert [one.told for one in scene.dashboards] == [[]] * DASHBOARDS
        assert len({one["epoch"] for each in scene.dashboards for one in each.resumes}) == 1

    play(rundir, script, f'[journal]\nenabled = true\ndirectory = "{rundir}/journal"\n')


def test_rank_0_with_a_journal_below_which_the_gateways_are(rundir):
    """Their link, to rank 1, stays, and what was missed on the way to it comes, too."""

    async def script(scene):
        scene.broker.kill()
        scene.broker.start()
        await asyncio.to_thread(scene.broker.wait_ready)
        await scene.check()
        assert [one.told for one in scene.dashboards] == [[]] * DASHBOARDS

    async def main(fleet, root):
        async with playing(fleet, root) as scene:
            await script(scene)

    with tree(rundir, 2, f'[journal]\nenabled = true\ndirectory = "{rundir}/journal"\n') as running:
        root, leaf = running.ranks
        fleet = Fleet(rundir, leaf.uri)
        try:
            asyncio.run(main(fleet, root))
        finally:
            fleet.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_rank_0_without_a_journal_begins_anew_and_says_so(rundir, how):
    async def script(scene):
        if how == signal.SIGKILL:
            scene.broker.kill()
        else:
            await asyncio.to_thread(scene.broker.stop)
        scene.broker.start()
        await asyncio.to_thread(scene.broker.wait_ready)
        await scene.check()
        assert all(one.told for one in scene.dashboards)

    play(rundir, script)
