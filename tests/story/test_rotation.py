"""Keys of a running tree are changed by SIGHUP: under load nothing is lost, no link ends, and the old keys are over."""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker.client
from broker.errors import LinkError, LinkRefused
from broker.transport import curve, zeromq
from broker.transport.link import Options
from tests.live.brokers import eventually, online, wait_status
from tests.live.ports import free_ports
from tests.live.speaker import listened_at
from tests.live.starter import BROKER, Started, started
from tests.unit.node.keyed import Site

pytestmark = [pytest.mark.story, pytest.mark.timeout(180), pytest.mark.patient]
START_S = 30.0
COMMAND = (
    sys.executable,
    "-c",
    "import sys; from broker.cli.broker import main; sys.exit(main(sys.argv[1:]))",
)


class Instance:
    """The ranks of a ``Site`` as processes."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.size = len(site.shown)
        self.processes: dict[int, subprocess.Popen[bytes] | Started] = {}

    def start(self, rank: int, **more) -> None:
        with self.log(rank).open("ab") as log:
            argv = [*COMMAND, "--config", str(self.site.file), "--rank", str(rank)]
            self.processes[rank] = started(argv, loads=BROKER, stderr=log, **more)

    def log(self, rank: int) -> Path:
        return self.site.folder / f"rank-{rank}.log"

    def said(self, rank: int, words: str) -> int:
        return self.log(rank).read_text().count(words)

    def uri(self, rank: int) -> str:
        return f"local://{self.site.folder}/local-{rank}"

    def full(self) -> None:
        wait_status(self.uri(0), "full", START_S)
        eventually(lambda: online(self.uri(0)), f"0-{self.size - 1}", START_S)

    def hang_up(self, *ranks: int) -> None:
        """SIGHUP for ``ranks`` (all), one after the other; returns when each has read its settings."""
        for rank in ranks or range(self.size):
            before = self.said(rank, "reloaded: ") + self.said(rank, "reload refused")
            os.kill(self.processes[rank].pid, signal.SIGHUP)
            eventually(
                lambda r=rank, b=before: self.said(r, "reloaded: ") + self.said(r, "reload refused") > b
            )

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def site(rundir) -> Site:
    made = Site(rundir, 4)
    made.addresses = [f"tcp://127.0.0.1:{port}" for port in free_ports(4)]
    made.sections["tree"] = 'topology = "kary:2"\n'
    made.write()
    return made


@pytest.fixture
def instance(site) -> Iterator[Instance]:
    running = Instance(site)
    try:
        for rank in range(4):
            running.start(rank)
        for rank in range(4):
            eventually(lambda r=rank: listened_at(running.uri(r)), True, START_S)
        running.full()
        yield running
    finally:
        running.end()


# -- load ----------------------------------------------------------------------------------------


class Load:
    """Calls and events across the tree while something else goes on; everything is counted."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.calls = self.published = 0
        self.events: dict[int, list[int]] = {}
        self.over = False

    async def run(self, meanwhile) -> None:
        async with contextlib.AsyncExitStack() as stack:
            handles = [
                await stack.enter_async_context(broker.client.connect(self.instance.uri(rank)))
                for rank in range(self.instance.size)
            ]
            for rank, handle in enumerate(handles):
                await stack.enter_async_context(handle.service(f"echo{rank}", {"say": self._say}))
            async with asyncio.TaskGroup() as group:
                listening = [
                    group.create_task(self._listen(rank, handle)) for rank, handle in enumerate(handles)
                ]
                busy = [
                    group.create_task(self._call(handles[origin], origin, target))
                    for origin in range(self.instance.size)
                    for target in range(self.instance.size)
                    if origin != target
                ]
                busy.append(group.create_task(self._publish(handles[3])))
                await asyncio.to_thread(meanwhile)
                self.over = True
                await asyncio.wait(busy)
                await asyncio.wait(listening, timeout=20)

    async def _say(self, request):
        return request.json()

    async def _call(self, handle, origin, target):
        number = 0
        while not self.over:
            asked = {"from": origin, "n": number}
            answers = await asyncio.gather(
                *(handle.rpc(f"echo{target}.say", {**asked, "k": k}, nodeid=target) for k in range(4))
            )
            assert [answer.json() for answer in answers] == [{**asked, "k": k} for k in range(4)]
            self.calls += 4
            number += 1

    async def _publish(self, handle):
        while not self.over:
            self.published += 1
            await handle.publish("load.tick", {"n": self.published})
            await asyncio.sleep(0.001)
        self.published += 1
        await handle.publish("load.tick", {"n": self.published, "last": True})

    async def _listen(self, rank, handle):
        heard = self.events[rank] = []
        async with handle.subscribe("load.") as events:
            async for event in events:
                heard.append(event.json()["n"])
                if event.json().get("last"):
                    return


def incarnations(instance: Instance) -> list[str]:
    async def ask() -> list[str]:
        found = []
        for rank in range(instance.size):
            async with broker.client.connect(instance.uri(rank)) as handle:
                found.append((await handle.rpc("attr.get", {"name": "broker.uuid"})).json()["value"])
        return found

    return asyncio.run(ask())


def rotate(instance: Instance, *ranks: int, pause_s: float = 0.3) -> None:
    """The three steps of the operations guide."""
    site = instance.site
    made = site.announce(*ranks)
    instance.hang_up()
    time.sleep(pause_s)
    for rank, certificate in made.items():
        site.show(rank, certificate)
    instance.hang_up(*ranks)
    time.sleep(pause_s)
    site.settle()
    instance.hang_up()
    time.sleep(pause_s)


