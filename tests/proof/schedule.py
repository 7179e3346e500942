"""From a seed to faults and their times. Pure: the same seed, seconds and kinds give the same schedule anywhere.

A fault is applied ``at_s`` seconds after the load began and taken away ``lasts_s`` later. Faults overlap, but never two
that hold the same thing (`Fault.holds`): a broker that is being killed is not frozen, and there is one state of the
network at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, Final, Self

from tests.proof.layout import (
    CLOCK_RANK,
    GATEWAYS,
    JOURNAL_RANK,
    LINKS,
    MORTAL,
    RANKS,
    SLOW,
    below,
)

QUIET_S: Final = 8.0
"""Load without faults at the end: everything has to work again."""
FIRST_S: Final = 2.0
"""Load without faults at the beginning."""
APART_S: Final = 3.0
"""Least time between two faults that hold the same thing."""
AT_ONCE: Final = 2
"""Most faults at a time."""
LONG: Final = ("freeze", "partition", "oneway")
LONG_S: Final = 24.0
"""Some of these last so much longer: peers then notice that nobody is there, after 20 to 25 s."""
LONG_PART: Final = 0.3
LONG_ROOM_S: Final = 60.0
"""But only where so much load is left."""
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and what it touches, in the words of `tests.proof.record.Writer.fault`.

    Attributes:
        number: stays with it, also in a schedule that lost others.
        kind: one of `KINDS`. at_s, lasts_s: seconds after the load began; seconds until it is taken away.
        members: whose process it is about; the first one is what is done something to.
        ranks: nothing is demanded of a path through them. links: nor through these links of the tree.
        options: what the kind needs: ``groups``, ``pair``, ``delay_ms``, ``loss``, ``step_s``, ``disk``, ``rank``.
    """

    number: int
    kind: str
    at_s: float
    lasts_s: float
    members: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        """When it is taken away."""
        return self.at_s + self.lasts_s

    @property
    def holds(self) -> frozenset[str]:
        """What no other fault may touch meanwhile."""
        if self.kind in ("partition", "oneway", "netem"):
            return frozenset({"network"})
        if self.kind in ("disk", "clock", "certificate", "key"):
            return frozenset({self.kind, *self.members, *self.options.get("holds", ())})
        if self.kind == "restart":  # whom it takes along has to hear of it
            return frozenset({*self.members, "network"} if len(self.members) > 1 else self.members)
        return frozenset(self.members)

    def __str__(self) -> str:
        what = " ".join(self.members[:1]) or json.dumps(self.options, sort_keys=True)
        return f"{self.number}: {self.kind} {what} at {self.at_s:.1f} s for {self.lasts_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Faults in the order of their beginnings, for ``seconds`` of load."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...]

    def only(self, numbers: Iterable[int]) -> Self:
        """The same with some of its faults; their times stay."""
        kept = set(numbers)
        return replace(self, faults=tuple(fault for fault in self.faults if fault.number in kept))

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The opposite of `to_json`.

        Raises:
            ValueError: that is no schedule, or one of another format.
        """
        told = json.loads(text)
        if not isinstance(told, dict) or told.get("format") != FORMAT:
            raise ValueError(f"no schedule of format {FORMAT}")
        try:
            faults = tuple(_fault(each) for each in told["faults"])
            return cls(int(told["seed"]), float(told["seconds"]), faults)
        except (KeyError, TypeError) as error:
            raise ValueError(f"no schedule: {error}") from error


def _fault(told: dict[str, Any]) -> Fault:
    links = tuple((int(one), int(other)) for one, other in told["links"])
    return Fault(**{**told, "members": tuple(told["members"]), "ranks": tuple(told["ranks"]), "links": links})


# -- the kinds --------------------------------------------------------------------------------------

Draft = tuple[float, dict[str, Any]]
"""(lasts_s, further fields of a Fault)."""


def _target(rng: Random, *, parties: bool = False) -> str:
    """A broker twice as often as anything else, each level of the tree alike."""
    level = rng.choice([(0,), (1, 2), (3, 4, 5, 6)])
    beside = [*GATEWAYS, "nfp", "oslo-1", "oslo-2", *(MORTAL if parties else ())]
    return f"broker-{rng.choice(level)}" if rng.random() < 0.6 else rng.choice(beside)


def _touched(member: str) -> dict[str, Any]:
    ranks = (int(member.removeprefix("broker-")),) if member.startswith("broker-") else ()
    return {"members": (member,), "ranks": ranks}


def _kill9(rng: Random) -> Draft:
    return rng.uniform(0.3, 3.0), _touched(_target(rng, parties=True))


def _failover(rng: Random) -> Draft:
    """A gateway dies under load: whom the balancer had there goes on at the other one."""
    return rng.uniform(0.3, 5.0), _touched(rng.choice(GATEWAYS))


def _freeze(rng: Random) -> Draft:
    return rng.uniform(0.5, 8.0), _touched(_target(rng))


def _restart(rng: Random) -> Draft:
    """A broker that is told to leave takes those below it along: so it is with Flux, a supervisor starts them again."""
    target = _target(rng)
    if not target.startswith("broker-"):
        return rng.uniform(0.2, 2.0), _touched(target)
    ranks = tuple(below(int(target.removeprefix("broker-"))))
    return rng.uniform(0.2, 2.0), {"members": tuple(f"broker-{rank}" for rank in ranks), "ranks": ranks}


def _slow(rng: Random) -> Draft:
    return rng.uniform(2.0, 8.0), {"members": (rng.choice(SLOW),)}


def _directory(rng: Random) -> Draft:
    return rng.uniform(1.0, 8.0), {"members": ("redis",), "options": {"how": rng.choice(["kill", "freeze"])}}


def _partition(rng: Random) -> Draft:
    """A subtree, or any hosts, on their own."""
    if rng.random() < 0.6:
        group = below(rng.choice(RANKS[1:]))
    else:
        group = sorted(rng.sample(list(RANKS), rng.randint(1, 3)))
    cut = {(a, b) for a in RANKS for b in RANKS if (a in group) != (b in group)}
    return rng.uniform(0.5, 9.0), {**_across(cut), "options": {"groups": [group]}}


def _oneway(rng: Random) -> Draft:
    one, other = rng.choice(LINKS)
    pair = (one, other) if rng.random() < 0.5 else (other, one)
    return rng.uniform(0.5, 8.0), {**_across({pair}), "options": {"pair": list(pair)}}


def _netem(rng: Random) -> Draft:
    """Nobody loses anything by it: nothing is touched in the sense of the checker."""
    options = {"delay_ms": rng.choice([1, 5, 20, 50]), "loss": rng.choice([0.0, 0.005, 0.02])}
    return rng.uniform(2.0, 10.0), {"options": options}


def _across(cut: set[tuple[int, int]]) -> dict[str, Any]:
    """Every pair of hosts that cannot speak with each other, of the tree or not."""
    return {"links": tuple(sorted({(min(pair), max(pair)) for pair in cut}))}


def _disk(rng: Random) -> Draft:
    """A full journal costs no message; a full store of NFP costs jobs that are not acknowledged."""
    if rng.random() < 0.5:
        return rng.uniform(2.0, 6.0), {"options": {"disk": "journal", "holds": [f"broker-{JOURNAL_RANK}"]}}
    return rng.uniform(2.0, 6.0), {"members": ("nfp",), "options": {"disk": "nfp"}}


def _clock(rng: Random) -> Draft:
    who = rng.choice([f"broker-{CLOCK_RANK}", "nfp"])
    step_s = rng.choice([-86400, -3600, -30, 30, 3600, 86400])
    return rng.uniform(2.0, 6.0), {"options": {"who": who, "step_s": step_s, "holds": [who]}}


def _certificate(rng: Random) -> Draft:
    return 0.5, {"options": {"holds": list(GATEWAYS)}}


def _key(rng: Random) -> Draft:
    """The key of a rank is replaced in three steps; present links stay."""
    rank = rng.choice(RANKS)
    holds = [f"broker-{each}" for each in RANKS]
    return rng.uniform(1.0, 3.0), {"options": {"rank": rank, "holds": [*holds, "network"]}}


def _rolling(rng: Random) -> Draft:
    """The proxies of oslo.messaging, one after the other."""
    return rng.uniform(0.2, 2.0), {"members": tuple(rng.sample(["oslo-1", "oslo-2"], 2))}


KINDS: Final[dict[str, Callable[[Random], Draft]]] = {
    "kill9": _kill9,
    "freeze": _freeze,
    "partition": _partition,
    "oneway": _oneway,
    "netem": _netem,
    "slow": _slow,
    "disk": _disk,
    "clock": _clock,
    "certificate": _certificate,
    "key": _key,
    "restart": _restart,
    "directory": _directory,
    "rolling": _rolling,
    "failover": _failover,
}


# -- a schedule -------------------------------------------------------------------------------------


def make(
    seed: int,
    seconds: float,
    *,
    kinds: Sequence[str] = tuple(KINDS),
    every_s: float = 3.5,
    quiet_s: float = QUIET_S,
) -> Schedule:
    """Draw a schedule. All kinds come once, in any order, before one comes again.

    Args:
        seed: of the random numbers.
        seconds: of load; the last ``quiet_s`` of them are without faults.
        kinds: those that this machine can do.
        every_s: mean time between two beginnings.

    Raises:
        ValueError: no such kind, or no time for any fault.
    """
    if unknown := set(kinds) - set(KINDS):
        raise ValueError(f"no such kind of fault: {', '.join(sorted(unknown))}")
    until_s = seconds - quiet_s
    if until_s <= FIRST_S:
        raise ValueError(f"{seconds:g} s of load leave no time for a fault")
    rng = Random(seed)
    faults: list[Fault] = []
    deck: list[str] = []
    at_s = FIRST_S
    while at_s < until_s - 0.5:
        deck = deck or rng.sample(list(kinds), len(kinds))
        for kind in deck:
            fault = _drawn(rng, kind, len(faults) + 1, at_s, until_s)
            if _fits(fault, faults):
                faults.append(fault)
                deck.remove(kind)
                break
        at_s += rng.uniform(0.4, 1.6) * every_s
    return Schedule(seed, seconds, tuple(faults))


def _drawn(rng: Random, kind: str, number: int, at_s: float, until_s: float) -> Fault:
    lasts_s, fields = KINDS[kind](rng)
    if kind in LONG and rng.random() < LONG_PART and until_s - at_s > LONG_ROOM_S:
        lasts_s += LONG_S
    return Fault(number, kind, round(at_s, 2), round(min(lasts_s, until_s - at_s), 2), **fields)


def _fits(fault: Fault, others: Iterable[Fault]) -> bool:
    during = [other for other in others if other.end_s > fault.at_s]
    near = [other for other in others if other.end_s + APART_S > fault.at_s]
    return len(during) < AT_ONCE and not any(fault.holds & other.holds for other in near)
