"""Events that outlive gateways and rank 0: a scene played before dashboards that come back.

Beside `drive`, in whose world everybody is at a few events a second, this has one or two brokers, two gateways, and as
many dashboards and events as the machine carries. Nothing is left to chance: a scene says what ends, and whether a loss
may be told. All is judged by ``checker.returns`` from what publisher and dashboards wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Final

from tests.live.brokers import BrokerProcess, one_broker, tree
from tests.live.gateways import GatewayProcess, config_in
from tests.live.pair import token
from tests.live.ports import free_port
from tests.proof.layout import SEES
from tests.proof.parties.dashboards import Dashboard, Publisher
from tests.proof.record import DRIVER, Writer
from tests.unit.gateway.identity.authority import public_pem
from tests.unit.gateway.identity.issuer import AUDIENCE, ISSUER, KEYS

CALM_S: Final = 2.0
"""Of load in front of the first outage; the rate is measured then."""
CAUGHT_UP_S: Final = 60.0
POLL_S: Final = 0.05
GATEWAYS: Final = ("gateway-a", "gateway-b")
ROOT: Final = "broker-0"
KILL, STOP = "kill9", "restart"
"""How something ends; the words of `report` for it."""


@dataclass(frozen=True)
class Outage:
    """Members end at once, and begin again, in this order, ``away_s`` later."""

    members: tuple[str, ...]
    how: str = KILL
    away_s: float = 1.0


@dataclass(frozen=True)
class Scene:
    """What happens, and what has to be told.

    Attributes:
        outages: one after the other; each time all dashboards catch up. ranks: gateways are at the last one of them.
        journal: rank 0 has one. kept: rank 0 keeps the last events. told: something is lost, and everybody is told so;
            else nobody is told of a loss. anew: the numbering begins anew.
    """

    outages: tuple[Outage, ...]
    ranks: int = 1
    journal: bool = False
    kept: bool = True
    told: bool = False
    anew: bool = False


def _both(
    name: str, outages: Callable[[str], tuple[Outage, ...]], **more: bool
) -> Iterator[tuple[str, Scene]]:
    for how, word in ((KILL, "killed"), (STOP, "stopped")):
        yield f"{name} {word}", Scene(outages(how), **more)


SCENES: Final[dict[str, Scene]] = {
    # the other one goes on, and the new one knows what was published before it was there
    **dict(_both("each gateway", lambda how: tuple(Outage((GATEWAYS[at],), how) for at in (0, 1, 0)))),
    # nobody has the events of a second in memory but rank 0
    **dict(_both("all gateways", lambda how: (Outage(GATEWAYS, how),))),
    "all gateways killed, and nothing kept": Scene((Outage(GATEWAYS),), kept=False, told=True),
    # the second time all gateways with it: what they all have lost is in the journal
    **dict(
        _both(
            "rank 0 with a journal",
            lambda how: (Outage((ROOT,), how, 0.0), Outage((ROOT, *GATEWAYS), how, 0.0)),
            journal=True,
        )
    ),
    # their link, to rank 1, stays, and what was missed on the way to it comes, too
    "rank 0 with a journal killed, gateways below": Scene(
        (Outage((ROOT,), KILL, 0.0),), ranks=2, journal=True
    ),
    **dict(_both("rank 0", lambda how: (Outage((ROOT,), how, 0.0),), told=True, anew=True)),
}
"""Name -> what is played."""


def play(
    name: str, folder: Path, *, per_s: int, dashboards: int, say: Callable[[str], None] = lambda _text: None
) -> tuple[list[str], int]:
    """Play one of ``SCENES``; write the logs of everybody into ``folder``.

    Args:
        folder: made if it is not there; must hold no earlier run. per_s: events. say: told what happens, for people.

    Returns:
        What the driver itself saw go wrong: a member that did not end or begin, dashboards that did not catch up. And
        how many events a second there were before anything ended.

    Raises:
        KeyError: no such scene. FileExistsError: the folder holds a run.
    """
    scene = SCENES[name]
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.jsonl")):
        raise FileExistsError(f"{folder} holds a run already")
    problems: list[str] = []
    rate = 0
    with (
        Writer(folder, DRIVER) as log,
        tempfile.TemporaryDirectory(prefix="hgp-", dir="/tmp") as place,  # short: socket paths hold 107 bytes
    ):
        log.line("scene", name=name, told=scene.told, anew=scene.anew, dashboards=dashboards, per_s=per_s)
        try:
            with staged(Path(place), scene) as stage:
                playing = _Play(stage, folder, log, say, per_s, dashboards)
                problems += asyncio.run(playing.run(scene))
                rate = playing.rate
        except AssertionError as error:
            problems.append(str(error))
    return problems, rate


@contextlib.contextmanager
def staged(place: Path, scene: Scene) -> Iterator[Stage]:
    """The members of a scene, running; ended at the end, rank 0 in order.

    Raises:
        AssertionError: one did not begin, or a broker did not end well.
    """
    extra = f'[journal]\nenabled = true\ndirectory = "{place}/journal"\n' if scene.journal else ""
    extra += "" if scene.kept else "[events]\nhistory_bytes = 0\n"
    with contextlib.ExitStack() as stack:
        if scene.ranks == 1:
            ranks = [stack.enter_context(one_broker(place, extra))]
        else:
            ranks = stack.enter_context(tree(place, scene.ranks, extra)).ranks
            for rank in ranks:  # the last one first; the writer of a journal ends with its rank
                stack.callback(rank.stop)
        stage = Stage(place, ranks)
        stack.callback(stage.kill_gateways)
        for name in GATEWAYS:
            stage.begin(name)
        yield stage


class Stage:
    """The brokers of a scene, and two gateways at fixed ports that share nothing but whom they trust.

    Attributes:
        uri: where the publisher connects. urls: where dashboards do.
    """

    def __init__(self, place: Path, ranks: list[BrokerProcess]) -> None:
        self._root = ranks[0]
        self._gateways: dict[str, GatewayProcess] = {}
        self._configs: dict[str, Path] = {}
        self.uri = ranks[0].uri
        self.urls = []
        (place / "key.pem").write_bytes(public_pem(KEYS["EdDSA"]))
        for name in GATEWAYS:
            (place / name).mkdir()
            url = f"127.0.0.1:{free_port()}"
            self.urls.append(f"ws://{url}/v1/ws")
            trusted = f'[jwt]\nkeys = ["{place}/key.pem"]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n'
            trusted += f'[[listen]]\nurl = "http://{url}"\n'
            self._configs[name] = config_in(place / name, ranks[-1].uri, trusted)

    def begin(self, name: str) -> None:
        """Start a member; returns when it is ready.

        Raises:
            AssertionError: it is not.
        """
        if name == ROOT:
            self._root.start()
            self._root.wait_ready()
        else:
            self._gateways[name] = GatewayProcess(self._configs[name])
            self._gateways[name].wait_ready()

    def end(self, name: str, how: str) -> int:
        """End a member; returns its exit code, 0 for one that was killed."""
        member = self._root if name == ROOT else self._gateways[name]
        if how == STOP:
            return member.stop()
        member.kill()
        return 0

    def kill_gateways(self) -> None:
        """At the end."""
        for gateway in self._gateways.values():
            gateway.kill()


class _Play:
    """One scene, while it is played.

    Attributes:
        rate: events a second before the first outage.
    """

    def __init__(
        self, stage: Stage, folder: Path, log: Writer, say: Callable[[str], None], per_s: int, count: int
    ) -> None:
        self._stage = stage
        self._log = log
        self._say = say
        self.rate = 0
        self._problems: list[str] = []
        self._writers = contextlib.ExitStack()
        self._publisher = Publisher(self._writer(folder, "publisher"), stage.uri, per_s)
        self._dashboards: list[Dashboard] = []
        for number, user in zip(range(count), cycle(SEES), strict=False):
            writer = self._writer(folder, f"{user}-{number}")
            writer.line("sees", prefixes=SEES[user])
            self._dashboards.append(Dashboard(writer, token(user), stage.urls, number))

    def _writer(self, folder: Path, who: str) -> Writer:
        return self._writers.enter_context(Writer(folder, who))

    async def run(self, scene: Scene) -> list[str]:
        """All of it."""
        loop = asyncio.get_running_loop()
        parties: list[Dashboard | Publisher] = [*self._dashboards, self._publisher]
        tasks = [loop.create_task(one.run()) for one in self._dashboards]
        try:
            async with asyncio.timeout(CAUGHT_UP_S):
                await asyncio.gather(*(one.live.wait() for one in self._dashboards))
            tasks.append(loop.create_task(self._publisher.run()))
            await self._caught_up()
            began, before = time.monotonic(), self._publisher.count
            await asyncio.sleep(CALM_S)
            self.rate = round((self._publisher.count - before) / (time.monotonic() - began))
            self._say(f"{self.rate} events a second to {len(self._dashboards)} dashboards")
            for outage in scene.outages:
                await self._outage(outage)
            self._log.line("until", ident=await self._caught_up())
        except (AssertionError, TimeoutError) as error:
            self._problems.append(str(error) or "the dashboards did not connect")
        finally:
            for one in parties:
                one.leaving = True
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self._problems += [repr(error) for error in ended if isinstance(error, Exception)]
            self._writers.close()
        return self._problems

    async def _outage(self, outage: Outage) -> None:
        touched = {"members": outage.members}
        self._say(f"{outage.how} {' '.join(outage.members)}")
        self._log.fault(True, outage.how, **touched)
        codes = await asyncio.gather(
            *(asyncio.to_thread(self._stage.end, name, outage.how) for name in outage.members)
        )
        self._problems += [
            f"{name} left with {code}" for name, code in zip(outage.members, codes, strict=True) if code
        ]
        await asyncio.sleep(outage.away_s)
        for name in outage.members:
            await asyncio.to_thread(self._stage.begin, name)
        self._log.fault(False, outage.how, **touched)
        began = time.monotonic()
        await self._caught_up()
        self._say(f"all dashboards had caught up {time.monotonic() - began:.1f} s later")

    async def _caught_up(self) -> int:
        """Until every dashboard has an event that was published after now; the newest that all must have.

        Raises:
            TimeoutError: some have not.
        """
        newest = self._publisher.count
        end = time.monotonic() + CAUGHT_UP_S
        while late := [one.log.who for one in self._dashboards if one.newest <= newest]:
            if time.monotonic() > end:
                raise TimeoutError(f"not caught up within {CAUGHT_UP_S:g} s: {', '.join(late)}")
            await asyncio.sleep(POLL_S)
        return newest