def knock(address: str, own: curve.Certificate, server: str) -> None:
    """Dial as rank 3 would; returns when the handshake is over."""

    async def dial() -> None:
        options = Options(extra={"curve": curve.CurveClient(own, server)}, connect_timeout_s=10)
        link = await zeromq.transport.dial(address, options)
        link.close()

    asyncio.run(dial())


# -- stories -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param((0,), id="root", marks=pytest.mark.slow),
        pytest.param((1,), id="middle", marks=pytest.mark.slow),
        pytest.param((3,), id="leaf", marks=pytest.mark.slow),
        pytest.param((0, 1, 2, 3), id="all"),
    ],
)
def test_keys_are_changed_under_load_and_nobody_notices(instance, ranks):
    site, load = instance.site, Load(instance)
    before = incarnations(instance)
    former = list(site.shown)
    asyncio.run(load.run(lambda: rotate(instance, *ranks)))
    assert load.calls > 100
    for heard in load.events.values():
        assert heard == list(range(heard[0], load.published + 1))
    assert incarnations(instance) == before
    for rank in range(4):
        assert instance.said(rank, "WARNING refused") == 0
        assert instance.said(rank, "lost") == 0
        assert instance.said(rank, "joined rank ") == (rank > 0)
        assert instance.said(rank, " ended") == 0
    for rank in ranks:
        assert instance.said(rank, f"our certificate (public key {site.listed[rank]})") == 1
    old_own, old_server = 3 in ranks, 1 in ranks
    if old_own:
        with pytest.raises(LinkRefused, match="ZAP 400"):
            knock(site.addresses[1], former[3], site.listed[1])
    if old_server:
        with pytest.raises(LinkError):
            knock(site.addresses[1], site.shown[3], former[1].public_key)
    knock(site.addresses[1], site.shown[3], site.listed[1])
    for rank in (3, 1):  # what comes again comes with the new keys
        instance.processes[rank].kill()
        instance.processes[rank].wait()
        wait_status(instance.uri(0), "degraded", START_S)
        instance.start(rank)
        instance.full()


def test_three_rotations_in_a_row_leave_nothing_behind(instance):
    def fds() -> list[int]:
        return [len(os.listdir(f"/proc/{process.pid}/fd")) for process in instance.processes.values()]

    rotate(instance, 0, 1, pause_s=0.1)
    time.sleep(1.5)
    once = fds()
    load = Load(instance)
    asyncio.run(load.run(lambda: [rotate(instance, 0, 1, pause_s=0.1) for _ in range(2)]))
    assert load.calls > 100
    time.sleep(1.5)
    eventually(lambda: [after - before for before, after in zip(once, fds(), strict=True)], [0, 0, 0, 0])


def test_a_broker_that_is_away_during_the_change_comes_back_with_either_file(instance):
    """Rank 3 is stopped before the parent's key changes, and starts with what the file says by then."""
    site = instance.site
    instance.processes[3].send_signal(signal.SIGTERM)
    assert instance.processes[3].wait(20) == 0
    made = site.announce(1)
    instance.hang_up(0, 1, 2)
    site.show(1, made[1])
    instance.hang_up(1)
    instance.start(3)  # the old key stands first in its file, the new one is what it finds
    instance.full()
    site.settle()
    instance.hang_up()
    assert instance.said(3, "lost") == 0
    instance.full()


def test_a_key_that_is_taken_away_ends_the_link_and_keeps_its_owner_out(instance):
    site = instance.site
    site.listed[3] = curve.generate().public_key
    site.write()
    instance.hang_up(1)
    eventually(
        lambda: instance.said(1, "lost connection to rank 3: its key has been taken out of [[hosts]]"), 1
    )
    assert instance.processes[3].wait(30) == 1
    assert instance.said(3, "refused us: ZAP 400") >= 1
    wait_status(instance.uri(0), "degraded", START_S)


def test_a_parent_whose_key_is_taken_away_is_left(instance):
    site = instance.site
    site.listed[1] = curve.generate().public_key
    site.write()
    instance.hang_up(3)
    eventually(
        lambda: instance.said(3, "lost the parent: rank 1: its key has been taken out of [[hosts]]"), 1
    )
    assert instance.processes[3].wait(30) == 1


def test_a_broker_whose_terminal_is_closed_leaves_and_does_not_stay_behind(rundir):
    site = Site(rundir, 1)
    running = Instance(site)
    master, slave = os.openpty()
    try:
        running.start(0, stdin=slave, start_new_session=True, preexec_fn=take_terminal)
        os.close(slave)
        eventually(lambda: running.said(0, "state run"), 1, START_S)
        running.hang_up()
        assert running.processes[0].poll() is None
        os.close(master)
        assert running.processes[0].wait(20) == 0
        assert running.said(0, "leaves: its terminal is gone") == 1
    finally:
        running.end()


def take_terminal() -> None:
    """In the child: the terminal at its standard input is its own, and its end is a SIGHUP."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_what_cannot_change_is_one_line_and_the_tree_goes_on(instance):
    site = instance.site
    before = incarnations(instance)
    site.sections["tree"] = 'topology = "kary:3"\n'
    site.write()
    instance.hang_up()
    site.file.write_text("[tree")
    instance.hang_up()
    for rank in range(4):
        assert instance.said(rank, "tree.topology: cannot change while the broker runs: restart it") == 1
        assert instance.said(rank, "broker.toml:1: not TOML") == 1
    assert incarnations(instance) == before
    instance.full()
