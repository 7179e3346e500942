"""Each kind of fault: how it is applied, and how it is taken away.

``apply`` and ``revert`` of a kind return when that is done; whether the world is well again is asked by `drive`. What a
fault touches stands in the schedule, for the checker.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from tests.proof.layout import GATEWAYS, RANKS
from tests.proof.member import LEAVE_S, Member, until
from tests.proof.papers import Papers
from tests.proof.schedule import Fault
from tests.proof.world import DISKS, World

READY_S: Final = 45.0
REREAD_S: Final = 1.0
"""Between two steps of a rotation: every broker has read its file again, and new links have been made."""
FILLER: Final = "filler"
"""The file that fills a disk."""

Act = Callable[[World, Fault], Awaitable[None]]


class Failed(Exception):
    """A fault could not be applied or taken away: a member did not end, or did not begin."""


class Kind(NamedTuple):
    """How a kind works.

    Attributes:
        apply, revert: do it, undo it. settle_s: for how long after everything is well again nothing is demanded of what
            it touched.
    """

    apply: Act
    revert: Act
    settle_s: float = 2.0


def _first(world: World, fault: Fault) -> Member:
    return world.who(fault.members[0])


async def nothing(_world: World, _fault: Fault) -> None:
    """It is over by itself."""


# -- processes --------------------------------------------------------------------------------------


async def kill(world: World, fault: Fault) -> None:
    """SIGKILL."""
    _first(world, fault).kill()


async def begin(world: World, fault: Fault) -> None:
    """Start again what has ended, as a supervisor does."""
    members = [world.who(name) for name in fault.members]
    for member in members:
        if not member.alive:
            member.start()
    if not await until(lambda: all(member.ready or not member.alive for member in members), READY_S):
        raise Failed("they did not begin again")
    if away := [member.name for member in members if not member.alive]:
        raise Failed(f"{', '.join(away)} did not begin again")


async def leave(world: World, fault: Fault) -> None:
    """SIGTERM. A broker's children follow it, as those of deployed Flux do: the whole subtree leaves, in good order."""
    members = [world.who(name) for name in fault.members]
    for member in members:
        member.wanted = False
    members[0].told()
    for member in members:
        code = await member.gone(LEAVE_S)
        if code != 0:
            raise Failed(f"{members[0].name} was told to leave, and {member.name} left with {code}")


async def one_by_one(world: World, fault: Fault) -> None:
    """Each is told to leave and started again, the next one only then."""
    for name in fault.members:
        one = replace(fault, members=(name,))
        await leave(world, one)
        await begin(world, one)


async def freeze(world: World, fault: Fault) -> None:
    """SIGSTOP: connections stay, nobody answers."""
    _first(world, fault).send(signal.SIGSTOP)


async def thaw(world: World, fault: Fault) -> None:
    """SIGCONT."""
    _first(world, fault).send(signal.SIGCONT)


async def directory_away(world: World, fault: Fault) -> None:
    """Redis is killed, or frozen."""
    await (freeze if fault.options["how"] == "freeze" else kill)(world, fault)


async def directory_back(world: World, fault: Fault) -> None:
    """And is back, empty when it was killed."""
    await (thaw if fault.options["how"] == "freeze" else begin)(world, fault)


# -- the network ------------------------------------------------------------------------------------


async def partition(world: World, fault: Fault) -> None:
    """The groups, and everybody else together, do not hear each other any more; nobody is told."""
    world.lab.partition(*fault.options["groups"])


async def oneway(world: World, fault: Fault) -> None:
    """One hears the other, and not the other way round."""
    one, other = fault.options["pair"]
    world.lab.cut(one, other, oneway=True)


async def heal(world: World, _fault: Fault) -> None:
    """Everybody hears everybody."""
    world.lab.heal()


async def worse(world: World, fault: Fault) -> None:
    """Delay and loss between all hosts."""
    delay_s = fault.options["delay_ms"] / 1000
    world.lab.link(delay=delay_s, jitter=delay_s / 4, loss=fault.options["loss"])


async def better(world: World, _fault: Fault) -> None:
    world.lab.link(delay=0, jitter=0, loss=0)


# -- disks and clocks -------------------------------------------------------------------------------


async def fill(world: World, fault: Fault) -> None:
    """Not a byte is left on one of the small disks."""
    disk = fault.options["disk"]
    words = ["sh", "-c", 'cat /dev/zero >"$0" 2>/dev/null || :', str(world.place / disk / FILLER)]
    world.lab.run(DISKS[disk][0], words, check=True)


async def empty(world: World, fault: Fault) -> None:
    disk = fault.options["disk"]
    world.lab.run(DISKS[disk][0], ["rm", "-f", str(world.place / disk / FILLER)], check=True)


async def step(world: World, fault: Fault) -> None:
    """The wall clock of one process jumps."""
    world.clock_file(fault.options["who"]).write_text(f"{fault.options['step_s']:+d}\n")


async def step_back(world: World, fault: Fault) -> None:
    world.clock_file(fault.options["who"]).write_text("+0\n")


# -- rotation ---------------------------------------------------------------------------------------


async def new_certificate(world: World, _fault: Fault) -> None:
    """The gateways get a new certificate and are told so."""
    world.papers.renew_gate()
    for name in GATEWAYS:
        world.members[name].send(signal.SIGHUP)


async def new_key(world: World, fault: Fault) -> None:
    """A rank gets a new key in three steps: announced to all, shown by the rank; the third one is `forget_key`."""
    rank, papers = fault.options["rank"], world.papers
    papers.next[rank] = Papers.certificate(rank)
    papers.write_brokers()
    _reread(world, RANKS)
    await asyncio.sleep(REREAD_S)
    papers.show_next(rank)
    _reread(world, [rank])


async def forget_key(world: World, fault: Fault) -> None:
    """It is the only one; links that were made with the former one stay."""
    world.papers.forget_former(fault.options["rank"])
    world.papers.write_brokers()
    _reread(world, RANKS)


def _reread(world: World, ranks: Iterable[int]) -> None:
    for rank in ranks:
        world.members[f"broker-{rank}"].send(signal.SIGHUP)


KINDS: Final[dict[str, Kind]] = {
    "kill9": Kind(kill, begin),
    "freeze": Kind(freeze, thaw),
    "restart": Kind(leave, begin),
    "partition": Kind(partition, heal),
    "oneway": Kind(oneway, heal),
    "netem": Kind(worse, better),
    "slow": Kind(freeze, thaw),
    "directory": Kind(directory_away, directory_back),
    "rolling": Kind(one_by_one, nothing),
    "failover": Kind(kill, begin),
    "disk": Kind(fill, empty),
    "clock": Kind(step, step_back),
    "certificate": Kind(new_certificate, nothing),
    "key": Kind(new_key, forget_key),
}
